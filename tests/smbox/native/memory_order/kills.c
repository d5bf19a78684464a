/* Recovers every memory that a killed writer may leave if only C11's orders arrange its stores.
 *
 * The explorer's writer has done, when it is killed, all that precedes the kill in the program. But a
 * compiler may move a relaxed store. So here one commit is executed and its stores are recorded. A memory
 * holds any set of them in which none lacks a store that must precede it: an earlier one to its word, one
 * before a fence that precedes it, and, of a release store, all earlier ones. What follows a swap
 * that acquires is after it, too.
 */
#include "shipped.h"

#include <stdio.h>
#include <stdlib.h>

enum { STORES = 64, RING_ID = 9 };

static const struct {
    u64 extents, stripes, has_channel, output;
} cases[] = {
    {1, 1, 1, OUTPUT_NOTHING}, {1, 2, 1, OUTPUT_NOTHING}, {1, 1, 1, OUTPUT_DELTA},   {1, 2, 1, OUTPUT_OLD},
    {1, 1, 0, OUTPUT_NOTHING}, {1, 2, 0, OUTPUT_NOTHING}, {2, 1, 0, OUTPUT_NOTHING},
};

/* The step by which a commit changes each word. */
static const u64 STEP = 5;

static struct {
    void *at;
    u64 value;
    int is_release, fences; /* fences before it */
    int is_done;
} stores[STORES];
static int stores_count, fences, is_recorded;
static u64 extents, stripes, has_channel, output, memories;
static struct memory start;

static uint64_t load_word(const void *at, memory_order order) {
    u64 value;
    (void)order;
    memcpy(&value, at, 8);
    return value;
}

static void store_word(void *at, uint64_t value, memory_order order) {
    u8 *place = at;
    if (is_recorded && place >= (u8 *)&memory && place < (u8 *)(&memory + 1)) {
        if (stores_count == STORES)
            abort();
        stores[stores_count].at = at;
        stores[stores_count].value = value;
        stores[stores_count].is_release = order != memory_order_relaxed;
        stores[stores_count++].fences = fences;
    }
    memcpy(at, &value, 8);
}

static void add_to_word(void *at, uint64_t value, memory_order order) {
    store_word(at, load_word(at, order) + value, order);
}

static void order_memory(memory_order order) { fences += order != memory_order_relaxed; }

static int swap_word(void *at, uint64_t *from, uint64_t to, memory_order order) {
    if (load_word(at, order) != *from)
        return 0;
    store_word(at, to, order);
    fences += order != memory_order_relaxed; /* it precedes all that follows an acquire */
    return 1;
}

static void require(int is_so, const char *what) {
    if (is_so)
        return;
    printf("extents %ju, stripes %ju, channel %ju, output %ju: %s; not done:", (uintmax_t)extents,
           (uintmax_t)stripes, (uintmax_t)has_channel, (uintmax_t)output, what);
    for (int at = 0; at < stores_count; at++)
        if (!stores[at].is_done)
            printf(" %d", at);
    printf(" of %d stores\n", stores_count);
    exit(1);
}

/* Recover a stripe of an extent. Returns how many commits its words hold, 0 or 1. */
static u64 recovered(u64 extent, u64 stripe) {
    const struct slot *slot = &memory.slots[0].slot;
    const struct stripe *row = &memory.tables[extent][stripe];
    const u8 *ring = slot->ring ? (const u8 *)memory.ring + slot->ring_offset : NULL;
    memory.tables[extent][stripe].holder = holders[1]; /* the recoverer has taken the lock over */
    if (row->sequence & SEQUENCE_OPEN)
        require(smbox_recover(&regions[extent], stripe, &memory.slots[0].slot, ring, &holders[1]) == DONE,
                "the slot does not fit the open stripe");
    u64 at = stripe * STRIPE_WORDS;
    u64 changes[STRIPE_WORDS];
    for (u64 i = 0; i < STRIPE_WORDS; i++)
        changes[i] = memory.data[extent][at + i] - start.data[extent][at + i];
    require(changes[0] == changes[1] && (!changes[0] || changes[0] == STEP), "half of a commit is left");
    require(row->sequence >> COMMITS_SHIFT == changes[0] / STEP, "the version counts another commit");
    return changes[0] / STEP;
}

static void check_memory(void) {
    memory = start;
    for (int at = 0; at < stores_count; at++)
        if (stores[at].is_done)
            memcpy(stores[at].at, &stores[at].value, 8);
    u64 number = memory.row.applied, commits = 0;
    const struct slot *slot = &memory.slots[0].slot;
    if (slot->channel && (slot->state & SLOT_STATE) == SLOT_COMMITTED && slot->number > number)
        number = slot->number; /* as a node that starts */
    for (u64 stripe = 0; stripe < stripes; stripe++) {
        u64 first = recovered(0, stripe);
        for (u64 extent = 1; extent < extents; extent++)
            require(recovered(extent, stripe) == first, "a commit is in one extent only");
        commits += first;
        u64 answer = output == OUTPUT_OLD ? start.data[0][stripe * STRIPE_WORDS] : STEP;
        require(output == OUTPUT_NOTHING || !first ||
                    (memory.ring[stripe].number == stripe + 1 &&
                     memory.answers[stripe * STRIPE_WORDS] == answer),
                "a commit has no answer");
    }
    require(!has_channel || number == commits, "the channel's number is of another commit");
    memories++;
}

static int precedes(int first, int second) {
    return stores[first].at == stores[second].at || stores[second].is_release ||
           stores[first].fences < stores[second].fences;
}

/* Check every memory that has the stores before ``at`` as they are marked. */
static void check_memories(int at) {
    if (at == stores_count) {
        check_memory();
        return;
    }
    int may_be_done = 1;
    for (int first = 0; first < at; first++)
        may_be_done &= stores[first].is_done || !precedes(first, at);
    for (stores[at].is_done = 0; stores[at].is_done <= may_be_done; stores[at].is_done++)
        check_memories(at + 1);
}

static void commit_recorded(void) {
    u64 source[STRIPES * STRIPE_WORDS];
    for (u64 at = 0; at < STRIPES * STRIPE_WORDS; at++)
        source[at] = STEP;
    double parameters[4] = {0};
    struct channel channel = {.row = &memory.row,
                              .ring = output == OUTPUT_NOTHING ? 0 : RING_ID,
                              .ring_base = (u8 *)memory.ring,
                              .ring_offset = (u64)((u8 *)memory.answers - (u8 *)memory.ring),
                              .entry_nbytes = STRIPE_NBYTES};
    struct order order = {.kernel = extents == 2 ? MOMENTUM : SUM,
                          .operand = DTYPE_FLOAT64,
                          .output = output,
                          .extents = extents,
                          .region = {&regions[0], &regions[1]},
                          .limit = stripes * STRIPE_NBYTES,
                          .source = (u8 *)source,
                          .source_nbytes = stripes * STRIPE_NBYTES,
                          .parameters = parameters,
                          .channel = has_channel ? &channel : NULL,
                          .number = 1};
    is_recorded = 1;
    require(smbox_commit(&writers[0], &order, 1) == 1, "the commit failed");
    is_recorded = 0;
}

int main(void) {
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++)
        for (u64 block_words = 1; block_words <= STRIPE_WORDS; block_words++) {
            extents = cases[at].extents, stripes = cases[at].stripes;
            has_channel = cases[at].has_channel, output = cases[at].output;
            memset(&memory, 0, sizeof memory);
            prepare(DTYPE_FLOAT64, STRIPE_BY_STRIPE, block_words);
            for (u64 word_at = 0; word_at < STRIPES * STRIPE_WORDS; word_at++)
                for (u64 extent = 0; extent < REGIONS; extent++)
                    memory.data[extent][word_at] = 100 * (extent + 1) + 10 * word_at;
            start = memory;
            stores_count = 0;
            memories = 0;
            commit_recorded();
            check_memories(0);
            printf("%zu, blocks of %ju: %d stores, %ju memories\n", at, (uintmax_t)block_words,
                   stores_count, (uintmax_t)memories);
        }
    return 0;
}
