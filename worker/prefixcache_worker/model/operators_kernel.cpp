// What a decoder does between its products, on a CPU: float32, row by row, so that no row depends on another.
//
// Loops are written so that a compiler vectorises them without being allowed to reorder sums.
// Built by native_operators.py for the machine it runs on; the functions of operators.py are its oracle.

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t ELEMENTS_WORTH_A_THREAD = 1 << 15;
constexpr int NUM_PARTIAL_SUMS = 16;

// e^x to 2 units in the last place, for -87 <= x <= 87; x is clamped to that.
inline float exp_clamped(float x) {
    x = x > -87.0f ? x : -87.0f;
    x = x < 87.0f ? x : 87.0f;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the low bits become round(x / ln 2)
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = (1.0f / 720) * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits, exponent;
    memcpy(&bits, &p, 4);
    memcpy(&exponent, &shifted, 4);
    bits += exponent << 23;
    memcpy(&p, &bits, 4);
    return p;
}

inline float silu(float x) { return x / (1.0f + exp_clamped(-x)); }

inline float gelu_tanh(float x) {  // x (1 + tanh u) / 2, and 1 + tanh u = 2 / (1 + e^-2u)
    const float u = 0.797884561f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp_clamped(-2.0f * u));
}

// gate_up: [num_rows][2 * size], gates before what they let through
template <float (*ACTIVATION)(float)>
void gate(const float *gate_up, float *__restrict outputs, int64_t num_rows, int64_t size, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) \
    if (num_rows * size > ELEMENTS_WORTH_A_THREAD)
    for (int64_t m = 0; m < num_rows; ++m) {
        const float *gates = gate_up + m * 2 * size, *ups = gates + size;
        for (int64_t i = 0; i < size; ++i) outputs[m * size + i] = ACTIVATION(gates[i]) * ups[i];
    }
}

}  // namespace

extern "C" void rms_norm(const float *inputs, const float *weight, float *__restrict outputs, int64_t num_rows,
                         int64_t size, float eps, int64_t num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) \
    if (num_rows * size > ELEMENTS_WORTH_A_THREAD)
    for (int64_t m = 0; m < num_rows; ++m) {
        const float *row = inputs + m * size;
        float sums[NUM_PARTIAL_SUMS] = {}, sum = 0.0f;
        int64_t i = 0;
        for (; i + NUM_PARTIAL_SUMS <= size; i += NUM_PARTIAL_SUMS)
            for (int lane = 0; lane < NUM_PARTIAL_SUMS; ++lane) sums[lane] += row[i + lane] * row[i + lane];
        for (; i < size; ++i) sums[0] += row[i] * row[i];
        for (int lane = 0; lane < NUM_PARTIAL_SUMS; ++lane) sum += sums[lane];
        const float scale = 1.0f / __builtin_sqrtf(sum / size + eps);
        for (i = 0; i < size; ++i) outputs[m * size + i] = row[i] * scale * weight[i];
    }
}

// heads: rows of [num_heads][2 * half], `row_stride` floats apart; cos and sin: [num_rows][half]
extern "C" void rotate(const float *heads, int64_t row_stride, const float *cos, const float *sin,
                       float *__restrict outputs, int64_t num_rows, int64_t num_heads, int64_t half,
                       int64_t num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) \
    if (num_rows * num_heads * half > ELEMENTS_WORTH_A_THREAD)
    for (int64_t m = 0; m < num_rows; ++m) {
        const float *c = cos + m * half, *s = sin + m * half;
        for (int64_t h = 0; h < num_heads; ++h) {
            const float *first = heads + m * row_stride + h * 2 * half, *second = first + half;
            float *__restrict output = outputs + (m * num_heads + h) * 2 * half;
            for (int64_t i = 0; i < half; ++i) output[i] = first[i] * c[i] - second[i] * s[i];
            for (int64_t i = 0; i < half; ++i) output[half + i] = second[i] * c[i] + first[i] * s[i];
        }
    }
}

extern "C" void silu_and_multiply(const float *gate_up, float *outputs, int64_t num_rows, int64_t size,
                                  int64_t num_threads) {
    gate<silu>(gate_up, outputs, num_rows, size, num_threads);
}

extern "C" void gelu_and_multiply(const float *gate_up, float *outputs, int64_t num_rows, int64_t size,
                                  int64_t num_threads) {
    gate<gelu_tanh>(gate_up, outputs, num_rows, size, num_threads);
}
