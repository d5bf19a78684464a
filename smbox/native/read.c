/* The one reader: no copy ever holds half of a commit.
 *
 * A seqlock per stripe (Boehm, "Can seqlocks get along with programming language memory
 * models?", MSPC 2012): note the word, copy, look again; after some torn tries, take the lock.
 */
#include "copy.h"

enum {
    TORN_TRIES = 3,
    /* A range of so many stripes (32 MiB) is copied past the caches: by its end its beginning would
     * be out of them. */
    STREAMED_STRIPES = 64
};

/* What is read in one call at most, so that Ctrl-C and timeouts come through. */
#define CALL_NBYTES ((u64)64 << 20)

static int is_streamed(const struct reading *reading) {
    u64 nbytes = reading->limit - reading->first; /* of rows: 0 */
    return nbytes >= STREAMED_STRIPES * reading->region->stripe_nbytes;
}

/* Copy a piece to its place in ``out``, in the type that the caller wants. */
static void copy_piece(const struct reading *reading, u8 *out, u64 from, u64 nbytes) {
    const struct region *region = reading->region;
    if (reading->operand != region->dtype)
        smbox_narrow(out, region->data + from, nbytes / smbox_itemsize(region->dtype),
                     region->dtype, reading->operand);
    else if (is_streamed(reading))
        copy_past_caches(out, region->data + from, nbytes);
    else
        copy(out, region->data + from, nbytes);
}

/* Where in ``out`` the element belongs that lies ``nbytes`` behind the first. */
static u8 *place(const struct reading *reading, u8 *out, u64 nbytes) {
    u64 itemsize = smbox_itemsize(reading->region->dtype);
    u64 out_itemsize = smbox_itemsize(reading->operand);
    return out + (itemsize == out_itemsize ? nbytes : nbytes / itemsize * out_itemsize);
}

static enum result copy_locked(struct reading *reading, i64 locks, u8 *out, u64 from, u64 limit) {
    const struct region *region = reading->region;
    u64 stripe = from / region->stripe_nbytes, byte = region->lock + stripe * region->stripe_nbytes;
    reading->stripe = stripe;
    enum result result = smbox_lock(locks, byte);
    if (result != DONE)
        return result;
    if (load_acquire(&region->table[stripe].sequence) & SEQUENCE_OPEN)
        result = OPEN;
    else
        copy_piece(reading, out, from, limit - from);
    smbox_unlock(locks, byte);
    return result;
}

/* Read bytes [from, limit) of one stripe; after some torn tries under its lock. */
static enum result read_stripe(struct reading *reading, i64 locks, u8 *out, u64 from, u64 limit) {
    const struct region *region = reading->region;
    const word *sequence = &region->table[from / region->stripe_nbytes].sequence;
    int is_compared = region->consistency != WITHOUT_LOCKS;
    for (int tries = 0; tries < TORN_TRIES; tries++) {
        /* Acquire: the copy sees at least what this commit left. */
        u64 noted = load_acquire(sequence);
        if (noted & SEQUENCE_OPEN && is_compared)
            continue;
        copy_piece(reading, out, from, limit - from);
        /* The copy's loads stay before the second look: a writer that changed one of them has
         * opened the stripe before. */
        atomic_thread_fence(memory_order_acquire);
        if (!is_compared || load_relaxed(sequence) == noted)
            return DONE;
    }
    return copy_locked(reading, locks, out, from, limit);
}

static enum result read_range(struct reading *reading, i64 locks, u8 *out, u64 from, u64 limit,
                              u64 *done) {
    u64 stripe_nbytes = reading->region->stripe_nbytes, at = from;
    while (at < limit && at - from < CALL_NBYTES) {
        u64 end = smaller(limit, (at / stripe_nbytes + 1) * stripe_nbytes);
        enum result result = read_stripe(reading, locks, place(reading, out, at - from), at, end);
        if (result != DONE)
            return result;
        *done += end - at;
        at = end;
    }
    return DONE;
}

static enum result read_rows(struct reading *reading, i64 locks) {
    u64 row_out = reading->row_nbytes / smbox_itemsize(reading->region->dtype) *
                  smbox_itemsize(reading->operand);
    for (u64 row = reading->done; row < reading->count; row++) {
        u64 from = reading->first + (u64)reading->places[row] * reading->row_nbytes, done = 0;
        enum result result = read_range(reading, locks, reading->out + row * row_out, from,
                                        from + reading->row_nbytes, &done);
        if (result != DONE)
            return result;
        reading->done = row + 1;
    }
    return DONE;
}

static int is_good(const struct reading *reading) {
    const struct region *region = reading->region;
    u64 itemsize = smbox_itemsize(region->dtype);
    if (reading->operand != region->dtype &&
        (region->dtype != DTYPE_FLOAT32 || smbox_itemsize(reading->operand) != 2 ||
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

/* Goes on at reading->done, so that a caller that met BUSY or OPEN calls again. */
u64 smbox_read(struct reading *reading, int locks) {
    const struct region *region = reading->region;
    if (!is_good(reading))
        return reading->result = BAD_ORDER;
    if (load_acquire(&region->header->state) == REGION_FREED)
        return reading->result = FREED;
    enum result result;
    if (reading->places) {
        result = read_rows(reading, locks);
    } else {
        u8 *out = place(reading, reading->out, reading->done);
        result = read_range(reading, locks, out, reading->first + reading->done, reading->limit,
                            &reading->done);
    }
    if (load_acquire(&region->header->state) == REGION_FREED)
        result = FREED;
    return reading->result = result;
}
