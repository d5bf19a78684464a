/* What a scenario and the explorer (explorer.c) know of each other. */
#ifndef EXPLORER_H
#define EXPLORER_H

#include <stdatomic.h>
#include <stdint.h>

enum action_kind { LOAD, STORE, ADD, SWAP, AWAIT, FENCE };

/* Run one action of the thread that is executed now. at: the shared word; value: of a STORE or ADD. A
 * SWAP stores value if it finds ``from``. AWAIT waits until the word has 0, or value + n if thread n has
 * ended. Returns what was read.
 * It does not return if the explorer wants to know just the next action. */
uint64_t perform(enum action_kind kind, memory_order order, const void *at, uint64_t value, uint64_t from);

/* The value of a word after the last store, for checks. */
uint64_t newest_value(const void *at);

/* Print a shared word's place, for the report of a failure. Every file with scenarios defines it. */
void print_place(const void *at);

struct scenario {
    const char *name;
    int threads;
    int killable; /* the first so many threads may be killed before any of their actions */
    /* What a thread does. It is executed anew for each action, so it must begin by preparing all that
     * it changes without perform(). */
    void (*run)(const struct scenario *scenario, int thread);
    const char *(*check)(void); /* after all threads have ended: what is wrong, or NULL */
    const void *setting; /* what run() needs to know */
};

extern const struct scenario scenarios[]; /* the last one has no name */

#endif
