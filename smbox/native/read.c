/* The one reader: no copy ever holds half of a commit.
 *
 * A seqlock per stripe (Boehm, "Can seqlocks get along with programming language memory
 * models?", MSPC 2012): note the word, copy, look again; after some torn tries, take the lock.
 */
#include "native.h"

#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { TORN_TRIES = 3, PAGE = 4096, LINE = 64, SIDE_BY_SIDE = 4 };

/* From 64 MiB on, copies that leave the caches alone are half as fast again; libc's memcpy does
 * the same inside one large copy, but no stripe is large to it. */
#define STREAM_FROM ((u64)64 << 20)

#if defined(__x86_64__)
static void stream_line(u8 *out, const u8 *data) {
    for (u64 at = 0; at < LINE; at += 16)
        _mm_stream_si128((__m128i *)(void *)(out + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(data + at)));
}

/* Four pages side by side: alone, each would wait for its address translation. */
static void stream(u8 *out, const u8 *data, u64 nbytes) {
    u64 head = smaller(nbytes, (LINE - (uintptr_t)out % LINE) % LINE), at = head;
    memcpy(out, data, head);
    for (; at + SIDE_BY_SIDE * PAGE <= nbytes; at += SIDE_BY_SIDE * PAGE)
        for (u64 line = at; line < at + PAGE; line += LINE)
            for (u64 page = 0; page < SIDE_BY_SIDE; page++)
                stream_line(out + line + page * PAGE, data + line + page * PAGE);
    for (; at + LINE <= nbytes; at += LINE)
        stream_line(out + at, data + at);
    memcpy(out + at, data + at, nbytes - at);
    _mm_sfence();
}
#else
static void stream(u8 *out, const u8 *data, u64 nbytes) { memcpy(out, data, nbytes); }
#endif

/* What is read in one call at most, so that Ctrl-C and timeouts come through. */
#define CALL_NBYTES ((u64)64 << 20)

/* Copy a piece to its place in ``out``, in the type that the caller wants. */
static void copy(const struct reading *reading, u8 *out, u64 from, u64 nbytes) {
    const struct region *region = reading->region;
    if (reading->operand != region->dtype)
        smbox_narrow(out, region->data + from, nbytes / smbox_itemsize(region->dtype),
                     region->dtype, reading->operand);
    else if (!reading->places && reading->limit - reading->first >= STREAM_FROM)
        stream(out, region->data + from, nbytes);
    else
        memcpy(out, region->data + from, nbytes);
}

static enum result copy_locked(const struct reading *reading, i64 locks, u64 stripe, u8 *out,
                               u64 from, u64 nbytes) {
    const struct region *region = reading->region;
    u64 byte = region->lock + stripe * region->stripe_nbytes;
    enum result result = smbox_lock(locks, byte);
    if (result != DONE)
        return result;
    if (load_acquire(&region->table[stripe].sequence) & SEQUENCE_OPEN)
        result = OPEN;
    else
        copy(reading, out, from, nbytes);
    smbox_unlock(locks, byte);
    return result;
}

static enum result read_piece(struct reading *reading, i64 locks, u8 *out, u64 from, u64 nbytes) {
    const struct region *region = reading->region;
    u64 stripe = from / region->stripe_nbytes;
    const word *sequence = &region->table[stripe].sequence;
    reading->stripe = stripe;
    for (int tries = 0; tries < TORN_TRIES; tries++) {
        /* Acquire: the copy sees at least what this commit left. */
        u64 before = load_acquire(sequence);
        if (before & SEQUENCE_OPEN && region->consistency != WITHOUT_LOCKS)
            continue;
        copy(reading, out, from, nbytes);
        if (region->consistency == WITHOUT_LOCKS)
            return DONE;
        /* The copy's loads stay before the second look: a writer that changed one of them has
         * opened the stripe before. */
        atomic_thread_fence(memory_order_acquire);
        if (load_relaxed(sequence) == before)
            return DONE;
    }
    return copy_locked(reading, locks, stripe, out, from, nbytes);
}

/* Read bytes [from, limit) into ``out``, stripe by stripe; *done counts those that are there. */
static enum result read_range(struct reading *reading, i64 locks, u8 *out, u64 from, u64 limit,
                              u64 *done) {
    const struct region *region = reading->region;
    u64 itemsize = smbox_itemsize(region->dtype), out_itemsize = smbox_itemsize(reading->operand);
    for (u64 at = from, pause = from + CALL_NBYTES; at < limit && at < pause;) {
        u64 end = smaller(limit, (at / region->stripe_nbytes + 1) * region->stripe_nbytes);
        u8 *to = out + (itemsize == out_itemsize ? at - from : (at - from) / itemsize * out_itemsize);
        enum result result = read_piece(reading, locks, to, at, end - at);
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
u64 smbox_read(struct reading *reading, i64 locks) {
    const struct region *region = reading->region;
    if (!is_good(reading))
        return reading->result = BAD_ORDER;
    if (load_acquire(&region->header->state) == REGION_FREED)
        return reading->result = FREED;
    enum result result;
    if (reading->places) {
        result = read_rows(reading, locks);
    } else {
        u64 itemsize = smbox_itemsize(region->dtype);
        u8 *out = reading->out + (reading->operand == region->dtype
                                      ? reading->done
                                      : reading->done / itemsize * smbox_itemsize(reading->operand));
        result = read_range(reading, locks, out, reading->first + reading->done, reading->limit,
                            &reading->done);
    }
    if (load_acquire(&region->header->state) == REGION_FREED)
        result = FREED;
    return reading->result = result;
}
