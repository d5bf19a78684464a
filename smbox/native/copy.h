/* Copies of a region's bytes, for the reader, the commit and the kernels.
 *
 * x86-64 uses loops instead of memcpy. From 2 KiB to 1 MiB, glibc uses `rep movsb`, which is slower if
 * source and target have different offsets in their cache lines; and glibc writes past the caches
 * only in copies larger than a stripe.
 */
#ifndef SMBOX_COPY_H
#define SMBOX_COPY_H

#include "native.h"

#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>

enum { LINE_NBYTES = 64, VECTORS = 8, STEP_NBYTES = VECTORS * sizeof(__m128i) };

/* Copy the bytes before the target's first entire cache line, or everything if it is short. Returns
 * the number of bytes. */
static inline u64 copy_to_line(u8 *out, const u8 *from, u64 nbytes) {
    u64 count = nbytes < 2 * STEP_NBYTES ? nbytes : -(u64)out % LINE_NBYTES;
    memcpy(out, from, count);
    return count;
}

static inline void load_step(__m128i kept[], const u8 *from) {
    for (u64 i = 0; i < VECTORS; i++)
        kept[i] = _mm_loadu_si128((const __m128i_u *)from + i);
}

static inline void copy(u8 *out, const u8 *from, u64 nbytes) {
    u64 at = copy_to_line(out, from, nbytes);
    for (; at + STEP_NBYTES <= nbytes; at += STEP_NBYTES) {
        __m128i kept[VECTORS];
        load_step(kept, from + at);
        for (u64 i = 0; i < VECTORS; i++)
            _mm_store_si128((__m128i *)(out + at) + i, kept[i]);
    }
    memcpy(out + at, from + at, nbytes - at);
}

/* Copy past the caches: the target's lines are not loaded first, and do not displace other data. A
 * separate function: compilers turn both kinds of stores in one function into ordinary ones. */
static inline void copy_past_caches(u8 *out, const u8 *from, u64 nbytes) {
    enum { AHEAD_NBYTES = 4096 }; /* a page: the hardware prefetcher stops at its end */
    u64 at = copy_to_line(out, from, nbytes);
    for (; at + STEP_NBYTES <= nbytes; at += STEP_NBYTES) {
        __m128i kept[VECTORS];
        load_step(kept, from + at);
        /* T1: into the L2 cache. With NTA, a copy on an Intel Xeon took three times as long, and the
         * next change of the source by another core five times. */
        for (u64 line = 0; line < STEP_NBYTES; line += LINE_NBYTES)
            _mm_prefetch((const char *)from + at + line + AHEAD_NBYTES, _MM_HINT_T1);
        for (u64 i = 0; i < VECTORS; i++)
            _mm_stream_si128((__m128i *)(out + at) + i, kept[i]);
    }
    memcpy(out + at, from + at, nbytes - at);
    /* Streaming stores are unordered: a thread that learns of the copy must find all of it. */
    _mm_sfence();
}
#else
static inline void copy(u8 *out, const u8 *from, u64 nbytes) { memcpy(out, from, nbytes); }

/* C has no stores that bypass the caches. */
static inline void copy_past_caches(u8 *out, const u8 *from, u64 nbytes) {
    copy(out, from, nbytes);
}
#endif

#endif
