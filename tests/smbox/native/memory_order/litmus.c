/* Litmus tests of the memory model: small programs whose possible results are known. The names are those
 * of Alglave et al., "Herding cats", TOPLAS 2014. */
#include "explorer.h"

#include <stdio.h>

enum { THREADS = 4, ACTIONS = 3 };

/* Of each thread, the actions: Read, Write 1, Add 1 or Fence; a word; relaxed (-), acquire or release. */
struct program {
    const char *threads[THREADS][ACTIONS];
};

static uint64_t words[2];
static char found[THREADS][ACTIONS + 1]; /* digits */

static uint64_t do_action(const char *text) {
    enum action_kind kind = text[0] == 'R' ? LOAD : text[0] == 'W' ? STORE : text[0] == 'A' ? ADD : FENCE;
    memory_order order = text[2] == 'a'   ? memory_order_acquire
                         : text[2] == 'r' ? memory_order_release
                                          : memory_order_relaxed;
    return perform(kind, order, &words[text[1] == 'y'], 1, 0);
}

void print_place(const void *at) { printf("%c", at == words ? 'x' : 'y'); }

static void run(const struct scenario *scenario, int thread) {
    const struct program *program = scenario->setting;
    const char *const *actions = program->threads[thread];
    int reads = 0;
    for (int at = 0; at < ACTIONS && actions[at]; at++) {
        uint64_t value = do_action(actions[at]);
        if (actions[at][0] == 'R')
            found[thread][reads++] = (char)('0' + value);
    }
}

static const char *print_found(void) {
    printf("%s%s%s%s\n", found[0], found[1], found[2], found[3]);
    return NULL;
}

#define LITMUS(name, count, ...) \
    {name, count, 0, run, print_found, (const struct program[]){{{__VA_ARGS__}}}}

const struct scenario scenarios[] = {
    LITMUS("mp", 2, {"Wx-", "Wy-"}, {"Ry-", "Rx-"}),
    LITMUS("mp_release", 2, {"Wx-", "Wyr"}, {"Ry-", "Rx-"}),
    LITMUS("mp_acquire", 2, {"Wx-", "Wy-"}, {"Rya", "Rx-"}),
    LITMUS("mp_both", 2, {"Wx-", "Wyr"}, {"Rya", "Rx-"}),
    LITMUS("mp_release_fence", 2, {"Wx-", "F r", "Wy-"}, {"Ry-", "Rx-"}),
    LITMUS("mp_acquire_fence", 2, {"Wx-", "Wy-"}, {"Ry-", "F a", "Rx-"}),
    LITMUS("mp_fences", 2, {"Wx-", "F r", "Wy-"}, {"Ry-", "F a", "Rx-"}),
    LITMUS("sb", 2, {"Wxr", "Rya"}, {"Wyr", "Rxa"}),
    LITMUS("lb", 2, {"Rx-", "Wy-"}, {"Ry-", "Wx-"}),
    LITMUS("iriw", 4, {"Wxr"}, {"Wyr"}, {"Rxa", "Rya"}, {"Rya", "Rxa"}),
    LITMUS("corr", 2, {"Wx-"}, {"Rx-", "Rx-"}),
    LITMUS("wrc", 3, {"Wx-"}, {"Rx-", "Wyr"}, {"Rya", "Rx-"}),
    /* The Add of another thread carries on what a release passes. */
    LITMUS("release_sequence", 3, {"Wx-", "Ayr"}, {"Ay-"}, {"Rya", "Rx-"}),
    {0},
};
