// Vectors of the machine's width, and the few operations that attention needs of them.

#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)  // 32 registers: accumulators, operands, a broadcast
constexpr int LANES = 16, MAX_VECTORS = 3, ROW_VECTORS = 4;
#elif defined(__AVX__)  // 16 registers
constexpr int LANES = 8, MAX_VECTORS = 2, ROW_VECTORS = 2;
#else
constexpr int LANES = 4, MAX_VECTORS = 2, ROW_VECTORS = 2;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));
typedef float LooseVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));

inline Vec fill(float x) {
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#else
    return x - Vec{};
#endif
}
inline Vec &at(float *p) { return *reinterpret_cast<Vec *>(p); }
inline const Vec &at(const float *p) { return *reinterpret_cast<const Vec *>(p); }
inline Vec load(const float *p) { return *reinterpret_cast<const LooseVec *>(p); }

// a * b + c, rounded once where the machine can
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

inline Vec maximum(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX__)
    return _mm256_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}

inline Vec shuffle(Vec a, Vec b, bool high) {  // a and b interleaved: their first or their last halves
    IntVec index;
    for (int i = 0; i < LANES; ++i) index[i] = (high ? LANES / 2 : 0) + i / 2 + i % 2 * LANES;
#if defined(__clang__)
    Vec result;
    for (int i = 0; i < LANES; ++i) result[i] = index[i] < LANES ? a[index[i]] : b[index[i] - LANES];
    return result;
#else
    return __builtin_shuffle(a, b, index);
#endif
}

// e^x for x <= 0, to 2 units in the last place; 0 below -87
inline Vec exp_of_negative(Vec x) {
    const Vec shifted = fma(x, fill(1.44269504f), fill(12582912.0f));  // 1.5 * 2^23: low bits are round(x / ln 2)
    const Vec n = shifted - 12582912.0f;
    const Vec r = fma(n, fill(2.12194440e-4f), fma(n, fill(-0.693359375f), x));
    Vec p = fma(fill(1.0f / 720), r, fill(1.0f / 120));
    p = fma(p, r, fill(1.0f / 24));
    p = fma(p, r, fill(1.0f / 6));
    p = fma(p, r, fill(0.5f));
    p = fma(p, r, fill(1.0f));
    p = fma(p, r, fill(1.0f));
    p = reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + (reinterpret_cast<IntVec>(shifted) << 23));
    return x < -87.0f ? Vec{} : p;
}

// columns[e][j] = rows[j][e] for the LANES elements of LANES rows; `stride` floats from column to column.
inline void transpose(const float *const *rows, int first, float *columns, int stride) {
    Vec a[LANES], b[LANES];
    for (int j = 0; j < LANES; ++j) a[j] = load(rows[j] + first);
    for (int step = 1; step < LANES; step *= 2) {
        for (int j = 0; j < LANES / 2; ++j) {
            b[2 * j] = shuffle(a[j], a[j + LANES / 2], false);
            b[2 * j + 1] = shuffle(a[j], a[j + LANES / 2], true);
        }
        for (int j = 0; j < LANES; ++j) a[j] = b[j];
    }
    for (int j = 0; j < LANES; ++j) at(columns + j * stride) = a[j];
}

}  // namespace
