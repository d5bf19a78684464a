/* The kernels for every processor level, as one table. */
#include "copy.h"
#include "elements.h"

#include <math.h>

typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;

#define SCATTERED_replace_1 u8
#define SCATTERED_replace_2 u16
#define SCATTERED_replace_4 u32
#define SCATTERED_replace_8 u64
#define SCATTERED_sum_bool u8
#define SCATTERED_sum_u8 u8
#define SCATTERED_sum_u16 u16
#define SCATTERED_sum_u32 u32
#define SCATTERED_sum_u64 u64
#define SCATTERED_sum_f16 u16
#define SCATTERED_sum_bf16 u16
#define SCATTERED_sum_f32 float
#define SCATTERED_sum_f64 double

#define ALL_FLOATS                                                                               \
    DEFINE_FLOAT(f32, l_f32, float, same_f32, same_f32, l_f32, same_f32, same_f32)               \
    DEFINE_FLOAT(f64, l_f64, double, same_f64, same_f64, l_f64, same_f64, same_f64)              \
    DEFINE_FLOAT(f16, l_u16, float, widen_float16, narrow_float16, l_u16, widen_float16,         \
                 narrow_float16)                                                                 \
    DEFINE_FLOAT(bf16, l_u16, float, widen_bfloat16, narrow_bfloat16, l_u16, widen_bfloat16,     \
                 narrow_bfloat16)                                                                \
    DEFINE_FLOAT(f32_f16, l_f32, float, same_f32, same_f32, l_u16, widen_float16, narrow_float16) \
    DEFINE_FLOAT(f32_bf16, l_f32, float, same_f32, same_f32, l_u16, widen_bfloat16,              \
                 narrow_bfloat16)                                                                \
    DEFINE_PUT(f32_f16, l_f32, same_f32, l_u16, widen_float16)                                   \
    DEFINE_PUT(f32_bf16, l_f32, same_f32, l_u16, widen_bfloat16)                                 \
    DEFINE_SCALE(f32, l_f32, float, same_f32, same_f32)                                          \
    DEFINE_SCALE(f64, l_f64, double, same_f64, same_f64)                                         \
    DEFINE_SCALE(f16, l_u16, float, widen_float16, narrow_float16)                               \
    DEFINE_SCALE(bf16, l_u16, float, widen_bfloat16, narrow_bfloat16)

#define ALL_SCATTERS                                                                             \
    DEFINE_SCATTER(replace_1) DEFINE_SCATTER(replace_2)                                          \
    DEFINE_SCATTER(replace_4) DEFINE_SCATTER(replace_8)                                          \
    DEFINE_SCATTER(sum_bool) DEFINE_SCATTER(sum_u8) DEFINE_SCATTER(sum_u16)                      \
    DEFINE_SCATTER(sum_u32) DEFINE_SCATTER(sum_u64)                      \
    DEFINE_SCATTER(sum_f16) DEFINE_SCATTER(sum_bf16) DEFINE_SCATTER(sum_f32)                     \
    DEFINE_SCATTER(sum_f64)

#define ALL_DOTS                                                                                 \
    DEFINE_DOT(f16, l_u16, widen_float16) DEFINE_DOT(bf16, l_u16, widen_bfloat16)                \
    DEFINE_DOT(f32, l_f32, same_f32) DEFINE_DOT(f64, l_f64, same_f64)                            \
    static dot_fn *const LEVEL(dots)[DTYPES] = {                                                 \
        [DTYPE_FLOAT16] = LEVEL(dot_f16), [DTYPE_BFLOAT16] = LEVEL(dot_bf16),                    \
        [DTYPE_FLOAT32] = LEVEL(dot_f32), [DTYPE_FLOAT64] = LEVEL(dot_f64),                      \
    };

typedef double dot_fn(const u8 *left, const u8 *right, u64 count);

/* Types of region and operand in the table's columns. */
enum pair {
    PAIR_BOOL, PAIR_I8, PAIR_I16, PAIR_I32, PAIR_I64, PAIR_U8, PAIR_U16, PAIR_U32, PAIR_U64,
    PAIR_F16, PAIR_BF16, PAIR_F32, PAIR_F64, PAIR_F32_F16, PAIR_F32_BF16, PAIRS
};

/* Rows of the table. */
enum row {
    ROW_REPLACE, ROW_SUM, ROW_MIN, ROW_MAX, ROW_ELASTIC, ROW_ELASTIC_MOVED, ROW_ELASTIC_DELTA,
    ROW_COMPARE_SWAP, ROW_SCATTER_PUT, ROW_SCATTER_SUM, ROW_MOMENTUM, ROW_NESTEROV, ROW_ADAGRAD,
    ROW_ADAM, ROW_ARRIVE, ROW_WITHDRAW, ROW_SCALE, ROWS
};

#define WHOLE_COLUMN(pair, T, U, nbytes)                                                         \
    [ROW_REPLACE][pair] = LEVEL(replace_##nbytes), [ROW_SUM][pair] = LEVEL(sum_##U),             \
    [ROW_MIN][pair] = LEVEL(min_##T), [ROW_MAX][pair] = LEVEL(max_##T),                          \
    [ROW_COMPARE_SWAP][pair] = LEVEL(swap_##U), [ROW_SCALE][pair] = LEVEL(scale_##U),            \
    [ROW_SCATTER_PUT][pair] = LEVEL(scatter_replace_##nbytes),                                   \
    [ROW_SCATTER_SUM][pair] = LEVEL(scatter_sum_##U)

#define ARITHMETIC_COLUMN(pair, name)                                                            \
    [ROW_SUM][pair] = LEVEL(sum_##name), [ROW_MIN][pair] = LEVEL(min_##name),                    \
    [ROW_MAX][pair] = LEVEL(max_##name), [ROW_ELASTIC][pair] = LEVEL(elastic_##name),            \
    [ROW_ELASTIC_MOVED][pair] = LEVEL(elastic_moved_##name),                                     \
    [ROW_ELASTIC_DELTA][pair] = LEVEL(elastic_delta_##name),                                     \
    [ROW_MOMENTUM][pair] = LEVEL(momentum_##name),                                               \
    [ROW_NESTEROV][pair] = LEVEL(nesterov_##name),                                               \
    [ROW_ADAGRAD][pair] = LEVEL(adagrad_##name), [ROW_ADAM][pair] = LEVEL(adam_##name)

#define FLOAT_COLUMN(pair, name, nbytes)                                                         \
    ARITHMETIC_COLUMN(pair, name), [ROW_REPLACE][pair] = LEVEL(replace_##nbytes),                \
    [ROW_SCALE][pair] = LEVEL(scale_##name),                                                     \
    [ROW_SCATTER_PUT][pair] = LEVEL(scatter_replace_##nbytes),                                   \
    [ROW_SCATTER_SUM][pair] = LEVEL(scatter_sum_##name)

#define NARROW_COLUMN(pair, name)                                                                \
    ARITHMETIC_COLUMN(pair, name), [ROW_REPLACE][pair] = LEVEL(put_##name)

#define DEFINE_TABLE                                                                             \
    static kernel_fn *const LEVEL(table)[ROWS][PAIRS] = {                                        \
        [ROW_REPLACE][PAIR_BOOL] = LEVEL(replace_1),                                             \
        [ROW_SUM][PAIR_BOOL] = LEVEL(sum_bool),                                                  \
        [ROW_MIN][PAIR_BOOL] = LEVEL(min_bool),                                                  \
        [ROW_MAX][PAIR_BOOL] = LEVEL(sum_bool),                                                  \
        [ROW_SCATTER_PUT][PAIR_BOOL] = LEVEL(scatter_replace_1),                                 \
        [ROW_SCATTER_SUM][PAIR_BOOL] = LEVEL(scatter_sum_bool),                                  \
        WHOLE_COLUMN(PAIR_I8, i8, u8, 1),                                                        \
        WHOLE_COLUMN(PAIR_I16, i16, u16, 2),                                                     \
        WHOLE_COLUMN(PAIR_I32, i32, u32, 4),                                                     \
        WHOLE_COLUMN(PAIR_I64, i64, u64, 8),                                                     \
        WHOLE_COLUMN(PAIR_U8, u8, u8, 1),                                                        \
        WHOLE_COLUMN(PAIR_U16, u16, u16, 2),                                                     \
        WHOLE_COLUMN(PAIR_U32, u32, u32, 4),                                                     \
        WHOLE_COLUMN(PAIR_U64, u64, u64, 8),                                                     \
        FLOAT_COLUMN(PAIR_F16, f16, 2),                                                          \
        FLOAT_COLUMN(PAIR_BF16, bf16, 2),                                                        \
        FLOAT_COLUMN(PAIR_F32, f32, 4),                                                          \
        FLOAT_COLUMN(PAIR_F64, f64, 8),                                                          \
        NARROW_COLUMN(PAIR_F32_F16, f32_f16),                                                    \
        NARROW_COLUMN(PAIR_F32_BF16, f32_bf16),                                                  \
        [ROW_ARRIVE][PAIR_U64] = arrive,                                                         \
        [ROW_WITHDRAW][PAIR_U64] = withdraw,                                                     \
    };

/* ---- a barrier's words: generation, arrived, parties, then the members that have arrived --------- */

enum { GENERATION, ARRIVED, PARTIES, MEMBERS };

/* The member joins; the last one opens the barrier. A member counts once. */
static void arrive(u8 *const at[], const struct operation *operation) {
    u64 *words = (void *)at[0], arrived = words[ARRIVED], member;
    memcpy(&member, operation->source, 8);
    if (words[PARTIES] != operation->count - MEMBERS || arrived >= words[PARTIES])
        return; /* damaged words stay as they are */
    for (u64 i = 0; i < arrived; i++)
        if (words[MEMBERS + i] == member)
            return;
    words[MEMBERS + arrived++] = member;
    if (arrived == words[PARTIES]) {
        words[GENERATION]++;
        arrived = 0;
    }
    words[ARRIVED] = arrived;
}

/* Take back an arrival at the present generation. */
static void withdraw(u8 *const at[], const struct operation *operation) {
    u64 *words = (void *)at[0], arrived = smaller(words[ARRIVED], operation->count - MEMBERS);
    u64 member;
    memcpy(&member, operation->source, 8);
    for (u64 i = 0; i < arrived; i++)
        if (words[MEMBERS + i] == member) {
            words[MEMBERS + i] = words[MEMBERS + arrived - 1];
            words[ARRIVED] = arrived - 1;
            return;
        }
}

/* ---- one copy of the kernels for each level --------------------------------------------------- */

#define LEVEL(name) name##_plain
#include "kernels.h"
ALL_FLOATS ALL_SCATTERS ALL_DOTS DEFINE_TABLE
#undef LEVEL

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define LEVEL(name) name##_avx2
#include "kernels.h"
ALL_FLOATS ALL_SCATTERS ALL_DOTS DEFINE_TABLE
#undef LEVEL
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
#define table_avx2 table_plain
#define dots_avx2 dots_plain
#endif

/* ---- choosing -------------------------------------------------------------------------------- */

static u64 level; /* of this processor; the only variable that is not the caller's */

static u64 highest_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? 1 : 0;
#else
    return 0;
#endif
}

u64 smbox_level(u64 wanted) {
    level = smaller(wanted, highest_level());
    return level;
}

u64 smbox_itemsize(u64 dtype) {
    static const u8 sizes[DTYPES] = {1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
    return sizes[dtype < DTYPES ? dtype : 0];
}

static u64 pair_of(u64 dtype, u64 operand) {
    if (dtype == operand && dtype >= DTYPE_BOOL && dtype < DTYPES)
        return dtype - DTYPE_BOOL;
    if (dtype == DTYPE_FLOAT32 && operand == DTYPE_FLOAT16)
        return PAIR_F32_F16;
    if (dtype == DTYPE_FLOAT32 && operand == DTYPE_BFLOAT16)
        return PAIR_F32_BF16;
    return PAIRS;
}

static u64 row_of(u64 kernel, u64 back) {
    switch (kernel) {
    case REPLACE: return ROW_REPLACE;
    case SUM: return ROW_SUM;
    case MIN: return ROW_MIN;
    case MAX: return ROW_MAX;
    case ELASTIC:
        return back == BACK_MOVED   ? ROW_ELASTIC_MOVED
               : back == BACK_DELTA ? ROW_ELASTIC_DELTA
                                    : ROW_ELASTIC;
    case COMPARE_SWAP: return ROW_COMPARE_SWAP;
    case ARRIVE: return ROW_ARRIVE;
    case WITHDRAW: return ROW_WITHDRAW;
    case SCATTER_PUT: return ROW_SCATTER_PUT;
    case SCATTER_SUM: return ROW_SCATTER_SUM;
    case MOMENTUM: return ROW_MOMENTUM;
    case NESTEROV: return ROW_NESTEROV;
    case ADAGRAD: return ROW_ADAGRAD;
    case ADAM: return ROW_ADAM;
    case SCALE: return ROW_SCALE;
    default: return ROWS;
    }
}

kernel_fn *smbox_kernel(u64 kernel, u64 dtype, u64 operand, u64 back) {
    u64 row = row_of(kernel, back), pair = pair_of(dtype, operand);
    if (row == ROWS || pair == PAIRS)
        return NULL;
    return level ? table_avx2[row][pair] : table_plain[row][pair];
}

u64 smbox_dot(const u8 *left, const u8 *right, u64 count, u64 dtype, double *sum) {
    dot_fn *dot = dtype < DTYPES ? (level ? dots_avx2 : dots_plain)[dtype] : NULL;
    if (!dot)
        return BAD_ORDER;
    *sum = dot(left, right, count);
    return DONE;
}

/* float32 to the narrower type that a reader asked for. */
void smbox_narrow(u8 *out, const u8 *data, u64 count, u64 dtype, u64 operand) {
    const l_f32 *from = (const void *)data;
    l_u16 *to = (void *)out;
    (void)dtype;
    if (operand == DTYPE_BFLOAT16)
        for (u64 i = 0; i < count; i++)
            to[i] = narrow_bfloat16(from[i]);
    else
        for (u64 i = 0; i < count; i++)
            to[i] = narrow_float16(from[i]);
}

/* A commit's kernel on private memory: it also computes c, which nobody wants. */
u64 smbox_moved(const u8 *old, const u8 *source, u8 *out, u64 count, u64 scale, u64 operand) {
    enum { BLOCK = 1024 };
    float center[BLOCK];
    u8 *const at[EXTENTS_MAX] = {(u8 *)center};
    u64 itemsize = smbox_itemsize(operand);
    struct operation operation = {.back_kind = BACK_MOVED};
    kernel_fn *kernel = smbox_kernel(ELASTIC, DTYPE_FLOAT32, operand, BACK_MOVED);
    if (!kernel)
        return BAD_ORDER;
    memcpy(&operation.scale.real, &scale, sizeof scale);
    for (u64 done = 0; done < count; done += BLOCK) {
        operation.count = smaller(BLOCK, count - done);
        operation.source = source + done * itemsize;
        operation.back = out + done * itemsize;
        memcpy(center, old + done * sizeof *center, operation.count * sizeof *center);
        kernel(at, &operation);
    }
    return DONE;
}

/* ---- facts -------------------------------------------------------------------------------------- */

#define AT(kind, member) offsetof(struct kind, member)
const u64 smbox_layout[] = {
    SMBOX_FORMAT,
    sizeof(struct stripe), AT(stripe, sequence), AT(stripe, writer),
    sizeof(struct region_header), AT(region_header, magic), AT(region_header, format),
    AT(region_header, state),
    sizeof(struct slot), AT(slot, magic), AT(slot, format), AT(slot, id), AT(slot, pid),
    AT(slot, pid_started), AT(slot, state), AT(slot, kernel), AT(slot, stripe), AT(slot, first),
    AT(slot, limit), AT(slot, progress), AT(slot, extents), AT(slot, region), AT(slot, channel),
    AT(slot, serial), AT(slot, number), AT(slot, ring), AT(slot, ring_offset),
    sizeof(struct channel_row), AT(channel_row, client_low), AT(channel_row, client_high),
    AT(channel_row, channel), AT(channel_row, applied), AT(channel_row, used),
    AT(channel_row, generation), AT(channel_row, serial),
    sizeof(struct ring_entry), AT(ring_entry, number), AT(ring_entry, nbytes),
    sizeof(struct region), AT(region, header), AT(region, table), AT(region, data),
    AT(region, nbytes), AT(region, address), AT(region, lock), AT(region, stripe_nbytes),
    AT(region, dtype), AT(region, consistency),
    sizeof(struct writer), AT(writer, slot), AT(writer, undo), AT(writer, locks),
    AT(writer, block_nbytes),
    sizeof(struct channel), AT(channel, row), AT(channel, index), AT(channel, ring),
    AT(channel, ring_base), AT(channel, ring_offset), AT(channel, entry_nbytes),
    sizeof(struct order), AT(order, kernel), AT(order, operand), AT(order, back),
    AT(order, extents), AT(order, region), AT(order, first), AT(order, limit), AT(order, source),
    AT(order, source_nbytes), AT(order, scale), AT(order, parameters), AT(order, back_to),
    AT(order, channel), AT(order, number), AT(order, done), AT(order, result), AT(order, met),
    AT(order, stripe),
    sizeof(struct reading), AT(reading, region), AT(reading, first), AT(reading, limit),
    AT(reading, places), AT(reading, count), AT(reading, row_nbytes), AT(reading, out),
    AT(reading, operand), AT(reading, done), AT(reading, result), AT(reading, stripe),
    RING_ENTRIES, EXTENTS_MAX, SEQUENCE_OPEN, SEQUENCE_UNDONE, SEQUENCE_UNDONE_MASK,
    SEQUENCE_COMMIT,
    SLOT_FREE, SLOT_ARMED, SLOT_COMMITTED, SLOT_STATE, SLOT_COMMITS, REGION_FREED, STRIPE_BY_STRIPE,
    WITHOUT_LOCKS,
    DTYPE_BOOL, DTYPE_INT8, DTYPE_INT16, DTYPE_INT32, DTYPE_INT64, DTYPE_UINT8, DTYPE_UINT16,
    DTYPE_UINT32, DTYPE_UINT64, DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_FLOAT32, DTYPE_FLOAT64,
    REPLACE, SUM, MIN, MAX, ELASTIC, COMPARE_SWAP, ARRIVE, WITHDRAW, SCATTER_PUT, SCATTER_SUM,
    SCALE, MOMENTUM, NESTEROV, ADAGRAD, ADAM,
    BACK_NOTHING, BACK_MOVED, BACK_DELTA, BACK_OLD, BACK_NEW,
    DONE, BUSY, OPEN, FREED, BAD_ORDER, LOCK_FAILED,
};
