// Products of rows with a packed weight on a CPU: y = x W^T with W in float32, bfloat16 or int8.
//
// A weight is cut into panels of WIDTH output features, stored as [panel][in_features / STEP][WIDTH][STEP], so
// that a tile of rows walks a panel once, front to back, and keeps its sums in registers. Every sum runs over the
// input features in their order, whatever the number of rows and threads: no row's result depends on the others.
//
// Built by native_linear.py for the machine it runs on; the tests hold each format's exact definition.

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)  // 32 registers: 24 sums, 3 vectors of a panel, a broadcast input
constexpr int LANES = 16, VECTORS = 3, MAX_ROWS = 8;
#elif defined(__AVX__)  // 16 registers
constexpr int LANES = 8, VECTORS = 2, MAX_ROWS = 6;
#else
constexpr int LANES = 4, VECTORS = 2, MAX_ROWS = 6;
#endif
constexpr int WIDTH = LANES * VECTORS;
constexpr int64_t PRODUCTS_WORTH_A_THREAD = 1 << 17;  // a few microseconds
constexpr int ROWS_PER_TASK = 16 * MAX_ROWS;  // of many rows, so that many threads find work in few panels
constexpr int GROUP = 64;                     // int8: inputs that share a scale

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));
typedef uint32_t WordVec __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));

template <class V>
inline V &at(void *p) { return *static_cast<V *>(p); }
template <class V>
inline const V &at(const void *p) { return *static_cast<const V *>(p); }

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Loops over a tile's sums are unrolled completely: only then do the sums live in registers.
#define UNROLLED _Pragma("GCC unroll 16")

// A format says how many inputs a step of the panel takes (STEP), what becomes of a row before its products
// (`prepare`), and what a tile of up to MAX_ROWS such rows does with a panel: sums[m][n] = row m times feature n.

// The tile of a format whose sums are float32: one `multiply_add` for each step, feature and row.
template <class Format, int ROWS>
inline void float_tile(const char *rows, int64_t row_bytes, const char *panel, int64_t depth, float *sums) {
    const typename Format::Input *inputs[ROWS];
    UNROLLED for (int m = 0; m < ROWS; ++m)
        inputs[m] = reinterpret_cast<const typename Format::Input *>(rows + m * row_bytes);
    Vec sum[ROWS][VECTORS] = {};
    for (int64_t k = 0; k < depth / Format::STEP; ++k) {
        Vec weights[VECTORS];
        UNROLLED for (int n = 0; n < VECTORS; ++n) weights[n] = at<Vec>(panel + (k * VECTORS + n) * sizeof(Vec));
        UNROLLED for (int m = 0; m < ROWS; ++m)
            UNROLLED for (int n = 0; n < VECTORS; ++n)
                sum[m][n] = Format::multiply_add(sum[m][n], weights[n], inputs[m][k]);
    }
    UNROLLED for (int m = 0; m < ROWS; ++m)
        UNROLLED for (int n = 0; n < VECTORS; ++n) at<Vec>(sums + m * WIDTH + n * LANES) = sum[m][n];
}

struct Fp32 {
    static constexpr int STEP = 1, DEPTH_MULTIPLE = 1;
    typedef float Input;

    static Vec multiply_add(Vec sum, Vec weights, float input) { return sum + input * weights; }

    template <int ROWS>
    static void tile(const char *rows, int64_t row_bytes, const char *panel, int64_t depth, float *sums) {
        float_tile<Fp32, ROWS>(rows, row_bytes, panel, depth, sums);
    }
};

struct Bf16 {
    static constexpr int STEP = 2, DEPTH_MULTIPLE = 2;
    typedef int32_t Input;  // a pair

    static int64_t row_bytes(int64_t depth) { return depth * 2; }

    // The inputs rounded to bfloat16, to nearest even.
    static void prepare(const float *row, int64_t in_features, char *prepared) {
        auto *halves = reinterpret_cast<uint16_t *>(prepared);
        for (int64_t k = 0; k < in_features; ++k) {
            uint32_t bits;
            memcpy(&bits, row + k, 4);
            const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            halves[k] = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;  // NaN stays NaN
        }
        if (in_features % 2) halves[in_features] = 0;
    }

    static Vec multiply_add(Vec sum, Vec weights, int32_t pair) {
#if defined(__AVX512BF16__)
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)(pair - IntVec{}));
#else
        const WordVec words = reinterpret_cast<WordVec>(weights);
        const WordVec pairs = reinterpret_cast<WordVec>(pair - IntVec{});
        sum += reinterpret_cast<Vec>(pairs & 0xffff0000u) * reinterpret_cast<Vec>(words & 0xffff0000u);
        return sum + reinterpret_cast<Vec>(pairs << 16) * reinterpret_cast<Vec>(words << 16);
#endif
    }

    template <int ROWS>
    static void tile(const char *rows, int64_t row_bytes, const char *panel, int64_t depth, float *sums) {
        float_tile<Bf16, ROWS>(rows, row_bytes, panel, depth, sums);
    }
};

// sum + the products of each lane's four unsigned weights with the four signed inputs; exact
inline IntVec dot4(IntVec sum, IntVec weights, int32_t inputs) {
    IntVec quad = inputs - IntVec{};
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)quad);
#elif defined(__AVXVNNI__)
    return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)quad);
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
    // In 16 bits, elements 0 and 2 apart from 1 and 3: no sum of two products can overflow 32 bits.
    typedef int16_t ShortVec __attribute__((vector_size(LANES * 4)));
    const ShortVec input_pairs = reinterpret_cast<ShortVec>(quad);
    const ShortVec weight_pairs = reinterpret_cast<ShortVec>(weights);
#if defined(__AVX512BW__)
    const auto dot = [](ShortVec a, ShortVec b) { return (IntVec)_mm512_madd_epi16((__m512i)a, (__m512i)b); };
#else
    const auto dot = [](ShortVec a, ShortVec b) { return (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b); };
#endif
    const ShortVec odd_weights = weight_pairs >> 8 & 0xff;
    return sum + dot(weight_pairs & 0xff, input_pairs << 8 >> 8) + dot(odd_weights, input_pairs >> 8);
#else
    for (int i = 0; i < 4; ++i) {
        sum += (weights & 0xff) * (quad << 24 >> 24);
        weights = reinterpret_cast<IntVec>(reinterpret_cast<WordVec>(weights) >> 8);
        quad >>= 8;
    }
    return sum;
#endif
}

// Weights are stored with 128 added, so that they are unsigned. A prepared row is its int8 inputs, then for each
// group what takes the 128 out again (-128 times the sum of its inputs, int32), then each group's scale (float).
struct Int8 {
    static constexpr int STEP = 4, DEPTH_MULTIPLE = GROUP;
    static constexpr float SMALLEST = 0x1p-100f;  // a group below is zero; its scale would have no inverse

    static int64_t row_bytes(int64_t depth) { return depth + depth / GROUP * 8; }

    static void prepare(const float *row, int64_t in_features, char *prepared) {
        const int64_t depth = round_up(in_features, GROUP);
        auto *inputs = reinterpret_cast<int8_t *>(prepared);
        auto *offsets = reinterpret_cast<int32_t *>(prepared + depth);
        auto *scales = reinterpret_cast<float *>(offsets + depth / GROUP);
        for (int64_t g = 0; g < depth / GROUP; ++g) {
            alignas(64) float group[GROUP] = {};
            const int64_t left = in_features - g * GROUP;
            memcpy(group, row + g * GROUP, (left < GROUP ? left : GROUP) * sizeof(float));
            Vec maxima = {}, zeros = {};
            for (int i = 0; i < GROUP; i += LANES) {
                const Vec x = at<Vec>(group + i), magnitude = x < 0.0f ? -x : x;
                maxima = magnitude > maxima ? magnitude : maxima;
                zeros += x * 0.0f;
            }
            float max = 0.0f, zero = 0.0f;  // zero becomes NaN if any input is infinite or NaN
            for (int i = 0; i < LANES; ++i) {
                max = maxima[i] > max ? maxima[i] : max;
                zero += zeros[i];
            }
            const float inverse = max > SMALLEST ? 127.0f / max : 0.0f;
            int32_t sum = 0;
            for (int i = 0; i < GROUP; ++i)
                inputs[g * GROUP + i] = static_cast<int32_t>(__builtin_rintf(group[i] * inverse));
            for (int i = 0; i < GROUP; ++i) sum += inputs[g * GROUP + i];
            offsets[g] = -128 * sum;
            scales[g] = (inverse > 0.0f ? max / 127.0f : 0.0f) + zero;
        }
    }

    template <int ROWS>
    static void tile(const char *rows, int64_t row_bytes, const char *panel, int64_t depth, float *sums) {
        const int32_t *inputs[ROWS];
        UNROLLED for (int m = 0; m < ROWS; ++m)
            inputs[m] = reinterpret_cast<const int32_t *>(rows + m * row_bytes);
        const int64_t num_groups = depth / GROUP, steps = GROUP / STEP;
        for (int64_t g = 0; g < num_groups; ++g) {
            IntVec sum[ROWS][VECTORS];
            UNROLLED for (int m = 0; m < ROWS; ++m)
                UNROLLED for (int n = 0; n < VECTORS; ++n) sum[m][n] = inputs[m][depth / STEP + g] - IntVec{};
            for (int64_t k = g * steps; k < (g + 1) * steps; ++k) {
                IntVec weights[VECTORS];
                UNROLLED for (int n = 0; n < VECTORS; ++n)
                    weights[n] = at<IntVec>(panel + (k * VECTORS + n) * sizeof(Vec));
                UNROLLED for (int m = 0; m < ROWS; ++m)
                    UNROLLED for (int n = 0; n < VECTORS; ++n)
                        sum[m][n] = dot4(sum[m][n], weights[n], inputs[m][k]);
            }
            UNROLLED for (int m = 0; m < ROWS; ++m) {
                float scale;
                memcpy(&scale, inputs[m] + depth / STEP + num_groups + g, sizeof(float));
                UNROLLED for (int n = 0; n < VECTORS; ++n) {
                    Vec &total = at<Vec>(sums + m * WIDTH + n * LANES);
                    const Vec product = __builtin_convertvector(sum[m][n], Vec);
                    total = scale * product + (g == 0 ? Vec{} : total);
                }
            }
        }
    }
};

template <class Format, int ROWS = MAX_ROWS>
inline void run_tile(int64_t num_rows, const char *rows, int64_t row_bytes, const char *panel, int64_t depth,
                     float *sums) {
    if (num_rows == ROWS) Format::template tile<ROWS>(rows, row_bytes, panel, depth, sums);
    else if constexpr (ROWS > 1) run_tile<Format, ROWS - 1>(num_rows, rows, row_bytes, panel, depth, sums);
}

}  // namespace

extern "C" {

struct Weight {
    const char *panels;   // [num_panels][depth / STEP][WIDTH][STEP], zeros (int8: 128) beyond the weight's shape
    const float *scales;  // [out_features]; null but for int8
    int64_t out_features, in_features;
};

}  // extern "C"

namespace {

template <class Format>
void multiply(const Weight &weight, const float *inputs, float *outputs, char *scratch, int64_t num_rows,
              int num_threads) {
    constexpr bool IS_PREPARED = Format::STEP > 1;
    const int64_t depth = round_up(weight.in_features, Format::DEPTH_MULTIPLE);
    const int64_t panel_bytes = depth * WIDTH * 4 / Format::STEP;
    const int64_t num_panels = (weight.out_features + WIDTH - 1) / WIDTH;
    const int64_t num_chunks = (num_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    const char *rows = reinterpret_cast<const char *>(inputs);
    int64_t row_bytes = weight.in_features * sizeof(float);
    if constexpr (IS_PREPARED) rows = scratch, row_bytes = Format::row_bytes(depth);
#pragma omp parallel num_threads(num_threads) \
    if (num_rows * weight.out_features * weight.in_features > PRODUCTS_WORTH_A_THREAD)
    {
        if constexpr (IS_PREPARED) {
#pragma omp for schedule(static)
            for (int64_t m = 0; m < num_rows; ++m)
                Format::prepare(inputs + m * weight.in_features, weight.in_features, scratch + m * row_bytes);
        }
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < num_panels * num_chunks; ++task) {
            const int64_t panel = task / num_chunks, first_row = task % num_chunks * ROWS_PER_TASK;
            const int64_t first = panel * WIDTH, left = weight.out_features - first;
            const int64_t width = left < WIDTH ? left : WIDTH;
            const int64_t chunk = num_rows - first_row < ROWS_PER_TASK ? num_rows - first_row : ROWS_PER_TASK;
            const int64_t num_tiles = (chunk + MAX_ROWS - 1) / MAX_ROWS;
            alignas(64) float sums[MAX_ROWS * WIDTH];
            for (int64_t tile = 0; tile < num_tiles; ++tile) {  // of equal height, give or take one row
                const int64_t begin = first_row + chunk * tile / num_tiles;
                const int64_t end = first_row + chunk * (tile + 1) / num_tiles;
                run_tile<Format>(end - begin, rows + begin * row_bytes, row_bytes,
                                 weight.panels + panel * panel_bytes, depth, sums);
                for (int64_t m = begin; m < end; ++m) {
                    float *sum = sums + (m - begin) * WIDTH, *output = outputs + m * weight.out_features + first;
                    if (weight.scales != nullptr)
                        for (int64_t n = 0; n < width; ++n) sum[n] *= weight.scales[first + n];
                    memcpy(output, sum, width * sizeof(float));
                }
            }
        }
    }
}

}  // namespace

// Panels are WIDTH features wide and their depth is a multiple of GROUP (int8) or of 2 (bf16).
extern "C" int64_t panel_width() { return WIDTH; }
extern "C" int64_t group_size() { return GROUP; }

extern "C" void multiply_fp32(const Weight *weight, const float *inputs, float *outputs, void *,
                              int64_t num_rows, int64_t num_threads) {
    multiply<Fp32>(*weight, inputs, outputs, nullptr, num_rows, num_threads);
}

// `scratch`: num_rows * depth * 2 bytes
extern "C" void multiply_bf16(const Weight *weight, const float *inputs, float *outputs, void *scratch,
                              int64_t num_rows, int64_t num_threads) {
    multiply<Bf16>(*weight, inputs, outputs, static_cast<char *>(scratch), num_rows, num_threads);
}

// `scratch`: num_rows * (depth + depth / GROUP * 8) bytes
extern "C" void multiply_int8(const Weight *weight, const float *inputs, float *outputs, void *scratch,
                              int64_t num_rows, int64_t num_threads) {
    multiply<Int8>(*weight, inputs, outputs, static_cast<char *>(scratch), num_rows, num_threads);
}
