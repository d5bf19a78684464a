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
 * - A word of read-modify-writes has no other stores (checked), so each reads the newest message.
 * - A relaxed store does not carry the view of an earlier release store to its word by its thread, as in
 *   C++20. In C11 it does: the model permits more executions, not fewer.
 * - To lock is an acquire, to unlock a release. A kill unlocks what the thread holds: its stores before
 *   the kill are done, and no others. (kills.c permits other memories.)
 * - A thread that finds a stripe locked waits: the callers of the library repeat a BUSY commit. A reader
 *   does not wait.
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

/* Returns 1 if the lock is held. */
static uint64_t lock(struct state *state, int thread) {
    struct thread *its = &state->threads[thread];
    uint64_t number = its->next.value;
    if (state->holders[number])
        return 1;
    state->holders[number] = (uint64_t)thread + 1;
    join(&its->current, &state->lock_views[number]);
    join(&its->acquired, &state->lock_views[number]);
    return 0;
}

static void unlock(struct state *state, const struct thread *thread, uint64_t number) {
    state->holders[number] = 0;
    state->lock_views[number] = thread->current;
}

uint64_t choices_of(const struct state *state, int thread) {
    const struct thread *its = &state->threads[thread];
    if (its->next.kind == LOCK)
        return !state->holders[its->next.value];
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
    case UNLOCK:
        unlock(state, its, its->next.value);
        return 0;
    default:
        return lock(state, thread);
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

void kill_thread(struct state *state, int thread) {
    struct thread *its = &state->threads[thread];
    its->has_ended = 1;
    for (uint64_t number = 0; number < LOCKS; number++)
        if (state->holders[number] == (uint64_t)thread + 1)
            unlock(state, its, number);
}
