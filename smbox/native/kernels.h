/* The kernels of one processor level, and their table. Included once for each level: LEVEL adds its
 * name to theirs, and TARGET allows its instructions.
 *
 *     c the region's elements, x the operand, s the scale, d the change
 *
 *     REPLACE c = x        MIN c = min(c, x)      ELASTIC d = s (x - c); c += d
 *     SUM     c += s x     MAX c = max(c, x)      SCALE   c = s c; no operand
 *
 * Compiled without contraction: a node and a worker compute the same bits of d.
 */

/* x and the output may be the same array: no element depends on another one. Two vectors an iteration:
 * with one, gcc's sum of arrays larger than the caches is a fifth slower. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 2")
#endif
#define EACH(at, count) INDEPENDENT for (u64 at = 0, end = (count); at < end; at++)

#define KERNEL(name) TARGET static void LEVEL(name)(u8 *const at[], const struct operation *operation)

/* Declares c, of the region's type, and x, of the operand's. */
#define ELEMENTS(C, X)                                                                           \
    l_##C *c = (void *)at[0];                                                                    \
    const l_##X *x = (const void *)operation->source

/* ---- the same bytes ------------------------------------------------------------------------ */

KERNEL(replace) { copy(at[0], operation->source, operation->nbytes); }

/* ---- integers: T the element, U the type that computes ----------------------------------------- */

#define DEFINE_WRAPPING(T, U)                                                                    \
    KERNEL(sum_##T) {                                                                            \
        ELEMENTS(T, T);                                                                          \
        U s = (U)operation->scale.whole;                                                         \
        EACH(i, operation->count) c[i] = (T)((U)c[i] + s * (U)x[i]);                             \
    }                                                                                            \
    KERNEL(scale_##T) {                                                                          \
        l_##T *c = (void *)at[0];                                                                \
        U s = (U)operation->scale.whole;                                                         \
        EACH(i, operation->count) c[i] = (T)(s * (U)c[i]);                                       \
    }                                                                                            \
    KERNEL(swap_##T) {                                                                           \
        ELEMENTS(T, T);                                                                          \
        c[0] = c[0] == x[0] ? x[1] : c[0];                                                       \
    }
/* Signed sums and products wrap to the same bits. */
DEFINE_WRAPPING(u8, u32)
DEFINE_WRAPPING(u16, u32)
DEFINE_WRAPPING(u32, u32)
DEFINE_WRAPPING(u64, u64)

#define DEFINE_ORDER(name, T, ORDER)                                                             \
    KERNEL(name##_##T) {                                                                         \
        ELEMENTS(T, T);                                                                          \
        EACH(i, operation->count) c[i] = x[i] ORDER c[i] ? x[i] : c[i];                          \
    }
#define DEFINE_ORDERED(T) DEFINE_ORDER(min, T, <) DEFINE_ORDER(max, T, >)
DEFINE_ORDERED(i8)
DEFINE_ORDERED(i16)
DEFINE_ORDERED(i32)
DEFINE_ORDERED(i64)
DEFINE_ORDERED(u8)
DEFINE_ORDERED(u16)
DEFINE_ORDERED(u32)
DEFINE_ORDERED(u64)

KERNEL(sum_bool) {
    u8 *c = at[0];
    EACH(i, operation->count) c[i] = (u8)((c[i] | operation->source[i]) != 0);
}
KERNEL(min_bool) {
    u8 *c = at[0];
    EACH(i, operation->count) c[i] = (u8)(c[i] != 0 && operation->source[i] != 0);
}

/* ---- floats: C the element, X the operand, F the type that computes ----------------------------- */

/* a <= b and a >= b are false for NaN: it propagates, as numpy's does. */
#define DEFINE_EXTREME(kernel, C, X, F, ORDER)                                                   \
    KERNEL(kernel) {                                                                             \
        ELEMENTS(C, X);                                                                          \
        EACH(i, operation->count) {                                                              \
            F a = widen_##C(c[i]), b = widen_##X(x[i]);                                          \
            c[i] = narrow_##C(a ORDER b || a != a ? a : b);                                      \
        }                                                                                        \
    }

/* OUT: the type of the output; OUTPUT: what is stored there, beside the change. */
#define DEFINE_ELASTIC(kernel, C, X, F, OUT, OUTPUT)                                             \
    KERNEL(kernel) {                                                                             \
        ELEMENTS(C, X);                                                                          \
        l_##OUT *out = (void *)operation->output_to;                                             \
        F s = (F)operation->scale.real;                                                          \
        EACH(i, operation->count) {                                                              \
            F a = widen_##C(c[i]), b = widen_##X(x[i]), d = s * (b - a);                         \
            c[i] = narrow_##C(a + d);                                                            \
            OUTPUT;                                                                              \
        }                                                                                        \
    }

/* Optimizers, in torch.optim's order of operations. STEP: what lr multiplies. */
#define DEFINE_MOMENTUM(kernel, C, X, F, STEP)                                                   \
    KERNEL(kernel) {                                                                             \
        ELEMENTS(C, X);                                                                          \
        l_##C *m = (void *)at[1];                                                                \
        F lr = (F)operation->parameters[0], mu = (F)operation->parameters[1];                    \
        EACH(i, operation->count) {                                                              \
            F g = widen_##X(x[i]), v = widen_##C(m[i]) * mu + g;                                 \
            m[i] = narrow_##C(v);                                                                \
            c[i] = narrow_##C(widen_##C(c[i]) - lr * (STEP));                                    \
        }                                                                                        \
    }

#define DEFINE_FLOAT(name, C, X, F)                                                              \
    KERNEL(sum_##name) {                                                                         \
        ELEMENTS(C, X);                                                                          \
        F s = (F)operation->scale.real;                                                          \
        EACH(i, operation->count) c[i] = narrow_##C(widen_##C(c[i]) + s * widen_##X(x[i]));      \
    }                                                                                            \
    DEFINE_EXTREME(min_##name, C, X, F, <=)                                                      \
    DEFINE_EXTREME(max_##name, C, X, F, >=)                                                      \
    DEFINE_ELASTIC(elastic_##name, C, X, F, u8, (void)out)                                       \
    DEFINE_ELASTIC(elastic_moved_##name, C, X, F, X, out[i] = narrow_##X(b - d))                 \
    DEFINE_ELASTIC(elastic_delta_##name, C, X, F, C, out[i] = narrow_##C(d))                     \
    DEFINE_MOMENTUM(momentum_##name, C, X, F, v)                                                 \
    DEFINE_MOMENTUM(nesterov_##name, C, X, F, g + mu * v)                                        \
    KERNEL(adagrad_##name) {                                                                     \
        ELEMENTS(C, X);                                                                          \
        l_##C *squares = (void *)at[1];                                                          \
        F lr = (F)operation->parameters[0], eps = (F)operation->parameters[1];                   \
        EACH(i, operation->count) {                                                              \
            F g = widen_##X(x[i]), sum = widen_##C(squares[i]) + g * g;                          \
            squares[i] = narrow_##C(sum);                                                        \
            c[i] = narrow_##C(widen_##C(c[i]) - lr * g / (ROOT_##F(sum) + eps));                 \
        }                                                                                        \
    }                                                                                            \
    KERNEL(adam_##name) {                                                                        \
        ELEMENTS(C, X);                                                                          \
        l_##C *mean = (void *)at[1], *squares = (void *)at[2];                                   \
        const double *p = operation->parameters; /* as commit.c prepares them */                 \
        F b1 = (F)p[0], b2 = (F)p[1], c1 = (F)(1 - p[0]), c2 = (F)(1 - p[1]);                    \
        F eps = (F)p[2], step = (F)p[3], root = (F)p[4];                                         \
        EACH(i, operation->count) {                                                              \
            F g = widen_##X(x[i]);                                                               \
            F m = widen_##C(mean[i]) * b1 + g * c1, v = widen_##C(squares[i]) * b2 + g * g * c2; \
            mean[i] = narrow_##C(m);                                                             \
            squares[i] = narrow_##C(v);                                                          \
            c[i] = narrow_##C(widen_##C(c[i]) - step * m / (ROOT_##F(v) / root + eps));          \
        }                                                                                        \
    }

/* REPLACE with a narrower operand. */
#define DEFINE_PUT(name, C, X)                                                                   \
    KERNEL(put_##name) {                                                                         \
        ELEMENTS(C, X);                                                                          \
        EACH(i, operation->count) c[i] = narrow_##C(widen_##X(x[i]));                            \
    }

#define DEFINE_SCALE(C, F)                                                                       \
    KERNEL(scale_##C) {                                                                          \
        l_##C *c = (void *)at[0];                                                                \
        F s = (F)operation->scale.real;                                                          \
        EACH(i, operation->count) c[i] = narrow_##C(s * widen_##C(c[i]));                        \
    }

#define ROOT_float(value) __builtin_sqrtf(value)
#define ROOT_double(value) __builtin_sqrt(value)

DEFINE_FLOAT(f32, f32, f32, float) DEFINE_FLOAT(f64, f64, f64, double)
DEFINE_FLOAT(f16, f16, f16, float) DEFINE_FLOAT(bf16, bf16, bf16, float)
DEFINE_FLOAT(f32_f16, f32, f16, float) DEFINE_FLOAT(f32_bf16, f32, bf16, float)
DEFINE_PUT(f32_f16, f32, f16) DEFINE_PUT(f32_bf16, f32, bf16)
DEFINE_SCALE(f32, float) DEFINE_SCALE(f64, double) DEFINE_SCALE(f16, float) DEFINE_SCALE(bf16, float)

/* ---- sums of products ---------------------------------------------------------------------- */

/* Sum k takes the products k, k + 8, k + 16, ...; then the eight sums are added. Vectors of any
 * length can keep this order, so every processor computes the same bits. */
#define DEFINE_DOT(X)                                                                            \
    TARGET static double LEVEL(dot_##X)(const u8 *left, const u8 *right, u64 count) {            \
        const l_##X *a = (const void *)left, *b = (const void *)right;                           \
        double sums[8] = {0};                                                                    \
        u64 at = 0;                                                                              \
        for (; at + 8 <= count; at += 8)                                                         \
            for (u64 i = 0; i < 8; i++)                                                          \
                sums[i] += (double)widen_##X(a[at + i]) * (double)widen_##X(b[at + i]);          \
        for (u64 i = 0; at + i < count; i++)                                                     \
            sums[i] += (double)widen_##X(a[at + i]) * (double)widen_##X(b[at + i]);              \
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +                                     \
               ((sums[4] + sums[5]) + (sums[6] + sums[7]));                                      \
    }

DEFINE_DOT(f16) DEFINE_DOT(bf16) DEFINE_DOT(f32) DEFINE_DOT(f64)

static dot_fn *const LEVEL(dots)[DTYPES] = {
    [DTYPE_FLOAT16] = LEVEL(dot_f16), [DTYPE_BFLOAT16] = LEVEL(dot_bf16),
    [DTYPE_FLOAT32] = LEVEL(dot_f32), [DTYPE_FLOAT64] = LEVEL(dot_f64),
};

/* ---- narrower copies -------------------------------------------------------------------------- */

/* Convert float32 elements to a narrower type. */
TARGET static void LEVEL(narrow)(u8 *out, const u8 *data, u64 count, u64 operand) {
    const l_f32 *from = (const void *)data;
    l_u16 *to = (void *)out;
    if (operand == DTYPE_BFLOAT16)
        EACH(i, count) to[i] = narrow_bf16(from[i]);
    else
        EACH(i, count) to[i] = narrow_f16(from[i]);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define WHOLE_COLUMN(column, T, U)                                                               \
    [REPLACE][column] = LEVEL(replace), [SUM][column] = LEVEL(sum_##U),                          \
    [MIN][column] = LEVEL(min_##T), [MAX][column] = LEVEL(max_##T),                              \
    [COMPARE_SWAP][column] = LEVEL(swap_##U), [SCALE][column] = LEVEL(scale_##U)

#define ARITHMETIC_COLUMN(column, name)                                                          \
    [SUM][column] = LEVEL(sum_##name), [MIN][column] = LEVEL(min_##name),                        \
    [MAX][column] = LEVEL(max_##name), [ELASTIC][column] = LEVEL(elastic_##name),                \
    [ELASTIC_MOVED][column] = LEVEL(elastic_moved_##name),                                       \
    [ELASTIC_DELTA][column] = LEVEL(elastic_delta_##name),                                       \
    [MOMENTUM][column] = LEVEL(momentum_##name),                                                 \
    [NESTEROV][column] = LEVEL(nesterov_##name),                                                 \
    [ADAGRAD][column] = LEVEL(adagrad_##name), [ADAM][column] = LEVEL(adam_##name)

#define FLOAT_COLUMN(column, name)                                                               \
    ARITHMETIC_COLUMN(column, name), [REPLACE][column] = LEVEL(replace),                         \
    [SCALE][column] = LEVEL(scale_##name)

#define NARROW_COLUMN(column, name)                                                              \
    ARITHMETIC_COLUMN(column, name), [REPLACE][column] = LEVEL(put_##name)

static kernel_fn *const LEVEL(table)[ROWS][COLUMNS] = {
    [REPLACE][DTYPE_BOOL] = LEVEL(replace),
    [SUM][DTYPE_BOOL] = LEVEL(sum_bool),
    [MIN][DTYPE_BOOL] = LEVEL(min_bool),
    [MAX][DTYPE_BOOL] = LEVEL(sum_bool),
    WHOLE_COLUMN(DTYPE_INT8, i8, u8),
    WHOLE_COLUMN(DTYPE_INT16, i16, u16),
    WHOLE_COLUMN(DTYPE_INT32, i32, u32),
    WHOLE_COLUMN(DTYPE_INT64, i64, u64),
    WHOLE_COLUMN(DTYPE_UINT8, u8, u8),
    WHOLE_COLUMN(DTYPE_UINT16, u16, u16),
    WHOLE_COLUMN(DTYPE_UINT32, u32, u32),
    WHOLE_COLUMN(DTYPE_UINT64, u64, u64),
    FLOAT_COLUMN(DTYPE_FLOAT16, f16),
    FLOAT_COLUMN(DTYPE_BFLOAT16, bf16),
    FLOAT_COLUMN(DTYPE_FLOAT32, f32),
    FLOAT_COLUMN(DTYPE_FLOAT64, f64),
    NARROW_COLUMN(FLOAT32_FLOAT16, f32_f16),
    NARROW_COLUMN(FLOAT32_BFLOAT16, f32_bf16),
    [ARRIVE][DTYPE_UINT64] = arrive,
    [WITHDRAW][DTYPE_UINT64] = withdraw,
};
