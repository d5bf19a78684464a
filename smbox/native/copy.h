/* The copy of a region's bytes: reader, commit and kernels call it.
 *
 * On x86-64 it is a loop of our own. For 2 KiB to 1 MiB glibc takes `rep movsb`, which is slower
 * where source and target begin at different bytes of a cache line; and no call for one stripe is
 * so large to glibc that it would write past the caches.
 */
#ifndef SMBOX_COPY_H
#define SMBOX_COPY_H

#include "native.h"

#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>

enum { LINE_NBYTES = 64, VECTORS = 8, STEP_NBYTES = VECTORS * sizeof(__m128i) };

/* Copy what lies before the target's first whole line, or all of a few bytes; how many. */
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

/* Copy, and leave the caches to other data: the target's lines are not read first, and whoever uses
 * them next reads them from memory. A function of its own: a compiler that meets both kinds of
 * stores in one makes them ordinary ones. */
static inline void copy_past_caches(u8 *out, const u8 *from, u64 nbytes) {
    enum { AHEAD_NBYTES = 4096 }; /* a page: the processor's own prefetching stops at its end */
    u64 at = copy_to_line(out, from, nbytes);
    for (; at + STEP_NBYTES <= nbytes; at += STEP_NBYTES) {
        __m128i kept[VECTORS];
        load_step(kept, from + at);
        /* Into the second cache: with NTA a copy took three times as long on an Intel Xeon, and the
         * next change of the source by another core five times. */
        for (u64 line = 0; line < STEP_NBYTES; line += LINE_NBYTES)
            _mm_prefetch((const char *)from + at + line + AHEAD_NBYTES, _MM_HINT_T1);
        for (u64 i = 0; i < VECTORS; i++)
            _mm_stream_si128((__m128i *)(out + at) + i, kept[i]);
    }
    memcpy(out + at, from + at, nbytes - at);
    /* A streamed store is ordered with no other: whoever learns of the copy must find all of it. */
    _mm_sfence();
}
#else
static inline void copy(u8 *out, const u8 *from, u64 nbytes) { memcpy(out, from, nbytes); }

/* C has no store past the caches. */
static inline void copy_past_caches(u8 *out, const u8 *from, u64 nbytes) {
    copy(out, from, nbytes);
}
#endif

#endif
