/* Element types: how each is stored, what it computes in, and the way there and back. */
#ifndef SMBOX_ELEMENTS_H
#define SMBOX_ELEMENTS_H

#include "native.h"

#include <string.h>

/* Operands arrive at any byte (ZeroMQ's payloads), and as bytes. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef u8 LOOSE l_u8;
typedef u16 LOOSE l_u16;
typedef u32 LOOSE l_u32;
typedef u64 LOOSE l_u64;
typedef int8_t LOOSE l_i8;
typedef int16_t LOOSE l_i16;
typedef int32_t LOOSE l_i32;
typedef int64_t LOOSE l_i64;
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

/* bfloat16: the upper half of a float32; rounds to nearest, ties to even. */
static inline float widen_bf16(u16 half) { return float_of((u32)half << 16); }
static inline u16 narrow_bf16(float value) {
    u32 bits = bits_of(value);
    u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    u32 nan = (bits >> 16) | 0x40;
    return (u16)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* float16 (IEEE 754 binary16) by integer code: not every compiler has a type for it. */
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
    /* Adding 0.5 shifts a denormal's digits to where float32 itself rounds them. */
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

#endif
