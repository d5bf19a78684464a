/* Explores every execution of a scenario that the memory model (model.c) permits.
 *
 * A thread's next action is found by executing it anew with the results that it has so far. So a
 * thread is determined by its results, and two executions whose messages, views and results are
 * equal continue equally. Only one of them is continued: states are compared by a hash of 128 bits.
 *
 * A fence changes only the views of its own thread. So it is executed as soon as it is next: before or
 * after actions of other threads makes no difference. A kill comes before each action that is no fence.
 * A kill between an action and a fence would differ only if the fence changed the current view, which a
 * kill passes on; acquire fences do, release fences do not.
 */
#include "explorer.h"
#include "model.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = 1 << 20, WAITING = 1 << 12 };

struct hash {
    uint64_t left, right;
};

static const struct scenario *scenario;
static uint64_t states, ends;
static struct hash known[STATES]; /* an open-addressed table; a hash of zeros is a free place */
static struct state waiting[WAITING + 1]; /* states to continue from; above them, one in the making */
static uint64_t waiting_count;

/* ---- executing a thread ---------------------------------------------------------------------- */

static struct thread *executed;
static uint64_t executed_actions;
static int is_shown;
static jmp_buf leave;

static void print_action(const struct action *action, uint64_t result) {
    static const char *const kinds[] = {"load", "store", "add", "swap", "await", "fence"};
    static const char *const orders[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
    printf("    %s %s ", kinds[action->kind], orders[action->order]);
    if (action->at)
        print_place(action->at);
    printf(" %#jx: %#jx\n", (uintmax_t)action->value, (uintmax_t)result);
}

uint64_t perform(enum action_kind kind, memory_order order, const void *at, uint64_t value, uint64_t from) {
    struct action action = {kind, order, at, value, from};
    if (executed_actions == executed->actions) {
        executed->next = action;
        longjmp(leave, 1);
    }
    uint64_t result = executed->results[executed_actions++];
    if (is_shown)
        print_action(&action, result);
    return result;
}

/* Execute a thread with the results that it has. */
static void execute(struct state *state, int thread) {
    executed = &state->threads[thread];
    executed_actions = 0;
    if (setjmp(leave))
        return;
    scenario->run(scenario, thread);
    executed->has_ended = 1;
}

/* Print the actions of each thread, and exit. */
static void fail(struct state *state, const char *why) {
    printf("%s\n", why);
    is_shown = 1;
    for (int thread = 0; thread < scenario->threads; thread++) {
        printf("  thread %d\n", thread);
        execute(state, thread);
    }
    exit(1);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void mix(struct hash *hash, const void *at, uint64_t nbytes) {
    for (uint64_t i = 0; i < nbytes; i += 8) {
        uint64_t value;
        memcpy(&value, (const uint8_t *)at + i, 8);
        hash->left = (hash->left ^ value) * 0x9e3779b97f4a7c15;
        hash->left ^= hash->left >> 32;
        hash->right = (hash->right + value) * 0xff51afd7ed558ccd;
        hash->right ^= hash->right >> 29;
    }
}

static struct hash hash_of(const struct state *state) {
    struct hash hash = {1, 2};
    mix(&hash, &state->newest, sizeof state->newest);
    for (int word = 0; word < WORDS; word++)
        mix(&hash, &state->messages[word][1], state->newest.seen[word] * sizeof(struct message));
    for (int at = 0; at < scenario->threads; at++) {
        const struct thread *thread = &state->threads[at];
        mix(&hash, &thread->current, sizeof thread->current);
        mix(&hash, &thread->acquired, sizeof thread->acquired);
        mix(&hash, &thread->released, sizeof thread->released);
        mix(&hash, &thread->has_ended, sizeof thread->has_ended);
        mix(&hash, &thread->actions, sizeof thread->actions);
        mix(&hash, thread->results, thread->actions * sizeof thread->results[0]);
    }
    return hash;
}

/* Copy a state to the place above those that wait. */
static struct state *copy_of(const struct state *from) {
    waiting[waiting_count] = *from;
    return &waiting[waiting_count];
}

/* Let the state in that place wait, if it is new. */
static void add_state(void) {
    struct state *state = &waiting[waiting_count];
    if (state->broken)
        fail(state, state->broken);
    struct hash hash = hash_of(state);
    uint64_t place = hash.left % STATES;
    for (; known[place].left || known[place].right; place = (place + 1) % STATES)
        if (known[place].left == hash.left && known[place].right == hash.right)
            return;
    if (++states == STATES / 4 * 3 || ++waiting_count == WAITING)
        abort();
    known[place] = hash;
}

/* ---- exploration ----------------------------------------------------------------------------- */

static const struct state *ended;

uint64_t newest_value(const void *at) {
    uint64_t word = word_of(at);
    return ended->messages[word][ended->newest.seen[word]].value;
}

static void check_end(struct state *state) {
    ended = state;
    ends++;
    for (int thread = 0; thread < scenario->threads; thread++)
        execute(state, thread); /* the check needs what the threads have found */
    const char *wrong = scenario->check();
    if (wrong)
        fail(state, wrong);
}

/* Do a thread's next action in every way. Returns how many there are. */
static uint64_t step(const struct state *from, int thread) {
    int is_killable = thread < scenario->killable;
    uint64_t choices = choices_of(from, thread);
    for (uint64_t choice = 0; choice < choices; choice++) {
        struct state *state = copy_of(from);
        act(state, thread, choice, is_killable);
        execute(state, thread);
        add_state();
    }
    if (is_killable && from->threads[thread].next.kind != FENCE) {
        kill_thread(copy_of(from), thread);
        add_state();
    }
    return choices;
}

static void continue_from(struct state *from) {
    for (int thread = 0; thread < scenario->threads; thread++)
        if (!from->threads[thread].has_ended && from->threads[thread].next.kind == FENCE) {
            (void)step(from, thread);
            return;
        }
    int is_live = 0;
    uint64_t choices = 0;
    for (int thread = 0; thread < scenario->threads; thread++)
        if (!from->threads[thread].has_ended) {
            is_live = 1;
            choices += step(from, thread);
        }
    if (!is_live)
        check_end(from);
    else if (!choices)
        fail(from, "all threads wait for locks");
}

static void explore(void) {
    static struct state from;
    for (int thread = 0; thread < scenario->threads; thread++)
        execute(&from, thread);
    copy_of(&from);
    add_state();
    while (waiting_count) {
        from = waiting[--waiting_count];
        continue_from(&from);
    }
}

/* Explore the scenario that is named, or print the names of all. Exits with 1 at the first failure. */
int main(int argc, char **argv) {
    for (scenario = scenarios; scenario->name; scenario++) {
        if (argc == 1)
            puts(scenario->name);
        else if (!strcmp(argv[1], scenario->name)) {
            explore();
            printf("%ju states, %ju ends\n", (uintmax_t)states, (uintmax_t)ends);
            return 0;
        }
    }
    return argc > 1;
}
