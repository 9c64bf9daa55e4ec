// Attention over plan items on a CPU: float32, any strides, any number of queries for one run of KV rows.
//
// A task is one run of rows, one KV head and up to WIDTH query rows (token, head in group). Scores are kept
// transposed, [KV row][query row], so that a vector holds the same KV row's score for neighbouring queries:
// K and V elements are broadcast straight from the pool, whatever its layout, and nothing is packed but the
// queries. Softmax is the online one (Milakov & Gimelshein 2018); partial results merge by their maxima.
//
// Built by native.py for the machine it runs on; reference.py is its oracle.

#include <cstdint>

namespace {

#if defined(__AVX512F__)  // 32 registers: accumulators, MAX_VECTORS operands, a broadcast
constexpr int LANES = 16, MAX_VECTORS = 4, MAX_ACCUMULATORS = 24;
#elif defined(__AVX__)  // 16 registers
constexpr int LANES = 8, MAX_VECTORS = 2, MAX_ACCUMULATORS = 12;
#else
constexpr int LANES = 4, MAX_VECTORS = 2, MAX_ACCUMULATORS = 12;
#endif
constexpr int MAX_WIDTH = LANES * MAX_VECTORS;
constexpr int CHUNK = 96;  // KV rows whose scores stay in the first-level cache
constexpr int MAX_HEAD_DIM = 256;

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));

constexpr float MINUS_INFINITY = -__builtin_inff();

inline Vec fill(float x) { return x - Vec{}; }
inline Vec &at(float *p) { return *reinterpret_cast<Vec *>(p); }
inline const Vec &at(const float *p) { return *reinterpret_cast<const Vec *>(p); }

// e^x for x <= 0, to 2 units in the last place; anything below -87 gives about 1e-38.
inline Vec exp_of_negative(Vec x) {
    x = x > -87.0f ? x : fill(-87.0f);
    const Vec shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the low bits become round(x / ln 2)
    const Vec n = shifted - 12582912.0f;
    const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec p = fill(1.0f / 720) * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + (reinterpret_cast<IntVec>(shifted) << 23));
}

// scores[m][:] = sum over d of keys[m][d] * queries[d][:]
template <int ROWS, int VECTORS>
inline void score_rows(const float *const *keys, const float *queries, int head_dim, float *scores) {
    constexpr int width = VECTORS * LANES;
    Vec sum[ROWS][VECTORS] = {};
    for (int d = 0; d < head_dim; ++d) {
        Vec query[VECTORS];
        for (int n = 0; n < VECTORS; ++n) query[n] = at(queries + d * width + n * LANES);
        for (int m = 0; m < ROWS; ++m)
            for (int n = 0; n < VECTORS; ++n) sum[m][n] += keys[m][d] * query[n];
    }
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) at(scores + m * width + n * LANES) = sum[m][n];
}

// output[m][:] += sum over j of values[j][m] * weights[j][:], for the elements from `first` on
template <int ROWS, int VECTORS>
inline void add_values(const float *const *values, int first, const float *weights, int num_rows, float *output) {
    constexpr int width = VECTORS * LANES;
    Vec sum[ROWS][VECTORS];
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) sum[m][n] = at(output + (first + m) * width + n * LANES);
    for (int j = 0; j < num_rows; ++j) {
        Vec weight[VECTORS];
        for (int n = 0; n < VECTORS; ++n) weight[n] = at(weights + j * width + n * LANES);
        const float *value = values[j] + first;
        for (int m = 0; m < ROWS; ++m)
            for (int n = 0; n < VECTORS; ++n) sum[m][n] += value[m] * weight[n];
    }
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) at(output + (first + m) * width + n * LANES) = sum[m][n];
}

}  // namespace

extern "C" {

struct Step {  // one layer of one step
    const float *query;        // [num_tokens][num_query_heads][head_dim], contiguous
    const float *keys;         // the pool: row of slot s and head h at s * slot_stride + h * head_stride
    const float *values;
    int64_t slot_stride, head_stride;
    const int64_t *slots;      // the rows of all items, one after the other
    float *partial_output;     // [num_levels][num_tokens][num_query_heads][head_dim], unnormalised
    float *partial_max;        // [num_levels][num_tokens][num_query_heads]; -inf: no such partial
    float *partial_sum;        // same shape
    float *output;             // [num_tokens][num_query_heads][head_dim]
    int64_t num_tokens, num_levels, num_query_heads, num_kv_heads, head_dim;
};

struct Task {
    int64_t first_slot;   // index into Step.slots
    int64_t num_rows;     // KV rows of the run
    int64_t first_token;  // of the item
    int64_t level;
    int64_t causal;       // query token i of the item reads rows 0 .. i only
    int64_t kv_head;
    int64_t first_query;  // of the item's query rows (token, head in group), row-major
    int64_t num_queries;  // at most MAX_WIDTH
};

}  // extern "C"

namespace {

template <int VECTORS>
void run_task(const Step &step, const Task &task) {
    constexpr int width = VECTORS * LANES, tile = VECTORS * 8 <= MAX_ACCUMULATORS ? 8 : 6;
    alignas(64) float queries[MAX_HEAD_DIM * width], output[MAX_HEAD_DIM * width], scores[CHUNK * width];
    const float *rows[CHUNK];
    const int head_dim = step.head_dim, group = step.num_query_heads / step.num_kv_heads;
    const float scale = 1.0f / __builtin_sqrtf(head_dim);
    const auto place = [&](int r) {  // of query row r among all (token, head) pairs
        const int64_t row = task.first_query + r;
        return (task.first_token + row / group) * step.num_query_heads + task.kv_head * group + row % group;
    };

    IntVec last_row[VECTORS] = {};  // the last KV row each query may read, if causal
    for (int r = 0; r < width; ++r) {
        const bool used = r < task.num_queries;
        const float *query = used ? step.query + place(r) * head_dim : nullptr;
        for (int d = 0; d < head_dim; ++d) queries[d * width + r] = used ? query[d] * scale : 0.0f;
        last_row[r / LANES][r % LANES] = (task.first_query + r) / group;
    }
    for (int i = 0; i < head_dim * width; i += LANES) at(output + i) = Vec{};
    Vec max[VECTORS], sum[VECTORS] = {};
    for (int n = 0; n < VECTORS; ++n) max[n] = fill(MINUS_INFINITY);

    const int64_t first_limit = task.first_query / group;  // causal: rows up to here are seen by all
    const int64_t last_limit = (task.first_query + task.num_queries - 1) / group;
    const int64_t end = task.causal && last_limit + 1 < task.num_rows ? last_limit + 1 : task.num_rows;
    const int64_t *slots = step.slots + task.first_slot;
    for (int64_t start = 0; start < end; start += CHUNK) {
        const int num_rows = end - start < CHUNK ? end - start : CHUNK;
        for (int j = 0; j < num_rows; ++j)
            rows[j] = step.keys + slots[start + j] * step.slot_stride + task.kv_head * step.head_stride;
        int j = 0;
        for (; j + tile <= num_rows; j += tile)
            score_rows<tile, VECTORS>(rows + j, queries, head_dim, scores + j * width);
        for (; j + 2 <= num_rows; j += 2) score_rows<2, VECTORS>(rows + j, queries, head_dim, scores + j * width);
        for (; j < num_rows; ++j) score_rows<1, VECTORS>(rows + j, queries, head_dim, scores + j * width);

        if (task.causal && start + num_rows - 1 > first_limit)
            for (int j = 0; j < num_rows; ++j)
                for (int n = 0; n < VECTORS; ++n) {
                    Vec &score = at(scores + j * width + n * LANES);
                    score = last_row[n] >= static_cast<int32_t>(start + j) ? score : fill(MINUS_INFINITY);
                }

        for (int n = 0; n < VECTORS; ++n) {
            Vec new_max = max[n];
            for (int j = 0; j < num_rows; ++j) {
                const Vec score = at(scores + j * width + n * LANES);
                new_max = score > new_max ? score : new_max;
            }
            const Vec shrink = exp_of_negative(max[n] - new_max);
            Vec chunk_sum = {};
            for (int j = 0; j < num_rows; ++j) {
                Vec &score = at(scores + j * width + n * LANES);
                score = exp_of_negative(score - new_max);
                chunk_sum += score;
            }
            sum[n] = sum[n] * shrink + chunk_sum;
            max[n] = new_max;
            if (start > 0)
                for (int d = 0; d < head_dim; ++d) at(output + d * width + n * LANES) *= shrink;
        }

        for (int j = 0; j < num_rows; ++j)
            rows[j] = step.values + slots[start + j] * step.slot_stride + task.kv_head * step.head_stride;
        int d = 0;
        for (; d + tile <= head_dim; d += tile) add_values<tile, VECTORS>(rows, d, scores, num_rows, output);
        for (; d + 4 <= head_dim; d += 4) add_values<4, VECTORS>(rows, d, scores, num_rows, output);
        for (; d < head_dim; ++d) add_values<1, VECTORS>(rows, d, scores, num_rows, output);
    }

    const int64_t level = task.level * step.num_tokens * step.num_query_heads;
    for (int r = 0; r < task.num_queries; ++r) {
        const int64_t row = level + place(r);
        for (int d = 0; d < head_dim; ++d) step.partial_output[row * head_dim + d] = output[d * width + r];
        step.partial_max[row] = max[r / LANES][r % LANES];
        step.partial_sum[row] = sum[r / LANES][r % LANES];
    }
}

// Combine the partial results of one (token, head), level by level in position order.
void merge(const Step &step, int64_t row) {
    const int64_t num_rows = step.num_tokens * step.num_query_heads, head_dim = step.head_dim;
    float max = MINUS_INFINITY, sum = 0.0f;
    for (int64_t i = row; i < step.num_levels * num_rows; i += num_rows)
        max = step.partial_max[i] > max ? step.partial_max[i] : max;
    float *output = step.output + row * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) output[d] = 0.0f;
    for (int64_t i = row; i < step.num_levels * num_rows; i += num_rows) {
        if (step.partial_max[i] == MINUS_INFINITY) continue;
        const float weight = __builtin_expf(step.partial_max[i] - max);
        const float *partial = step.partial_output + i * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) output[d] += weight * partial[d];
        sum += weight * step.partial_sum[i];
    }
    for (int64_t d = 0; d < head_dim; ++d) output[d] /= sum;
}

}  // namespace

extern "C" int64_t max_queries_per_task() { return MAX_WIDTH; }
extern "C" int64_t max_head_dim() { return MAX_HEAD_DIM; }

extern "C" void attend(const Step *step, const Task *tasks, int64_t num_tasks, int64_t num_threads) {
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < num_tasks; ++i) {
            const int num_vectors = (tasks[i].num_queries + LANES - 1) / LANES;
            if (num_vectors == 1) run_task<1>(*step, tasks[i]);
            else if (num_vectors == 2) run_task<2>(*step, tasks[i]);
            else if constexpr (MAX_VECTORS > 2) {
                if (num_vectors == 3) run_task<3>(*step, tasks[i]);
                else run_task<4>(*step, tasks[i]);
            }
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < step->num_tokens * step->num_query_heads; ++row) merge(*step, row);
    }
}
