// Attention over plan items on a CPU: any KV format and layout, any number of queries for one run of KV rows.
//
// A task is one run of rows, one KV head and up to MAX_WIDTH query rows (token, head in group). There are two
// ways to run it, with the same arithmetic in the same order for every query, so that the number of queries in
// a task changes no bit of a result:
// - many queries: a vector holds one KV row's score for neighbouring queries; K and V elements are broadcast;
// - few queries: a vector holds neighbouring KV rows' scores for one query; K is transposed on the way.
// In both, a score is summed over the elements in order; the sum of a chunk's weights is kept in LANES parts, by
// the row's position, which are added pairwise; a chunk's output is summed over its rows in order; chunks are
// folded in order of position (planner.py says why). Every product that is added is one fused operation, `fma`:
// left to the compiler, two ways to write the same sum would round differently.
//
// Softmax is the online one (Milakov & Gimelshein 2018). Built by native.py for the machine it runs on;
// reference.py is its oracle.

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
constexpr int MAX_WIDTH = LANES * MAX_VECTORS;
constexpr int MAX_FEW = LANES / 2;  // up to so many queries, vectors of KV rows do less work
constexpr int QUAD = MAX_FEW < 4 ? MAX_FEW : 4;  // of the few, so many at a time
constexpr int CHUNK_ROWS = 64, SEGMENT_ROWS = 512;  // as in plan.py
constexpr int MAX_HEAD_DIM = 256;

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));
typedef float LooseVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4), aligned(LANES * 4), may_alias));

constexpr float MINUS_INFINITY = -__builtin_inff();
alignas(64) const float ZEROS[MAX_HEAD_DIM] = {};

inline Vec fill(float x) { return x - Vec{}; }
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

// What two partial results are multiplied by to have the same maximum. A maximum of -inf: nothing was seen.
struct Fold {
    Vec max, first, second;
    Fold(Vec first_max, Vec second_max) {
        max = maximum(first_max, second_max);
        const Vec base = finite(max);
        first = exp_of_negative(first_max - base);
        second = exp_of_negative(second_max - base);
    }
    static Vec finite(Vec max) { return max == MINUS_INFINITY ? Vec{} : max; }
};

inline Vec fold(Vec a, Vec first, Vec b, Vec second) { return fma(a, first, b * second); }

}  // namespace

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

struct Step {  // one layer of one step
    const float *query;        // [num_tokens][num_query_heads][head_dim], contiguous
    float *output;             // same shape
    Pool keys, values;
    const int64_t *positions;  // [num_tokens]
    const int64_t *block_ids;  // of all items, one after the other
    float *partial_output;     // [num_levels][num_tokens][num_query_heads][MAX_HEAD_DIM or less], unnormalised
    float *partial_max;        // [num_levels][num_tokens][num_query_heads]; -inf: no such partial
    float *partial_sum;        // same shape
    int32_t *partial_segment;  // same shape: the segment it is a part of
    int64_t layer;
    int64_t num_tokens, num_levels, num_query_heads, num_kv_heads, head_dim, block_size;
    int64_t window_size;       // 0: no window
    int64_t num_sinks;
    double scale;              // of the scores
};

struct Task {  // for each KV head
    int64_t first_block;     // index into Step.block_ids
    int64_t first_row;       // of that block
    int64_t num_rows;        // KV rows of the run
    int64_t first_position;
    int64_t first_token;     // of the item
    int64_t level;
    int64_t first_query;     // of the item's query rows (token, head in group), row-major
    int64_t num_queries;     // at most MAX_WIDTH
};

}  // extern "C"

namespace {

inline int padded(int64_t head_dim) { return (head_dim + LANES - 1) / LANES * LANES; }

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

inline const float *fixed_scale(const Step &step, const Pool &pool, int64_t kv_head) {
    return pool.fixed_scale ? pool.fixed_scale + (step.layer * step.num_kv_heads + kv_head) * step.head_dim : nullptr;
}

// What a task is about, and where its rows and results are.
struct Work {
    const Step &step;
    const Task &task;
    const int kv_head, head_dim, group;
    int64_t begin, end;  // positions that some query of the task sees
    bool is_windowed;    // rows may be too far behind a query
    bool is_fold;        // chunks are folded here, not left apart: see WorkItem.num_levels

    Work(const Step &step, const Task &task, int kv_head)
        : step(step), task(task), kv_head(kv_head), head_dim(step.head_dim),
          group(step.num_query_heads / step.num_kv_heads),
          is_windowed(step.window_size && task.first_position >= step.num_sinks),
          is_fold(task.first_position % SEGMENT_ROWS == 0 || task.first_position % CHUNK_ROWS != 0) {
        int64_t first = INT64_MAX, last = 0;
        for (int r = 0; r < task.num_queries; r += 1) {
            const int64_t p = position(r);
            first = p < first ? p : first;
            last = p > last ? p : last;
        }
        begin = task.first_position;
        if (is_windowed && first - step.window_size + 1 > begin) begin = first - step.window_size + 1;
        end = task.first_position + task.num_rows;
        if (last + 1 < end) end = last + 1;
    }

    int64_t token(int r) const { return task.first_token + (task.first_query + r) / group; }
    int64_t position(int r) const { return step.positions[token(r)]; }
    int64_t place(int r) const {  // of query row r among all (token, head) pairs
        return token(r) * step.num_query_heads + kv_head * group + (task.first_query + r) % group;
    }

    // Query row r, scaled for the scores, `stride` floats from element to element.
    void load_query(int r, float *result, int stride) const {
        const float *query = step.query + place(r) * head_dim, scale = step.scale;
        const float *fixed = fixed_scale(step, step.keys, kv_head);
        for (int d = 0; d < head_dim; ++d) result[d * stride] = query[d] * scale * (fixed ? fixed[d] : 1.0f);
    }

    // The slots of the rows at `position` and behind it, one after the other.
    struct Slots {
        const int64_t *block, block_size;
        int64_t row;

        Slots(const Work &work, int64_t position) : block_size(work.step.block_size) {
            const int64_t offset = work.task.first_row + position - work.task.first_position;
            block = work.step.block_ids + work.task.first_block + offset / block_size;
            row = offset % block_size;
        }
        int64_t next() {
            if (row == block_size) row = 0, ++block;
            return *block * block_size + row++;
        }
    };

    // Pointers to the rows at `position` and behind it, as floats. With `in_place` rows of floats stay where they
    // are; all others go into `buffer` [num_rows][padded(head_dim)], with zeros behind each.
    void load_rows(const Pool &pool, int64_t position, int num_rows, bool in_place, const float **rows, float *scales,
                   float *buffer) const {
        const int stride = padded(head_dim);
        in_place &= pool.format == FLOAT32;
        const int num_bytes = head_dim * BITS[pool.format] / 8;
        Slots slots(*this, position);
        for (int j = 0; j < num_rows; ++j) {
            const int64_t slot = slots.next();
            const char *row = pool.rows.at(step.layer, slot, kv_head);
            rows[j] = reinterpret_cast<const float *>(row);
            // Many loads that nothing waits for: the rows come in while others are still on their way.
            if (!in_place)
                for (int byte = 0; byte < num_bytes; byte += 64) (void)*static_cast<const volatile char *>(row + byte);
            if (pool.scales.data)
                scales[j] = float_of_half(*reinterpret_cast<const uint16_t *>(pool.scales.at(step.layer, slot, kv_head)));
        }
        if (in_place) return;
        for (int j = 0; j < num_rows; ++j) {
            widen_row(pool.format, reinterpret_cast<const char *>(rows[j]), head_dim, buffer + j * stride);
            rows[j] = buffer + j * stride;
        }
    }

    // Hand over query row r's result of the chunks up to the one at `position`.
    void store(int r, int64_t position, float max, float sum, const float *output, int stride) const {
        const int64_t chunk = is_fold ? 0 : position / CHUNK_ROWS - task.first_position / CHUNK_ROWS;
        const int64_t row = (task.level + chunk) * step.num_tokens * step.num_query_heads + place(r);
        float *target = step.partial_output + row * padded(head_dim);
        for (int d = 0; d < head_dim; ++d) target[d] = output[d * stride];
        for (int d = head_dim; d < padded(head_dim); ++d) target[d] = 0.0f;
        step.partial_max[row] = max;
        step.partial_sum[row] = sum;
        const bool is_sink = step.window_size && task.first_position < step.num_sinks;
        step.partial_segment[row] = is_sink ? -1 - position / SEGMENT_ROWS : position / SEGMENT_ROWS;
    }
};

// scores[m][:] = sum over d of keys[m][d] * queries[d][:]
template <int ROWS, int VECTORS>
inline void score_rows(const float *const *keys, const float *queries, int head_dim, float *scores) {
    constexpr int width = VECTORS * LANES;
    Vec sum[ROWS][VECTORS] = {};
    for (int d = 0; d < head_dim; ++d) {
        Vec query[VECTORS];
        for (int n = 0; n < VECTORS; ++n) query[n] = at(queries + d * width + n * LANES);
        for (int m = 0; m < ROWS; ++m)
            for (int n = 0; n < VECTORS; ++n) sum[m][n] = fma(fill(keys[m][d]), query[n], sum[m][n]);
    }
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) at(scores + m * width + n * LANES) = sum[m][n];
}

// output[m][:] folded with the sum over j of values[j][m] * weights[j][:], for the elements from `first` on
template <int ROWS, int VECTORS>
inline void add_values(const float *const *values, int first, const float *weights, int num_rows, const Vec *old_factor,
                       const Vec *new_factor, float *output) {
    constexpr int width = VECTORS * LANES;
    Vec sum[ROWS][VECTORS] = {};
    for (int j = 0; j < num_rows; ++j) {
        Vec weight[VECTORS];
        for (int n = 0; n < VECTORS; ++n) weight[n] = at(weights + j * width + n * LANES);
        const float *value = values[j] + first;
        for (int m = 0; m < ROWS; ++m)
            for (int n = 0; n < VECTORS; ++n) sum[m][n] = fma(fill(value[m]), weight[n], sum[m][n]);
    }
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) {
            Vec &out = at(output + (first + m) * width + n * LANES);
            out = fold(out, old_factor[n], sum[m][n], new_factor[n]);
        }
}

// A vector holds neighbouring queries.
template <int VECTORS>
void run_many(const Work &work) {
    constexpr int width = VECTORS * LANES, tile = VECTORS < 2 || LANES == 16 ? 8 : 4;
    alignas(64) float queries[MAX_HEAD_DIM * width], output[MAX_HEAD_DIM * width], scores[CHUNK_ROWS * width];
    alignas(64) float buffer[CHUNK_ROWS * MAX_HEAD_DIM];
    float scales[CHUNK_ROWS];
    const float *rows[CHUNK_ROWS];
    const int num_queries = work.task.num_queries, head_dim = work.head_dim;

    std::memset(queries, 0, head_dim * width * sizeof(float));
    std::memset(output, 0, head_dim * width * sizeof(float));
    int64_t common_first = 0, common_last = INT64_MAX;  // rows between these are seen by all
    IntVec first_seen[VECTORS], last_seen[VECTORS];     // by each query, from work.begin
    for (int r = 0; r < width; ++r) {
        if (r < num_queries) work.load_query(r, queries + r, width);
        const int64_t position = work.position(r < num_queries ? r : num_queries - 1);
        const int64_t first = work.is_windowed ? position - work.step.window_size + 1 : work.begin;
        first_seen[r / LANES][r % LANES] = first > work.begin ? (first < work.end ? first : work.end) - work.begin : 0;
        last_seen[r / LANES][r % LANES] = (position < work.end ? position : work.end) - work.begin;
        common_first = first > common_first ? first : common_first;
        common_last = position < common_last ? position : common_last;
    }
    // A copy waits for many cache lines at a time, the products for few: it pays for rows that come from far.
    const bool in_place = work.task.first_query > 0;
    Vec max[VECTORS], sum[VECTORS] = {};
    for (int n = 0; n < VECTORS; ++n) max[n] = fill(MINUS_INFINITY);

    for (int64_t start = work.begin, next; start < work.end; start = next) {
        next = (start / CHUNK_ROWS + 1) * CHUNK_ROWS;
        const int offset = start % LANES, num_rows = (next < work.end ? next : work.end) - start;
        work.load_rows(work.step.keys, start, num_rows, in_place, rows, scales, buffer);
        int j = 0;
        for (; j + tile <= num_rows; j += tile)
            score_rows<tile, VECTORS>(rows + j, queries, head_dim, scores + j * width);
        for (; j + 2 <= num_rows; j += 2) score_rows<2, VECTORS>(rows + j, queries, head_dim, scores + j * width);
        for (; j < num_rows; ++j) score_rows<1, VECTORS>(rows + j, queries, head_dim, scores + j * width);

        if (work.step.keys.scales.data)
            for (j = 0; j < num_rows; ++j)
                for (int n = 0; n < VECTORS; ++n) at(scores + j * width + n * LANES) *= scales[j];
        if (start < common_first || start + num_rows - 1 > common_last)
            for (j = 0; j < num_rows; ++j)
                for (int n = 0; n < VECTORS; ++n) {
                    Vec &score = at(scores + j * width + n * LANES);
                    const int32_t row = start - work.begin + j;
                    score = (first_seen[n] <= row) & (last_seen[n] >= row) ? score : fill(MINUS_INFINITY);
                }

        Vec chunk_max[VECTORS], old_factor[VECTORS], new_factor[VECTORS];
        for (int n = 0; n < VECTORS; ++n) chunk_max[n] = at(scores + n * LANES);
        for (j = 1; j < num_rows; ++j)
            for (int n = 0; n < VECTORS; ++n)
                chunk_max[n] = maximum(chunk_max[n], at(scores + j * width + n * LANES));
        for (int n = 0; n < VECTORS; ++n) {
            const Vec base = Fold::finite(chunk_max[n]);
            for (j = 0; j < num_rows; ++j) {
                Vec &score = at(scores + j * width + n * LANES);
                score = exp_of_negative(score - base);
            }
            Vec parts[LANES] = {};
            j = 0;
            if (offset == 0)
                for (; j + LANES <= num_rows; j += LANES)
                    for (int l = 0; l < LANES; ++l) parts[l] += at(scores + (j + l) * width + n * LANES);
            for (; j < num_rows; ++j) parts[(offset + j) % LANES] += at(scores + j * width + n * LANES);
            for (int half = LANES / 2; half; half /= 2)
                for (int l = 0; l < half; ++l) parts[l] += parts[l + half];
            const Fold factors(max[n], chunk_max[n]);
            max[n] = factors.max;
            sum[n] = fold(sum[n], factors.first, parts[0], factors.second);
            old_factor[n] = factors.first;
            new_factor[n] = factors.second;
        }

        work.load_rows(work.step.values, start, num_rows, in_place, rows, scales, buffer);
        if (work.step.values.scales.data)
            for (j = 0; j < num_rows; ++j)
                for (int n = 0; n < VECTORS; ++n) at(scores + j * width + n * LANES) *= scales[j];
        int d = 0;
        for (; d + tile <= head_dim; d += tile)
            add_values<tile, VECTORS>(rows, d, scores, num_rows, old_factor, new_factor, output);
        for (; d + 4 <= head_dim; d += 4)
            add_values<4, VECTORS>(rows, d, scores, num_rows, old_factor, new_factor, output);
        for (; d < head_dim; ++d)
            add_values<1, VECTORS>(rows, d, scores, num_rows, old_factor, new_factor, output);

        if (work.is_fold && next < work.end) continue;
        for (int r = 0; r < num_queries; ++r)
            work.store(r, start, max[r / LANES][r % LANES], sum[r / LANES][r % LANES], output + r, width);
        std::memset(output, 0, head_dim * width * sizeof(float));
        for (int n = 0; n < VECTORS; ++n) max[n] = fill(MINUS_INFINITY), sum[n] = Vec{};
    }
}

// columns[d][j] = rows[j][d] for LANES rows and all d
inline void transpose(const float *const *rows, int padded_dim, float *columns) {
    for (int d = 0; d < padded_dim; d += LANES) {
        Vec a[LANES], b[LANES];
        for (int j = 0; j < LANES; ++j) a[j] = load(rows[j] + d);
        for (int step = 1; step < LANES; step *= 2) {
            for (int j = 0; j < LANES / 2; ++j) {
                b[2 * j] = shuffle(a[j], a[j + LANES / 2], false);
                b[2 * j + 1] = shuffle(a[j], a[j + LANES / 2], true);
            }
            for (int j = 0; j < LANES; ++j) a[j] = b[j];
        }
        for (int j = 0; j < LANES; ++j) at(columns + (d + j) * CHUNK_ROWS) = a[j];
    }
}

// scores[q][:] = sum over d of queries[q][d] * columns[d][:], for ROW_VECTORS vectors of KV rows
template <int QUERIES>
inline void score_columns(const float *columns, const float *queries, int stride, int head_dim, float *scores) {
    Vec sum[QUERIES][ROW_VECTORS] = {};
    for (int d = 0; d < head_dim; ++d)
        for (int q = 0; q < QUERIES; ++q)
            for (int v = 0; v < ROW_VECTORS; ++v)
                sum[q][v] = fma(at(columns + d * CHUNK_ROWS + v * LANES), fill(queries[q * stride + d]), sum[q][v]);
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < ROW_VECTORS; ++v) at(scores + q * CHUNK_ROWS + v * LANES) = sum[q][v];
}

// output[q][:] folded with the sum over j of weights[q][j] * values[j][:], for VECTORS vectors of elements
template <int QUERIES, int VECTORS>
inline void add_value_rows(const float *const *values, int first, const float *weights, int num_rows, const Fold &factors,
                           float *output, int stride) {
    Vec sum[QUERIES][VECTORS] = {};
    for (int j = 0; j < num_rows; ++j)
        for (int v = 0; v < VECTORS; ++v) {
            const Vec value = load(values[j] + first + v * LANES);
            for (int q = 0; q < QUERIES; ++q) sum[q][v] = fma(value, fill(weights[q * CHUNK_ROWS + j]), sum[q][v]);
        }
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < VECTORS; ++v) {
            Vec &out = at(output + q * stride + first + v * LANES);
            out = fold(out, fill(factors.first[q]), sum[q][v], fill(factors.second[q]));
        }
}

// The queries of a task of few, and their state.
struct Few {
    alignas(64) float queries[MAX_FEW * MAX_HEAD_DIM], output[MAX_FEW * MAX_HEAD_DIM];
    alignas(64) float columns[MAX_HEAD_DIM * CHUNK_ROWS], buffer[CHUNK_ROWS * MAX_HEAD_DIM];
    alignas(64) float key_scales[CHUNK_ROWS], value_scales[CHUNK_ROWS], scores[QUAD * CHUNK_ROWS];
    const float *keys[CHUNK_ROWS], *values[CHUNK_ROWS];
    Vec max[MAX_FEW / QUAD], sum[MAX_FEW / QUAD];  // a lane for each query of the quad
};

// One chunk for QUERIES queries from `first_query` on. `begin` and `end` are its rows, from the chunk's beginning.
template <int QUERIES>
void run_quad(const Work &work, Few &few, int first_query, int64_t chunk, int begin, int end) {
    const int stride = padded(work.head_dim), first_vector = begin / LANES * LANES;
    float *queries = few.queries + first_query * stride, *output = few.output + first_query * stride;
    for (int j = first_vector / (ROW_VECTORS * LANES) * ROW_VECTORS * LANES; j < end; j += ROW_VECTORS * LANES)
        score_columns<QUERIES>(few.columns + j, queries, stride, work.head_dim, few.scores + j);

    IntVec lane;
    for (int l = 0; l < LANES; ++l) lane[l] = l;
    Vec chunk_max = fill(MINUS_INFINITY), chunk_sum = {};
    for (int q = 0; q < QUERIES; ++q) {
        float *scores = few.scores + q * CHUNK_ROWS;
        const int64_t position = work.position(first_query + q), first = position - work.step.window_size + 1 - chunk;
        const int32_t first_seen = work.is_windowed && first > begin ? (first < end ? first : end) : begin;
        const int32_t last_seen = position - chunk < end ? position - chunk : end - 1;
        Vec row_max = fill(MINUS_INFINITY), parts = {};
        for (int j = first_vector; j < end; j += LANES) {
            Vec &score = at(scores + j);
            if (work.step.keys.scales.data) score *= at(few.key_scales + j);
            score = (lane + j >= first_seen) & (lane + j <= last_seen) ? score : fill(MINUS_INFINITY);
            row_max = maximum(row_max, score);
        }
        for (int l = 0; l < LANES; ++l) chunk_max[q] = row_max[l] <= chunk_max[q] ? chunk_max[q] : row_max[l];
        const Vec base = Fold::finite(fill(chunk_max[q]));
        for (int j = first_vector; j < end; j += LANES) {
            Vec &score = at(scores + j);
            score = exp_of_negative(score - base);
            parts += score;
            if (work.step.values.scales.data) score *= at(few.value_scales + j);
        }
        for (int half = LANES / 2; half; half /= 2)
            for (int l = 0; l < half; ++l) parts[l] += parts[l + half];
        chunk_sum[q] = parts[0];
    }
    Vec &max = few.max[first_query / QUAD], &sum = few.sum[first_query / QUAD];
    const Fold factors(max, chunk_max);
    max = factors.max;
    sum = fold(sum, factors.first, chunk_sum, factors.second);

    int d = 0;
    for (; d + ROW_VECTORS * LANES <= stride; d += ROW_VECTORS * LANES)
        add_value_rows<QUERIES, ROW_VECTORS>(few.values + begin, d, few.scores + begin, end - begin, factors, output,
                                             stride);
    for (; d < stride; d += LANES)
        add_value_rows<QUERIES, 1>(few.values + begin, d, few.scores + begin, end - begin, factors, output, stride);
}

// A vector holds neighbouring KV rows.
void run_few(const Work &work) {
    Few few;
    const int num_queries = work.task.num_queries, head_dim = work.head_dim, stride = padded(head_dim);
    const bool in_place = stride == head_dim;
    std::memset(few.queries, 0, num_queries * stride * sizeof(float));
    for (int r = 0; r < num_queries; ++r) work.load_query(r, few.queries + r * stride, 1);
    const auto clear = [&] {
        std::memset(few.output, 0, num_queries * stride * sizeof(float));
        for (int n = 0; n < MAX_FEW / QUAD; ++n) few.max[n] = fill(MINUS_INFINITY), few.sum[n] = Vec{};
    };
    clear();
    for (int64_t start = work.begin, next; start < work.end; start = next) {
        next = (start / CHUNK_ROWS + 1) * CHUNK_ROWS;
        const int64_t chunk = next - CHUNK_ROWS;
        const int begin = start - chunk, end = (next < work.end ? next : work.end) - chunk;
        work.load_rows(work.step.keys, start, end - begin, in_place, few.keys + begin, few.key_scales + begin, few.buffer);
        for (int j = begin / LANES * LANES; j < begin; ++j) few.keys[j] = ZEROS;  // masked
        for (int j = end; j % LANES; ++j) few.keys[j] = ZEROS;
        for (int j = begin / LANES * LANES; j < end; j += LANES)
            transpose(few.keys + j, stride, few.columns + j);
        work.load_rows(work.step.values, start, end - begin, in_place, few.values + begin, few.value_scales + begin,
                       few.buffer);
        for (int q = 0; q < num_queries; q += QUAD) switch (num_queries - q) {
            case 1: run_quad<1>(work, few, q, chunk, begin, end); break;
            case 2: run_quad<2>(work, few, q, chunk, begin, end); break;
            case 3: run_quad<(QUAD < 3 ? QUAD : 3)>(work, few, q, chunk, begin, end); break;
            default: run_quad<QUAD>(work, few, q, chunk, begin, end);
            }
        if (work.is_fold && next < work.end) continue;
        for (int r = 0; r < num_queries; ++r)
            work.store(r, start, few.max[r / QUAD][r % QUAD], few.sum[r / QUAD][r % QUAD], few.output + r * stride, 1);
        clear();
    }
}

void run_task(const Work &work) {
    if (work.begin >= work.end) return;
    const int num_vectors = (work.task.num_queries + LANES - 1) / LANES;
    if (work.task.num_queries <= MAX_FEW) run_few(work);
    else if (num_vectors == 1) run_many<1>(work);
    else if (num_vectors == 2) run_many<2>(work);
    else run_many<MAX_VECTORS>(work);
}

// A partial result of one query. Its output may be somebody else's until it is folded with another.
struct Partial {
    float max = MINUS_INFINITY, sum = 0.0f;
    const float *output = nullptr;
    alignas(64) float folded[MAX_HEAD_DIM];

    void add(const Partial &other, int stride) {
        if (max == MINUS_INFINITY) {
            max = other.max, sum = other.sum, output = other.output;
            return;
        }
        const Fold factors(fill(max), fill(other.max));
        max = factors.max[0];
        sum = fold(fill(sum), factors.first, fill(other.sum), factors.second)[0];
        for (int d = 0; d < stride; d += LANES)
            at(folded + d) = fold(at(output + d), factors.first, at(other.output + d), factors.second);
        output = folded;
    }
};

// Fold the partial results of one (token, head), level by level in position order.
void merge(const Step &step, int64_t row) {
    const int64_t num_rows = step.num_tokens * step.num_query_heads, head_dim = step.head_dim;
    const int stride = padded(head_dim);
    Partial total, segment, next;
    int32_t current = 0;
    const auto close_segment = [&] {
        if (segment.max == MINUS_INFINITY) return;
        total.add(segment, stride);
        if (total.output == segment.folded) {  // its memory is about to be used again
            std::memcpy(total.folded, segment.folded, stride * sizeof(float));
            total.output = total.folded;
        }
        segment.max = MINUS_INFINITY;
    };
    for (int64_t i = row; i < step.num_levels * num_rows; i += num_rows) {
        if (step.partial_max[i] == MINUS_INFINITY) continue;
        if (step.partial_segment[i] != current) close_segment();
        current = step.partial_segment[i];
        next.max = step.partial_max[i], next.sum = step.partial_sum[i], next.output = step.partial_output + i * stride;
        segment.add(next, stride);
    }
    close_segment();
    const int64_t kv_head = row % step.num_query_heads / (step.num_query_heads / step.num_kv_heads);
    const float *fixed = fixed_scale(step, step.values, kv_head);
    float *output = step.output + row * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) output[d] = total.output[d] / total.sum * (fixed ? fixed[d] : 1.0f);
}

}  // namespace

extern "C" int64_t max_queries_per_task() { return MAX_WIDTH; }
extern "C" int64_t max_head_dim() { return MAX_HEAD_DIM; }
extern "C" int64_t lanes() { return LANES; }
extern "C" int64_t chunk_rows() { return CHUNK_ROWS; }
extern "C" int64_t segment_rows() { return SEGMENT_ROWS; }

extern "C" void attend(const Step *step, const Task *tasks, int64_t num_tasks, int64_t num_threads) {
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < num_tasks * step->num_kv_heads; ++i)
            run_task(Work(*step, tasks[i / step->num_kv_heads], i % step->num_kv_heads));
#pragma omp for schedule(static)
        for (int64_t row = 0; row < step->num_tokens * step->num_query_heads; ++row) merge(*step, row);
    }
}
