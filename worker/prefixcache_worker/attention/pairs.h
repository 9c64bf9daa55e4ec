// Products of bfloat16 pairs: twice the work of an `fma`, where the machine has them.
//
// A pair is two neighbouring factors in the place of one float. Keys and queries are paired by element, values
// and weights by position, in both ways to run a task: so these, too, round alike.

#pragma once

#include "vectors.h"

namespace {

#if defined(__AVX512BF16__)
constexpr bool HAS_PAIRS = true;

// c + the sum of the pair's two products
inline Vec multiply_pairs(Vec a, Vec b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline Vec join_halves(__m256i even, __m256i odd) {
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16);
    return reinterpret_cast<Vec>(_mm512_or_si512(_mm512_cvtepu16_epi32(even), high));
}

// Lane by lane, the pair of what two floats round to.
inline Vec pair(Vec even, Vec odd) {
    return join_halves(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(even)),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(odd)));
}

// Lane by lane, the pair of the bfloat16 numbers at two places.
inline Vec pair_stored(const void *even, const void *odd) {
    return join_halves(_mm256_loadu_si256(static_cast<const __m256i *>(even)),
                       _mm256_loadu_si256(static_cast<const __m256i *>(odd)));
}

// The pairs of neighbouring floats: LANES / 2 of them.
inline void pair_neighbours(Vec floats, float *pairs) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(pairs), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(floats)));
}
#else
constexpr bool HAS_PAIRS = false;  // then none of these is called
inline Vec multiply_pairs(Vec, Vec, Vec c) { return c; }
inline Vec pair(Vec even, Vec) { return even; }
inline Vec pair_stored(const void *, const void *) { return Vec{}; }
inline void pair_neighbours(Vec, float *) {}
#endif

template <bool PAIRED>
inline Vec multiply(Vec a, Vec b, Vec c) {
    return PAIRED ? multiply_pairs(a, b, c) : fma(a, b, c);
}

}  // namespace
