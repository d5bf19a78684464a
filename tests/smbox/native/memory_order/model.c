/* The memory model: which message a load may read, and what the threads know afterwards.
 *
 * It is the view-based form of RC11 (Lahav et al., "Repairing sequential consistency in C/C++11", PLDI
 * 2017; Kang et al., "A promising semantics for relaxed-memory concurrency", POPL 2017, without
 * promises). A store adds a message to its word's sequence. A view names a message of each word. A
 * thread reads no message that is older than its current view. A message carries a view; an acquire
 * load, or an acquire fence after a relaxed load, adds it to the current one.
 *
 * RC11 forbids what C11 and aarch64 permit: that two threads each load what the other one stores after
 * its load. Of the library's threads, readers store nothing, and writers load under a lock; so only
 * lock-free sums may, and those may lose additions anyway.
 *
 * Assumptions. An execution that breaks one of the checked ones is a failure:
 * - Shared words are accessed by atomic operations only, and none is seq_cst (checked).
 * - A thread stores to a word only after it has seen the newest message, as under a lock (checked). So
 *   the new message has only one place.
 * - A word that is added to has no other stores (checked), so each addition reads the newest message. So
 *   does a swap: there is no store but those of the thread whose swap was the last one to succeed (checked).
 * - A relaxed store does not carry the view of an earlier release store to its word by its thread, as in
 *   C++20. In C11 it does: the model permits more executions, not fewer.
 * - A swap that fails has no effect, and fails only if the newest message is another one.
 * - Of a killed thread the stores before the kill are done, and no others. (kills.c permits other
 *   memories.) A thread that finds it dead has learnt that from the kernel: it sees these stores.
 * - A writer that finds a stripe locked waits until its lock can be taken. A reader does not wait.
 * - A thread that may be killed executes no acquire fence (checked); explorer.c says why.
 */
#include "model.h"

#include <stdlib.h>

static const void *words[WORDS];
static uint64_t words_count;

uint64_t word_of(const void *at) {
    for (uint64_t word = 0; word < words_count; word++)
        if (words[word] == at)
            return word;
    if (words_count == WORDS)
        abort();
    words[words_count] = at;
    return words_count++;
}

static void join(struct view *view, const struct view *other) {
    for (int word = 0; word < WORDS; word++)
        if (view->seen[word] < other->seen[word])
            view->seen[word] = other->seen[word];
}

static int is_acquire(memory_order order) {
    return order == memory_order_acquire || order == memory_order_acq_rel;
}

static int is_release(memory_order order) {
    return order == memory_order_release || order == memory_order_acq_rel;
}

static void assume(int is_so, struct state *state, const char *broken) {
    if (!is_so)
        state->broken = broken;
}

static const struct message *read_message(struct state *state, struct thread *thread, uint64_t number) {
    uint64_t word = word_of(thread->next.at);
    const struct message *message = &state->messages[word][number];
    thread->current.seen[word] = thread->acquired.seen[word] = (uint8_t)number;
    join(&thread->acquired, &message->view);
    if (is_acquire(thread->next.order))
        join(&thread->current, &message->view);
    return message;
}

static void store_message(struct state *state, struct thread *thread, struct message message) {
    uint64_t word = word_of(thread->next.at);
    assume(thread->current.seen[word] == state->newest.seen[word], state,
           "a thread stores to a word whose last store it has not seen");
    uint8_t number = ++state->newest.seen[word];
    if (number == MESSAGES)
        abort();
    thread->current.seen[word] = thread->acquired.seen[word] = number;
    join(&message.view, is_release(thread->next.order) ? &thread->current : &thread->released);
    message.view.seen[word] = number;
    state->messages[word][number] = message;
}

/* A read-modify-write carries the view of the message that it reads, too: a release sequence. */
static uint64_t add(struct state *state, struct thread *thread) {
    uint64_t number = state->newest.seen[word_of(thread->next.at)];
    struct message message = *read_message(state, thread, number);
    assume(!number || message.is_sum, state, "a word has both stores and read-modify-writes");
    uint64_t before = message.value;
    message.value += thread->next.value;
    message.is_sum = 1;
    store_message(state, thread, message);
    return before;
}

static void fence(struct thread *thread) {
    if (is_acquire(thread->next.order))
        thread->current = thread->acquired;
    if (is_release(thread->next.order))
        thread->released = thread->current;
}

static const struct message *newest_message(const struct state *state, const struct thread *thread) {
    uint64_t word = word_of(thread->next.at);
    return &state->messages[word][state->newest.seen[word]];
}

static uint64_t swap(struct state *state, struct thread *thread) {
    struct message message = *newest_message(state, thread);
    if (message.value != thread->next.from)
        return message.value;
    (void)read_message(state, thread, state->newest.seen[word_of(thread->next.at)]);
    message.value = thread->next.value;
    store_message(state, thread, message);
    return thread->next.from;
}

/* The thread that is named by the word for which an AWAIT waits, or NULL. */
static const struct thread *holder_of(const struct state *state, const struct thread *thread) {
    uint64_t value = newest_message(state, thread)->value;
    return value ? &state->threads[value - thread->next.value] : NULL;
}

/* Who learns from the kernel that a thread has ended sees its stores. */
static uint64_t await(struct state *state, struct thread *thread) {
    const struct thread *ended = holder_of(state, thread);
    uint64_t value = read_message(state, thread, state->newest.seen[word_of(thread->next.at)])->value;
    if (ended) {
        join(&thread->current, &ended->current);
        join(&thread->acquired, &ended->current);
    }
    return value;
}

uint64_t choices_of(const struct state *state, int thread) {
    const struct thread *its = &state->threads[thread];
    if (its->next.kind == AWAIT)
        return !holder_of(state, its) || holder_of(state, its)->has_ended;
    if (its->next.kind != LOAD)
        return 1;
    uint64_t word = word_of(its->next.at);
    return (uint64_t)(state->newest.seen[word] - its->current.seen[word]) + 1;
}

static uint64_t result_of(struct state *state, int thread, uint64_t choice) {
    struct thread *its = &state->threads[thread];
    switch (its->next.kind) {
    case LOAD:
        return read_message(state, its, its->current.seen[word_of(its->next.at)] + choice)->value;
    case STORE:
        store_message(state, its, (struct message){.value = its->next.value});
        return 0;
    case ADD:
        return add(state, its);
    case FENCE:
        fence(its);
        return 0;
    case AWAIT:
        return await(state, its);
    default:
        return swap(state, its);
    }
}

void act(struct state *state, int thread, uint64_t choice, int is_killable) {
    struct thread *its = &state->threads[thread];
    const struct action *next = &its->next;
    assume(next->order != memory_order_seq_cst && next->order != memory_order_consume, state,
           "the model does not have this order");
    assume(!is_killable || next->kind != FENCE || !is_acquire(next->order), state,
           "a thread that may be killed executes an acquire fence");
    if (its->actions == ACTIONS)
        abort();
    uint64_t result = result_of(state, thread, choice);
    its->results[its->actions++] = result;
}

void kill_thread(struct state *state, int thread) { state->threads[thread].has_ended = 1; }
