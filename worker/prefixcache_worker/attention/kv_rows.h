// Rows of the KV pool: where they are, and what they are as floats.

#pragma once

#include "vectors.h"

extern "C" {

enum Format : int64_t { FLOAT32, FLOAT16, BFLOAT16, INT8, INT4 };  // as in native.py

struct Place {  // where each row's part of a tensor is: layer, slot and head times these bytes, added up
    const char *data;
    int64_t layer_stride, slot_stride, head_stride;

    const char *at(int64_t layer, int64_t slot, int64_t head) const {
        return data + layer * layer_stride + slot * slot_stride + head * head_stride;
    }
};

struct Pool {  // keys or values
    Place rows;
    Place scales;              // float16; or null
    const float *fixed_scale;  // [num_layers][num_kv_heads][head_dim]; or null
    int64_t format;
};

}  // extern "C"

namespace {

constexpr int BITS[] = {32, 16, 16, 8, 4};  // of an element, by format

typedef uint16_t HalfVec __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef int8_t ByteVec __attribute__((vector_size(LANES), aligned(1), may_alias));

// Exact, subnormals, infinities and NaN included.
inline Vec float_of_half(HalfVec half) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(reinterpret_cast<__m256i>(half));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(reinterpret_cast<__m128i>(half));
#else
    const IntVec bits = __builtin_convertvector(half, IntVec);
    const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fff) << 13) * 0x1p112f;
    const IntVec infinite = (bits & 0x7c00) == 0x7c00 ? IntVec{} + 0x7f800000 : IntVec{};
    return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(magnitude) | infinite | (bits & 0x8000) << 16);
#endif
}

inline float float_of_half(uint16_t half) {
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    return float_of_half(HalfVec{half})[0];
#endif
}

inline Vec float_of_int(ByteVec bytes) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(bytes)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(&bytes))));
#else
    return __builtin_convertvector(bytes, Vec);
#endif
}

// The LANES elements of a row from `first` on.
template <int64_t FORMAT>
inline Vec widen(const char *row, int first) {
    if constexpr (FORMAT == FLOAT32) return load(reinterpret_cast<const float *>(row) + first);
    if constexpr (FORMAT == FLOAT16) return float_of_half(*reinterpret_cast<const HalfVec *>(row + 2 * first));
    if constexpr (FORMAT == BFLOAT16) {
        const auto halves = *reinterpret_cast<const HalfVec *>(row + 2 * first);
        return reinterpret_cast<Vec>(__builtin_convertvector(halves, IntVec) << 16);
    }
    if constexpr (FORMAT == INT8) return float_of_int(*reinterpret_cast<const ByteVec *>(row + first));
    IntVec nibbles, shift;  // element i is in the i-th lowest four bits
    for (int l = 0; l < LANES; ++l) {
        int32_t word = 0;
        std::memcpy(&word, row + first / 2 + l / 8 * 4, LANES < 8 ? LANES / 2 : 4);
        nibbles[l] = word;
        shift[l] = l % 8 * 4;
    }
    return __builtin_convertvector((nibbles >> shift) & 15, Vec) - 8.0f;
}

// A row as floats, with zeros up to padded(head_dim) behind it.
template <int64_t FORMAT>
void widen_row(const char *row, int head_dim, float *result) {
    int d = 0;
    for (; d + LANES <= head_dim; d += LANES) at(result + d) = widen<FORMAT>(row, d);
    if (d == head_dim) return;
    constexpr int bits = BITS[FORMAT];
    char rest[LANES * 4] = {};
    std::memcpy(rest, row + d * bits / 8, (head_dim - d) * bits / 8);
    at(result + d) = widen<FORMAT>(rest, 0);
    for (; head_dim % LANES; ++head_dim) result[head_dim] = 0.0f;
}

void widen_row(int64_t format, const char *row, int head_dim, float *result) {
    switch (format) {
    case FLOAT32: return widen_row<FLOAT32>(row, head_dim, result);
    case FLOAT16: return widen_row<FLOAT16>(row, head_dim, result);
    case BFLOAT16: return widen_row<BFLOAT16>(row, head_dim, result);
    case INT8: return widen_row<INT8>(row, head_dim, result);
    case INT4: return widen_row<INT4>(row, head_dim, result);
    }
}

}  // namespace
