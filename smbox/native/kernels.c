/* Element types, the kernels of barriers and of each processor level, and the choice of the level. */
#include "copy.h"

typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;

/* ---- element types: storage, the type that computes, and conversion between the two ---------- */

/* Operands have any alignment (ZeroMQ's payloads) and alias bytes. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef u8 LOOSE l_u8;
typedef u16 LOOSE l_u16;
typedef u32 LOOSE l_u32;
typedef u64 LOOSE l_u64;
typedef i8 LOOSE l_i8;
typedef i16 LOOSE l_i16;
typedef i32 LOOSE l_i32;
typedef i64 LOOSE l_i64;
typedef u16 LOOSE l_f16;
typedef u16 LOOSE l_bf16;
typedef float LOOSE l_f32;
typedef double LOOSE l_f64;

static inline float float_of(u32 bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline u32 bits_of(float value) {
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* bfloat16 is the upper half of a float32. Rounds to nearest, ties to even. With a mask in place of
 * a choice, compilers shift and pack each element once: half as many instructions. */
static inline float widen_bf16(u16 half) { return float_of((u32)half << 16); }
static inline u16 narrow_bf16(float value) {
    u32 bits = bits_of(value), is_nan = 0 - (u32)(value != value);
    u32 rounded = bits + 0x7fff + ((bits >> 16) & 1), nan = bits | 0x400000;
    return (u16)(((nan & is_nan) | (rounded & ~is_nan)) >> 16);
}

/* float16 (IEEE 754 binary16) in integer code: not every compiler has a type for it. */
static inline float widen_f16(u16 half) {
    u32 sign = (u32)(half & 0x8000) << 16, magnitude = (u32)(half & 0x7fff) << 13;
    u32 normal = magnitude + ((u32)112 << 23);
    u32 special = magnitude + ((u32)224 << 23);
    u32 denormal = bits_of(float_of(magnitude + ((u32)113 << 23)) - float_of((u32)113 << 23));
    u32 bits = magnitude >= (u32)0x1f << 23 ? special : normal;
    bits = magnitude < (u32)1 << 23 ? denormal : bits;
    return float_of(bits | sign);
}
static inline u16 narrow_f16(float value) {
    u32 bits = bits_of(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    u32 special = magnitude > (u32)0x7f800000 ? 0x7e00 : 0x7c00;
    /* Adding 0.5 shifts the digits of a denormal to where float32 arithmetic rounds them. */
    u32 denormal = bits_of(float_of(magnitude) + float_of((u32)126 << 23)) - ((u32)126 << 23);
    u32 normal = (magnitude - ((u32)112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    u32 half = magnitude < (u32)113 << 23 ? denormal : normal;
    half = magnitude >= (u32)143 << 23 ? special : half;
    return (u16)(half | sign);
}

static inline float widen_f32(float value) { return value; }
static inline float narrow_f32(float value) { return value; }
static inline double widen_f64(double value) { return value; }
static inline double narrow_f64(double value) { return value; }

/* ---- the table of kernels -------------------------------------------------------------------- */

typedef double dot_fn(const u8 *left, const u8 *right, u64 count);

/* The table's columns: the element types, then the narrower operands of a float32 region. */
enum { FLOAT32_FLOAT16 = DTYPES, FLOAT32_BFLOAT16, COLUMNS };

/* The table's rows: the numbers of the kernels, then ELASTIC with each output. */
enum { ELASTIC_MOVED = ADAM + 1, ELASTIC_DELTA, ROWS };

/* ---- barriers: generation, number of arrived members, parties, then the arrived members ---------- */

enum { GENERATION, ARRIVED, PARTIES, MEMBERS };

/* Add a member; the last one opens the barrier. A member counts once. */
static void arrive(u8 *const at[], const struct operation *operation) {
    u64 *words = (void *)at[0], arrived = words[ARRIVED], member;
    memcpy(&member, operation->source, 8);
    if (words[PARTIES] != operation->count - MEMBERS || arrived >= words[PARTIES])
        return; /* damaged words stay unchanged */
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

/* Remove a member that has arrived at the current generation. */
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
#define TARGET
#include "kernels.h"
#undef LEVEL
#undef TARGET

#if defined(__x86_64__)
#define LEVEL(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#include "kernels.h"
#else
#define table_avx2 table_plain
#define dots_avx2 dots_plain
#define narrow_avx2 narrow_plain
#endif

/* ---- choice of the kernels ------------------------------------------------------------------- */

static u64 level; /* the chosen processor level; the library's only variable */

static u64 highest_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? 1 : 0;
#else
    return 0;
#endif
}

const char *const smbox_build_compiler = SMBOX_BUILD_COMPILER;

u64 smbox_level(u64 wanted) {
    level = smaller(wanted, highest_level());
    return level;
}

static u64 row_of(u64 kernel, u64 output) {
    if (kernel == ELASTIC && output == OUTPUT_MOVED)
        return ELASTIC_MOVED;
    if (kernel == ELASTIC && output == OUTPUT_DELTA)
        return ELASTIC_DELTA;
    if (kernel == SCATTER_PUT || kernel == SCATTER_SUM)
        return kernel == SCATTER_PUT ? REPLACE : SUM; /* of each row */
    return kernel <= ADAM ? kernel : 0; /* row and column 0 are empty */
}

static u64 column_of(u64 dtype, u64 operand) {
    if (dtype == DTYPE_FLOAT32 && operand == DTYPE_FLOAT16)
        return FLOAT32_FLOAT16;
    if (dtype == DTYPE_FLOAT32 && operand == DTYPE_BFLOAT16)
        return FLOAT32_BFLOAT16;
    return dtype == operand && dtype < DTYPES ? dtype : 0;
}

kernel_fn *smbox_kernel(u64 kernel, u64 dtype, u64 operand, u64 output) {
    u64 row = row_of(kernel, output), column = column_of(dtype, operand);
    return level ? table_avx2[row][column] : table_plain[row][column];
}

u64 smbox_dot(const u8 *left, const u8 *right, u64 count, u64 dtype, double *sum) {
    dot_fn *dot = dtype < DTYPES ? (level ? dots_avx2 : dots_plain)[dtype] : NULL;
    if (!dot)
        return BAD_ORDER;
    *sum = dot(left, right, count);
    return DONE;
}

void smbox_narrow(u8 *out, const u8 *data, u64 count, u64 operand) {
    (level ? narrow_avx2 : narrow_plain)(out, data, count, operand);
}
