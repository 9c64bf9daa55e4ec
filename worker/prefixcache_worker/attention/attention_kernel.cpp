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
// left to the compiler, two ways to write the same sum would round differently. bfloat16 KV is multiplied in pairs
// where the machine can (pairs.h): scores are then summed by pairs of elements, outputs by pairs of rows.
//
// Softmax is the online one (Milakov & Gimelshein 2018). Built by native.py for the machine it runs on;
// reference.py is its oracle.

#include "few_queries.h"
#include "many_queries.h"

namespace {

template <bool PAIRED>
void run_task(const Work &work) {
    const int num_vectors = (work.task.num_queries + LANES - 1) / LANES;
    if (work.task.num_queries <= MAX_FEW) run_few<PAIRED>(work);
    else if (num_vectors == 1) run_many<1, PAIRED>(work);
    else if (num_vectors == 2) run_many<2, PAIRED>(work);
    else run_many<MAX_VECTORS, PAIRED>(work);
}

void run_task(const Work &work) {
    if (work.begin >= work.end) return;
    if (work.is_paired) run_task<HAS_PAIRS>(work);
    else run_task<false>(work);
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
    if (!total.output) {  // every query sees its own row: no maximum means that no score was a finite number
        for (int64_t d = 0; d < head_dim; ++d) output[d] = __builtin_nanf("");
        return;
    }
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
