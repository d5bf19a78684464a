/* The states of a scenario, and what an action of a thread makes of one. */
#ifndef MODEL_H
#define MODEL_H

#include "explorer.h"

enum { THREADS = 4, WORDS = 24, MESSAGES = 9, ACTIONS = 128 };

/* Of each word, the number of a message. */
struct view {
    uint8_t seen[WORDS];
};

struct message {
    uint64_t value;
    struct view view;
    uint64_t is_sum; /* a read-modify-write stored it */
};

struct action {
    enum action_kind kind;
    memory_order order;
    const void *at;
    uint64_t value, from;
};

struct thread {
    struct view current;  /* the oldest messages that it may read */
    struct view acquired; /* its next acquire fence makes this the current view */
    struct view released; /* the current view at its last release fence; relaxed stores carry it */
    struct action next;
    uint64_t has_ended;
    uint64_t actions; /* how many results it has */
    uint64_t results[ACTIONS];
};

/* All zero is the state before the first action: message 0 of each word has the value 0. */
struct state {
    struct message messages[WORDS][MESSAGES];
    struct view newest;
    struct thread threads[THREADS];
    const char *broken; /* assumption of the model, or NULL */
};

/* Number a shared word. */
uint64_t word_of(const void *at);

/* Count the ways in which a thread's next action can be done now; 0: it waits. */
uint64_t choices_of(const struct state *state, int thread);

/* Do a thread's next action, in one of those ways. is_killable: it may be killed. */
void act(struct state *state, int thread, uint64_t choice, int is_killable);

/* End a thread between two actions. */
void kill_thread(struct state *state, int thread);

#endif
