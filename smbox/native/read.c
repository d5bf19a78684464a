/* The reader: it never returns a part of a commit.
 *
 * Each stripe is a seqlock (Boehm, "Can seqlocks get along with programming language memory
 * models?", MSPC 2012): load the sequence word, copy, compare the word. After TORN_TRIES torn copies
 * the reader takes the stripe's lock.
 */
#include "copy.h"

enum {
    TORN_TRIES = 3,
    /* From this many stripes (32 MiB) on, a range is copied past the caches: they could not hold
     * it. */
    STREAMED_STRIPES = 64
};

static int is_streamed(const struct reading *reading) {
    u64 nbytes = reading->limit - reading->first; /* of rows: 0 */
    return nbytes >= STREAMED_STRIPES * reading->region->stripe_nbytes;
}

/* A part of a read that one check of a sequence word covers: bytes [from, limit) of the region, or
 * rows; all in one stripe. */
struct part {
    u64 stripe, from, limit;
    u8 *out;
    u64 row, rows; /* the first row, and how many; 0: the part is bytes */
};

static u64 row_begin(const struct reading *reading, u64 row) {
    return reading->first + (u64)reading->places[row] * reading->row_nbytes;
}

/* Convert a number of bytes of the region into bytes of the caller's type. */
static u64 out_nbytes(const struct reading *reading, u64 nbytes) {
    u64 dtype = reading->region->dtype;
    return dtype == reading->operand ? nbytes : scaled(nbytes, dtype, reading->operand);
}

static void copy_bytes(const struct reading *reading, u8 *out, u64 from, u64 nbytes) {
    const struct region *region = reading->region;
    if (reading->operand != region->dtype)
        smbox_narrow(out, region->data + from, nbytes >> shift_of(region->dtype),
                     reading->operand);
    else if (is_streamed(reading))
        copy_past_caches(out, region->data + from, nbytes);
    else
        copy(out, region->data + from, nbytes);
}

static void copy_part(const struct reading *reading, const struct part *part) {
    u64 row_nbytes = reading->row_nbytes, row_out = out_nbytes(reading, row_nbytes);
    if (!part->rows)
        copy_bytes(reading, part->out, part->from, part->limit - part->from);
    for (u64 at = 0; at < part->rows; at++)
        copy_bytes(reading, part->out + at * row_out, row_begin(reading, part->row + at), row_nbytes);
}

static enum result copy_locked(struct reading *reading, const u64 *holder, const struct part *part) {
    reading->stripe = part->stripe;
    enum result result = smbox_lock(holder, reading->region, part->stripe);
    if (result != DONE)
        return result;
    copy_part(reading, part);
    smbox_unlock(reading->region, part->stripe);
    return DONE;
}

/* Read a part as of one moment. */
static enum result read_part(struct reading *reading, const u64 *holder, const struct part *part) {
    const word *sequence = &reading->region->table[part->stripe].sequence;
    int is_compared = reading->region->consistency != WITHOUT_LOCKS;
    for (int tries = 0; tries < TORN_TRIES; tries++) {
        /* Acquire: the copy sees all stores of the commits that this word counts. */
        u64 before = load_acquire(sequence);
        if (before & SEQUENCE_OPEN && is_compared)
            continue;
        copy_part(reading, part);
        /* The copy's loads stay before the second load of the word: a writer opens the stripe
         * before it stores a byte. */
        atomic_thread_fence(memory_order_acquire);
        if (!is_compared || load_relaxed(sequence) == before)
            return DONE;
    }
    return copy_locked(reading, holder, part);
}

static enum result read_range(struct reading *reading, const u64 *holder, u8 *out, u64 from, u64 limit,
                              u64 *done) {
    u64 stripe_nbytes = reading->region->stripe_nbytes, at = from;
    while (at < limit && at - from < CALL_NBYTES) {
        u64 stripe = at / stripe_nbytes;
        struct part part = {.stripe = stripe, .from = at, .out = out + out_nbytes(reading, at - from)};
        part.limit = smaller(limit, (stripe + 1) * stripe_nbytes);
        enum result result = read_part(reading, holder, &part);
        if (result != DONE)
            return result;
        *done += part.limit - at;
        at = part.limit;
    }
    return DONE;
}

/* Count the rows from ``row`` on that lie entirely in the stripe in which ``row`` begins. */
static u64 rows_together(const struct reading *reading, u64 row) {
    u64 stripe_nbytes = reading->region->stripe_nbytes, count = 0;
    u64 begin = row_begin(reading, row) / stripe_nbytes * stripe_nbytes;
    for (; row + count < reading->count; count++) {
        u64 from = row_begin(reading, row + count);
        if (from < begin || from + reading->row_nbytes > begin + stripe_nbytes)
            break;
    }
    return count;
}

/* The caller limits the number of rows, so that Ctrl-C is not delayed. */
static enum result read_rows(struct reading *reading, const u64 *holder) {
    u64 row_nbytes = reading->row_nbytes, row_out = out_nbytes(reading, row_nbytes);
    while (reading->done < reading->count) {
        u64 from = row_begin(reading, reading->done), rows = rows_together(reading, reading->done);
        u8 *out = reading->out + reading->done * row_out;
        struct part part = {.stripe = from / reading->region->stripe_nbytes, .out = out,
                            .row = reading->done, .rows = rows};
        u64 ignored = 0;
        enum result result =
            rows ? read_part(reading, holder, &part)
                 : read_range(reading, holder, out, from, from + row_nbytes, &ignored);
        if (result != DONE)
            return result;
        reading->done += rows ? rows : 1;
    }
    return DONE;
}

static int is_good(const struct reading *reading) {
    const struct region *region = reading->region;
    u64 itemsize = itemsize_of(region->dtype);
    if (reading->operand != region->dtype &&
        (region->dtype != DTYPE_FLOAT32 || itemsize_of(reading->operand) != 2 ||
         reading->first % itemsize || reading->limit % itemsize || reading->row_nbytes % itemsize))
        return 0;
    if (!reading->places)
        return reading->first <= reading->limit && reading->limit <= region->nbytes;
    if (!reading->row_nbytes || reading->first > region->nbytes)
        return 0;
    u64 rows = (region->nbytes - reading->first) / reading->row_nbytes;
    for (u64 at = reading->done; at < reading->count; at++)
        if ((u64)reading->places[at] >= rows)
            return 0;
    return 1;
}

/* Starts at reading->done: after BUSY or OPEN the caller calls again. */
u64 smbox_read(struct reading *reading, const u64 *holder) {
    const struct region *region = reading->region;
    if (!is_good(reading))
        return reading->result = BAD_ORDER;
    if (is_freed(region))
        return reading->result = FREED;
    enum result result;
    if (reading->places) {
        result = read_rows(reading, holder);
    } else {
        u8 *out = reading->out + out_nbytes(reading, reading->done);
        result = read_range(reading, holder, out, reading->first + reading->done, reading->limit,
                            &reading->done);
    }
    if (is_freed(region))
        result = FREED;
    return reading->result = result;
}

u64 smbox_version(const struct stripe *table, u64 count) {
    u64 commits = 0;
    for (u64 at = 0; at < count; at++)
        commits += load_acquire(&table[at].sequence) >> COMMITS_SHIFT;
    return commits;
}
