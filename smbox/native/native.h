/* The structs in shared memory, the arguments of the native library, and its exported functions.
 *
 * Shared memory consists of 64-bit words: each is stored in one piece, so neither a kill nor a
 * concurrent reader finds a torn one. smbox/memory/layout.py has the same offsets for Python; a
 * test compares them.
 */
#ifndef SMBOX_NATIVE_H
#define SMBOX_NATIVE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t u64;
typedef int64_t i64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef _Atomic u64 word; /* a word in shared memory: only the helpers below access it */

#define EXTENTS_MAX 4
#define RING_ENTRIES 32
#define SMBOX_FORMAT 5

/* ---- shared memory ---------------------------------------------------------------------- */

/* Sequence word of a stripe: commits << 16 | undone (15 bits, wraps) << 1 | open. */
enum { SEQUENCE_OPEN = 1, SEQUENCE_UNDONE = 2, SEQUENCE_UNDONE_MASK = 0xfffe };
enum { COMMITS_SHIFT = 16 };
#define SEQUENCE_COMMIT ((u64)1 << COMMITS_SHIFT)

/* One row of a region's stripe table: a cache line. */
struct stripe {
    word sequence;
    word writer; /* id of the journal slot of the last writer */
    word holder; /* id of who has locked the stripe, or 0 */
    u64 spare[5];
};
_Static_assert(sizeof(struct stripe) == 64, "a stripe's row is a cache line");

/* The first words of a region's header page; only Python accesses the others. */
struct region_header {
    u64 magic, format;
    word state; /* REGION_... */
};
_Static_assert(offsetof(struct region_header, state) == 16, "word 2");
enum { REGION_FREED = 3 };

/* The first page of a writer's journal slot. The undo areas follow, a stripe for each extent.
 *
 * All extents of a commit are the same bytes [first, limit) of the same stripe of different
 * regions: one progress word serves all of them.
 */
struct slot {
    u64 magic, format, id, pid, pid_started;
    word state;           /* commits << 2 | SLOT_... */
    word stripe;          /* index */
    word first;           /* byte of the region's data where the commit begins */
    word progress;        /* bytes from first on whose old bytes are saved */
    word extents;         /* how many of the next are in use */
    word region[EXTENTS_MAX]; /* global addresses */
    word channel;         /* row of the channel table + 1, or 0 */
    word serial;          /* of that row: rows are reused, serials never */
    word number;          /* of the commit, on that channel */
    word ring;            /* id of the ring with the old bytes of extent 0; 0: undo area 0 has them */
    word ring_offset;     /* byte of the ring's segment */
};
_Static_assert(offsetof(struct slot, state) == 40, "word 5");
_Static_assert(sizeof(struct slot) == 152, "19 words");
enum { SLOT_PAGE_NBYTES = 4096 };
enum { SLOT_FREE = 0, SLOT_ARMED = 1, SLOT_COMMITTED = 2, SLOT_STATE = 3, SLOT_COMMITS = 4 };

/* One row of the node's channel table. */
struct channel_row {
    u64 client_low, client_high, channel;
    word applied; /* number of the last commit */
    u64 used, generation, serial, spare;
};
_Static_assert(sizeof(struct channel_row) == 64, "a channel's row is a cache line");

/* Head of one entry of a channel's ring of answers: a cache line. */
struct ring_entry {
    word number; /* of the commit whose output the entry holds, or 0 */
    word nbytes;
    u64 spare[6];
};
_Static_assert(sizeof(struct ring_entry) == 64, "an entry's head is a cache line");

/* ---- this process's mappings, filled by Python --------------------------------------------- */

struct region {
    struct region_header *header;
    struct stripe *table;
    u8 *data;
    u64 nbytes;
    u64 address; /* global */
    u64 stripe_nbytes;
    u64 dtype;       /* DTYPE_... */
    u64 consistency; /* STRIPE_BY_STRIPE or WITHOUT_LOCKS */
};
enum { STRIPE_BY_STRIPE = 1, WITHOUT_LOCKS = 3 };

struct writer {
    struct slot *slot; /* with as many undo areas as the orders have extents */
    const u64 *holder; /* its id as a holder of locks; 0 in a forked child */
    u64 block_nbytes;  /* bytes that are saved and changed at a time; a multiple of 64 */
};

struct channel {
    struct channel_row *row;
    u64 index;       /* of the row */
    u64 ring;        /* id of the ring, or 0: none */
    u8 *ring_base;   /* RING_ENTRIES heads, then as many entries of entry_nbytes */
    u64 ring_offset; /* byte of the ring where the entries begin */
    u64 entry_nbytes;
};

enum dtype {
    DTYPE_BOOL = 1, DTYPE_INT8, DTYPE_INT16, DTYPE_INT32, DTYPE_INT64,
    DTYPE_UINT8, DTYPE_UINT16, DTYPE_UINT32, DTYPE_UINT64,
    DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPES
};

enum kernel {
    REPLACE = 1, SUM, MIN, MAX, ELASTIC, COMPARE_SWAP, ARRIVE, WITHDRAW, SCATTER_PUT,
    SCATTER_SUM, SCALE, MOMENTUM = 64, NESTEROV, ADAGRAD, ADAM
};

enum output { OUTPUT_NOTHING, OUTPUT_MOVED, OUTPUT_DELTA, OUTPUT_OLD, OUTPUT_NEW };

enum result { DONE, BUSY, OPEN, FREED, BAD_ORDER, NOT_OWN };

/* One order: a kernel on the bytes [first, limit) of a region, one commit for each stripe.
 *
 * output_to receives as many elements as the range has: the moved operand x - d (ELASTIC; output_to
 * may be the source), d, the old bytes or the new bytes. Of a channel with a ring, the ring receives
 * them instead, in the entry of each commit.
 */
struct order {
    u64 kernel;
    u64 operand; /* dtype of the source: the region's, or a narrower float */
    u64 output;  /* enum output */
    u64 extents; /* 1; of an optimizer, 1 + its states */
    struct region *region[EXTENTS_MAX];
    u64 first, limit;
    const u8 *source;
    u64 source_nbytes;
    union { double real; i64 whole; } scale;
    const double *parameters; /* of an optimizer: four */
    u8 *output_to;
    struct channel *channel; /* or NULL: a local writer */
    u64 number;              /* of the first stripe's commit; later stripes count up */
    /* written by smbox_commit: where this call ended and the next one continues */
    u64 done;   /* byte up to which all is committed and output */
    u64 result; /* enum result */
    struct region *blocked; /* its stripe is BUSY or OPEN */
    u64 stripe;
};
_Static_assert(sizeof(struct order) == 168, "21 words: smbox/memory/orders.py packs them");

/* One read: bytes [first, limit), or count rows that begin at first + place * row_nbytes. */
struct reading {
    struct region *region;
    u64 first, limit;
    const i64 *places; /* or NULL */
    u64 count, row_nbytes;
    u8 *out;
    u64 operand; /* dtype of out: the region's, or a narrower float */
    u64 done;    /* bytes, or rows, that out already has */
    u64 result;
    u64 stripe;
};
_Static_assert(sizeof(struct reading) == 88, "11 words: smbox/memory/orders.py packs them");

/* ---- exported functions --------------------------------------------------------------------- */

/* The most that one call changes, or reads of a range: Python handles Ctrl-C between calls. */
#define CALL_NBYTES ((u64)64 << 20)

/* Run orders until the end, the first obstacle, or 64 MiB of changes. Returns how many orders are
 * completed. */
EXPORT u64 smbox_commit(struct writer *writer, struct order *orders, u32 count);

/* Read until the end or the first obstacle; of a range, at most 64 MiB. Returns enum result. */
EXPORT u64 smbox_read(struct reading *reading, const u64 *holder);

/* Take the lock of a stripe that nobody has (from: 0) or that a dead holder has. Returns DONE, BUSY if it
 * is no longer so, or NOT_OWN. */
EXPORT u64 smbox_take(struct stripe *row, const u64 *holder, u64 from);

/* Leave the lock of a stripe, if the holder has it. */
EXPORT u64 smbox_leave(struct stripe *row, const u64 *holder);

/* Count the commits of a region, the sum over its stripes. Later loads see what they changed. */
EXPORT u64 smbox_version(const struct stripe *table, u64 count);

/* Undo or complete the commit of an open stripe from the slot of its dead writer. The caller holds
 * the stripe's lock. ring: the saved old bytes of extent 0 if the slot names a ring, else NULL.
 * Returns DONE, BAD_ORDER if the slot names another stripe, or NOT_OWN if another one holds the lock. */
EXPORT u64 smbox_recover(struct region *region, u64 stripe, struct slot *slot, const u8 *ring,
                         const u64 *holder);

/* Sum the products of two arrays of floats of one type, in double and in an order that depends only
 * on count. sum: receives the result. Returns DONE, or BAD_ORDER for other types. */
EXPORT u64 smbox_dot(const u8 *left, const u8 *right, u64 count, u64 dtype, double *sum);

/* Keep all loads and stores before the call before those after it, for words that Python accesses. */
EXPORT u64 smbox_fence(void);

/* Choose the kernels: 0 plain, 1 AVX2. Returns the choice: not above what the processor has. */
EXPORT u64 smbox_level(u64 wanted);

/* The compiler that built this library, for `smbox doctor`. compiling.py passes it as a macro. */
EXPORT extern const char *const smbox_build_compiler;

/* ---- helpers -------------------------------------------------------------------------------- */

static inline u64 load_relaxed(const word *at) {
    return atomic_load_explicit((word *)at, memory_order_relaxed);
}
static inline u64 load_acquire(const word *at) {
    return atomic_load_explicit((word *)at, memory_order_acquire);
}
static inline void store_relaxed(word *at, u64 value) {
    atomic_store_explicit(at, value, memory_order_relaxed);
}
static inline void store_release(word *at, u64 value) {
    atomic_store_explicit(at, value, memory_order_release);
}
static inline u64 smaller(u64 a, u64 b) { return a < b ? a : b; }

/* Elements of a type have 1 << shift_of(dtype) bytes: to count them takes no division. */
static inline u64 shift_of(u64 dtype) {
    static const u8 shifts[DTYPES] = {0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 1, 1, 2, 3};
    return shifts[dtype < DTYPES ? dtype : 0];
}
static inline u64 itemsize_of(u64 dtype) { return (u64)1 << shift_of(dtype); }
/* Convert the bytes of some elements into those of as many elements of another type. */
static inline u64 scaled(u64 nbytes, u64 dtype, u64 other) {
    return nbytes >> shift_of(dtype) << shift_of(other);
}

static inline int is_freed(const struct region *region) {
    return load_acquire(&region->header->state) == REGION_FREED;
}
static inline u8 *undo_area(struct slot *slot, const struct region *region, u64 extent) {
    return (u8 *)slot + SLOT_PAGE_NBYTES + extent * region->stripe_nbytes;
}

/* Lock a stripe (locks.c) that is neither freed nor open; else no lock is left. */
enum result smbox_lock(const u64 *holder, const struct region *region, u64 stripe);
void smbox_unlock(const struct region *region, u64 stripe);

/* One call of a kernel. */
struct operation {
    u64 count, nbytes; /* elements of the region, and their bytes */
    const u8 *source;
    u8 *output_to;
    union { double real; i64 whole; } scale;
    const double *parameters;
};
typedef void kernel_fn(u8 *const at[], const struct operation *operation);
kernel_fn *smbox_kernel(u64 kernel, u64 dtype, u64 operand, u64 output);
void smbox_narrow(u8 *out, const u8 *data, u64 count, u64 operand);

#endif
