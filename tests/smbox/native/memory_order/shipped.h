/* The shipped commit.c, read.c and locks.c on two small regions, for C files that decide what each access
 * to shared memory does: a stripe has two words, and words are copied and changed one at a time. */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* The including file defines these. */
static uint64_t load_word(const void *at, memory_order order);
static void store_word(void *at, uint64_t value, memory_order order);
static void add_to_word(void *at, uint64_t value, memory_order order);
static void order_memory(memory_order order);
static int swap_word(void *at, uint64_t *from, uint64_t to, memory_order order);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_fetch_add_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_thread_fence
#define atomic_load_explicit(at, order) load_word((const void *)(at), order)
#define atomic_store_explicit(at, value, order) store_word((void *)(at), value, order)
#define atomic_fetch_add_explicit(at, value, order) add_to_word((void *)(at), value, order)
#define atomic_compare_exchange_strong_explicit(at, from, to, order, failed) \
    swap_word((void *)(at), from, to, order)
#define atomic_thread_fence(order) order_memory(order)
#include "native.h"

#define SMBOX_COPY_H /* not copy.h, but: */

static void copy(u8 *out, const u8 *from, u64 nbytes) {
    for (u64 at = 0; at < nbytes; at += 8)
        store_word(out + at, load_word(from + at, memory_order_relaxed), memory_order_relaxed);
}

static void copy_past_caches(u8 *out, const u8 *from, u64 nbytes) { copy(out, from, nbytes); }

/* Kernels: of every extent, replace the words by the operand, or add it; the answer is the operand. */
static void change_words(u8 *const extents[], const struct operation *operation, int is_sum) {
    for (int extent = 0; extent < EXTENTS_MAX && extents[extent]; extent++)
        for (u64 at = 0; at < operation->nbytes; at += 8) {
            u64 value;
            memcpy(&value, operation->source + at, 8);
            u8 *word_at = extents[extent] + at;
            if (is_sum)
                value += load_word(word_at, memory_order_relaxed);
            store_word(word_at, value, memory_order_relaxed);
        }
}

static void replace(u8 *const extents[], const struct operation *operation) {
    change_words(extents, operation, 0);
}

static void sum(u8 *const extents[], const struct operation *operation) {
    change_words(extents, operation, 1);
}

static void sum_and_answer(u8 *const extents[], const struct operation *operation) {
    change_words(extents, operation, 1);
    copy(operation->output_to, operation->source, operation->nbytes);
}

kernel_fn *smbox_kernel(u64 kernel, u64 dtype, u64 operand, u64 output) {
    (void)dtype, (void)operand;
    return kernel == REPLACE ? replace : output == OUTPUT_DELTA ? sum_and_answer : sum;
}

void smbox_narrow(u8 *out, const u8 *data, u64 count, u64 operand) {
    (void)out, (void)data, (void)count, (void)operand;
}

#include "commit.c"
#define is_good is_good_reading
#include "read.c"
#undef is_good
#include "locks.c"

enum { REGIONS = 2, STRIPES = 2, STRIPE_WORDS = 2, STRIPE_NBYTES = 8 * STRIPE_WORDS, WRITERS = 2 };
enum { THREADS_MAX = 4, FIRST_HOLDER = 7 }; /* thread n holds locks as FIRST_HOLDER + n */

static struct memory {
    struct {
        struct slot slot;
        u8 rest[SLOT_PAGE_NBYTES - sizeof(struct slot)];
        u64 undo[REGIONS * STRIPE_WORDS];
    } slots[WRITERS];
    struct channel_row row;
    struct region_header headers[REGIONS];
    struct stripe tables[REGIONS][STRIPES];
    u64 data[REGIONS][STRIPES * STRIPE_WORDS];
    struct ring_entry ring[RING_ENTRIES];
    u64 answers[RING_ENTRIES * STRIPE_WORDS];
} memory;

static struct region regions[REGIONS];
static struct writer writers[WRITERS];
static u64 holders[THREADS_MAX];

static void prepare(u64 dtype, u64 consistency, u64 block_words) {
    for (u64 at = 0; at < THREADS_MAX; at++)
        holders[at] = FIRST_HOLDER + at;
    for (u64 at = 0; at < WRITERS; at++) {
        memset(&memory.slots[at], 0, sizeof memory.slots[at]);
        memory.slots[at].slot.id = holders[at];
        writers[at] = (struct writer){&memory.slots[at].slot, &holders[at], 8 * block_words};
    }
    for (u64 at = 0; at < REGIONS; at++)
        regions[at] = (struct region){.header = &memory.headers[at],
                                      .table = memory.tables[at],
                                      .data = (u8 *)memory.data[at],
                                      .nbytes = STRIPES * STRIPE_NBYTES,
                                      .address = 0x1000 * (at + 1),
                                      .stripe_nbytes = STRIPE_NBYTES,
                                      .dtype = dtype,
                                      .consistency = consistency};
}
