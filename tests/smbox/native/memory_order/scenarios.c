/* Scenarios for the explorer: writers, readers and recoverers, as threads that share two regions. */
#include "shipped.h" /* first: it asks for more of the C library */

#include "explorer.h"

#include <stdio.h>

static struct {
    u64 result;
    u64 words[STRIPES * STRIPE_WORDS];
    u64 versions[2];
} found[4]; /* by each thread */

struct setting {
    int commits;          /* of a writer that only repeats them */
    u64 block_words;      /* that a writer saves and changes at a time */
    int are_slots_shared; /* 0: nobody recovers, so no other thread looks at a slot */
};

static const struct setting *setting;

/* ---- what the shipped sources do to memory --------------------------------------------------- */

static int is_shared(const void *at) {
    uintptr_t place = (uintptr_t)at, end = (uintptr_t)(&memory + 1);
    return place >= (uintptr_t)(setting->are_slots_shared ? (void *)&memory : memory.headers) && place < end;
}

void print_place(const void *at) {
    static const struct {
        const char *name;
        const void *begin;
    } parts[] = {{"data", memory.data},
                 {"stripes", memory.tables},
                 {"headers", memory.headers},
                 {"slots", memory.slots}};
    int part = 0;
    while ((uintptr_t)at < (uintptr_t)parts[part].begin)
        part++;
    printf("%s+%td", parts[part].name, (const u8 *)at - (const u8 *)parts[part].begin);
}

static uint64_t load_word(const void *at, memory_order order) {
    u64 value;
    if (is_shared(at))
        return perform(LOAD, order, at, 0, 0);
    memcpy(&value, at, 8);
    return value;
}

static void store_word(void *at, uint64_t value, memory_order order) {
    if (is_shared(at))
        (void)perform(STORE, order, at, value, 0);
    else
        memcpy(at, &value, 8);
}

static void add_to_word(void *at, uint64_t value, memory_order order) {
    (void)perform(ADD, order, at, value, 0);
}

static void order_memory(memory_order order) {
    if (order != memory_order_seq_cst) /* that at the end of a call: here nothing may rely on it */
        (void)perform(FENCE, order, NULL, 0, 0);
}

static int swap_word(void *at, uint64_t *from, uint64_t to, memory_order order) {
    return perform(SWAP, order, at, to, *from) == *from;
}

/* ---- what a thread does ---------------------------------------------------------------------- */

static int executed; /* the thread */

/* As smbox/memory/commit.py does with a stripe that is locked or open. */
static void clear_obstacle(struct region *region, u64 stripe, u64 result) {
    struct stripe *row = &region->table[stripe];
    u64 holder;
    do {
        holder = perform(AWAIT, memory_order_relaxed, &row->holder, FIRST_HOLDER, 0);
        if (result == BUSY && !holder)
            return;
    } while (smbox_take(row, &holders[executed], holder) != DONE);
    if (load_relaxed(&row->sequence) & SEQUENCE_OPEN) {
        u64 writer = load_relaxed(&row->writer) - FIRST_HOLDER;
        found[executed].result =
            smbox_recover(region, stripe, &memory.slots[writer].slot, NULL, &holders[executed]);
    }
    (void)smbox_leave(row, &holders[executed]);
}

/* Change words [first, limit) of a region to a value, or by it. */
static void change(int writer, int region, u64 kernel, u64 first, u64 limit, u64 value, u64 *old) {
    u64 source[STRIPES * STRIPE_WORDS];
    for (int at = 0; at < STRIPES * STRIPE_WORDS; at++)
        source[at] = value;
    struct order order = {.kernel = kernel,
                          .operand = DTYPE_INT64,
                          .output = old ? OUTPUT_OLD : OUTPUT_NOTHING,
                          .extents = 1,
                          .region = {&regions[region]},
                          .first = 8 * first,
                          .limit = 8 * limit,
                          .done = 8 * first,
                          .source = (u8 *)source,
                          .source_nbytes = 8 * (limit - first),
                          .output_to = (u8 *)old};
    while (!smbox_commit(&writers[writer], &order, 1))
        clear_obstacle(order.blocked, order.stripe, order.result);
}

static void write_commits(int writer) {
    for (int commit = 1; commit <= setting->commits; commit++)
        change(writer, 0, REPLACE, 0, STRIPE_WORDS, (u64)commit, NULL);
}

static u64 read_words(int region, u64 first, u64 limit, u64 *out) {
    struct reading reading = {.region = &regions[region], .first = 8 * first, .limit = 8 * limit,
                              .out = (u8 *)out, .operand = DTYPE_INT64};
    return smbox_read(&reading, &holders[executed]);
}

static void read_stripe(int thread) {
    found[thread].result = read_words(0, 0, STRIPE_WORDS, found[thread].words);
}

static void begin(const struct scenario *scenario, int thread, u64 consistency) {
    setting = scenario->setting;
    executed = thread;
    memset(&found[thread], 0, sizeof found[thread]);
    prepare(DTYPE_INT64, consistency, setting->block_words);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static u64 data_at(int region, int at) { return newest_value(&memory.data[region][at]); }

static u64 commits_of(int region) {
    return newest_value(&memory.tables[region][0].sequence) >> COMMITS_SHIFT;
}

static int is_half(int thread) {
    return found[thread].result == DONE && found[thread].words[0] != found[thread].words[1];
}

static const char *check_reader(void) {
    u64 last = commits_of(0);
    if (is_half(1))
        return "the reader has half of a commit";
    return data_at(0, 0) != last || data_at(0, 1) != last ? "the last commit is not in the data" : NULL;
}

/* ---- scenarios ------------------------------------------------------------------------------- */

static void run_reader(const struct scenario *scenario, int thread) {
    begin(scenario, thread, STRIPE_BY_STRIPE);
    thread == 0 ? write_commits(0) : read_stripe(thread);
}

/* Two writers add 1 and 2, and get the old words; a reader. */
static void run_writers(const struct scenario *scenario, int thread) {
    begin(scenario, thread, STRIPE_BY_STRIPE);
    if (thread < WRITERS)
        change(thread, 0, SUM, 0, STRIPE_WORDS, (u64)thread + 1, found[thread].words);
    else
        read_stripe(thread);
}

static const char *check_writers(void) {
    if (data_at(0, 0) != 3 || data_at(0, 1) != 3 || commits_of(0) != 2)
        return "a sum is lost";
    if (is_half(0) || is_half(1) || is_half(2))
        return "a thread has half of a commit";
    u64 old[] = {found[0].words[0], found[1].words[0]};
    int is_serial = (old[0] == 0 && old[1] == 1) || (old[0] == 2 && old[1] == 0);
    return is_serial ? NULL : "the old words fit no order of the commits";
}

/* A writer that is killed, recoverers, of which the first is killed too if killable is 2; and a
 * reader as the last thread. */
static void run_recovery(const struct scenario *scenario, int thread) {
    begin(scenario, thread, STRIPE_BY_STRIPE);
    if (thread == 0)
        write_commits(0);
    else if (thread <= scenario->killable)
        clear_obstacle(&regions[0], 0, BUSY);
    else
        read_stripe(thread);
}

static const char *check_recovery(void) {
    for (int thread = 1; thread < 4; thread++)
        if (is_half(thread) || found[thread].result == BAD_ORDER)
            return "a reader has half of a commit, or a recoverer finds a slot that does not fit";
    if (newest_value(&memory.tables[0][0].sequence) & SEQUENCE_OPEN)
        return NULL; /* killed after the last recovery */
    u64 commits = commits_of(0);
    if (data_at(0, 0) != commits || data_at(0, 1) != commits)
        return "half of a commit is left, or another one than the version counts";
    return newest_value(&memory.slots[0].slot.state) / SLOT_COMMITS != commits
               ? "the slot counts other commits than the stripe"
               : NULL;
}

/* A commit to each of two stripes; a read of both between two loads of the version. */
static void run_version(const struct scenario *scenario, int thread) {
    begin(scenario, thread, STRIPE_BY_STRIPE);
    if (thread == 0) {
        change(0, 0, REPLACE, 0, 2 * STRIPE_WORDS, 1, NULL);
        return;
    }
    found[1].versions[0] = smbox_version(memory.tables[0], STRIPES);
    found[1].result = read_words(0, 0, 2 * STRIPE_WORDS, found[1].words);
    found[1].versions[1] = smbox_version(memory.tables[0], STRIPES);
}

static const char *check_version(void) {
    u64 commits = found[1].words[0] + found[1].words[STRIPE_WORDS];
    int is_one_version = found[1].result == DONE && found[1].versions[0] == found[1].versions[1];
    return is_one_version && commits != found[1].versions[0] ? "the version counts other commits" : NULL;
}

/* A commit to each of two regions; a reader that waits for the version of the second reads the first. */
static void run_wait(const struct scenario *scenario, int thread) {
    begin(scenario, thread, STRIPE_BY_STRIPE);
    if (thread == 0) {
        change(0, 0, REPLACE, 0, STRIPE_WORDS, 1, NULL);
        change(0, 1, REPLACE, 0, STRIPE_WORDS, 1, NULL);
        return;
    }
    found[1].versions[0] = smbox_version(memory.tables[1], STRIPES);
    read_stripe(1);
}

/* The same, but the reader reads the second region. */
static void run_signal(const struct scenario *scenario, int thread) {
    if (thread == 0) {
        run_wait(scenario, thread);
        return;
    }
    begin(scenario, thread, STRIPE_BY_STRIPE);
    u64 words[STRIPE_WORDS] = {0};
    if (read_words(1, 0, 1, words) == DONE)
        found[1].versions[0] = words[0];
    read_stripe(1);
}

static const char *check_wait(void) {
    if (found[1].versions[0] && found[1].result == DONE && !(found[1].words[0] && found[1].words[1]))
        return "who saw the second commit has not seen the first";
    return is_half(1) ? "the reader has half of a commit" : NULL;
}

/* Two commits without locks, to a word each; a reader reads them in the other order. */
static void run_lock_free(const struct scenario *scenario, int thread) {
    begin(scenario, thread, WITHOUT_LOCKS);
    if (thread == 0) {
        change(0, 0, REPLACE, 0, 1, 1, NULL);
        change(0, 0, REPLACE, 1, 2, 1, NULL);
        return;
    }
    found[1].versions[0] = smbox_version(memory.tables[0], STRIPES);
    (void)read_words(0, 1, 2, &found[1].words[1]);
    (void)read_words(0, 0, 1, &found[1].words[0]);
}

static const char *check_lock_free(void) {
    if (commits_of(0) != 2)
        return "a commit is not counted";
    if (found[1].versions[0] > found[1].words[0] + found[1].words[1])
        return "the version counts a commit that the reader has not seen";
    return found[1].words[1] && !found[1].words[0] ? "the second commit was seen before the first" : NULL;
}

#define SETTING(...) (const struct setting[]){{__VA_ARGS__}}

const struct scenario scenarios[] = {
    {"reader", 2, 0, run_reader, check_reader, SETTING(1, 2, 0)},
    {"reader_two_commits", 2, 0, run_reader, check_reader, SETTING(2, 2, 0)},
    {"reader_two_blocks", 2, 0, run_reader, check_reader, SETTING(1, 1, 0)},
    {"two_writers", 3, 0, run_writers, check_writers, SETTING(1, 2, 0)},
    {"recovery", 3, 1, run_recovery, check_recovery, SETTING(1, 2, 1)},
    {"recovery_two_commits", 3, 1, run_recovery, check_recovery, SETTING(2, 2, 1)},
    {"recovery_two_blocks", 3, 1, run_recovery, check_recovery, SETTING(1, 1, 1)},
    {"killed_recoverer", 4, 2, run_recovery, check_recovery, SETTING(1, 2, 1)},
    {"version", 2, 0, run_version, check_version, SETTING(1, 2, 0)},
    {"wait", 2, 0, run_wait, check_wait, SETTING(1, 2, 0)},
    {"signal", 2, 0, run_signal, check_wait, SETTING(1, 2, 0)},
    {"lock_free", 2, 0, run_lock_free, check_lock_free, SETTING(1, 2, 0)},
    {0},
};
