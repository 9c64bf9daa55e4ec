// What the kernel is told to do: a step's tensors, a task's rows and queries, and where the results go.

#pragma once

#include "kv_rows.h"
#include "pairs.h"

namespace {

constexpr int MAX_WIDTH = LANES * MAX_VECTORS;
constexpr int MAX_FEW = LANES / 2;  // up to so many queries, vectors of KV rows do less work
constexpr int QUAD = MAX_FEW < 4 ? MAX_FEW : 4;  // of the few, so many at a time
constexpr int CHUNK_ROWS = 64, SEGMENT_ROWS = 512;  // as in plan.py
constexpr int MAX_HEAD_DIM = 256;

constexpr float MINUS_INFINITY = -__builtin_inff();
alignas(64) const float ZEROS[MAX_HEAD_DIM] = {};

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
    bool is_paired;      // products are those of pairs

    Work(const Step &step, const Task &task, int kv_head)
        : step(step), task(task), kv_head(kv_head), head_dim(step.head_dim),
          group(step.num_query_heads / step.num_kv_heads),
          is_windowed(step.window_size && task.first_position >= step.num_sinks),
          is_fold(task.first_position % SEGMENT_ROWS == 0 || task.first_position % CHUNK_ROWS != 0),
          is_paired(HAS_PAIRS && step.keys.format == BFLOAT16 && step.values.format == BFLOAT16 &&
                    step.head_dim % LANES == 0) {
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

    // Floats in a loaded row: elements, or pairs of them.
    int row_width() const { return is_paired ? head_dim / 2 : head_dim; }

    // Pointers to the rows at `position` and behind it, as floats or pairs. With `in_place` rows that are so in the
    // pool stay there; all others go into `buffer` [num_rows][padded(row_width())], with zeros behind each.
    void load_rows(const Pool &pool, int64_t position, int num_rows, bool in_place, const float **rows, float *scales,
                   float *buffer) const {
        const int64_t format = is_paired ? int64_t(FLOAT32) : pool.format;
        const int width = row_width(), stride = padded(width), num_bytes = width * BITS[format] / 8;
        in_place &= format == FLOAT32;
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
            widen_row(format, reinterpret_cast<const char *>(rows[j]), width, buffer + j * stride);
            rows[j] = buffer + j * stride;
        }
    }

    // Pair loaded rows of values with the next ones, by position: pairs[i][d] of rows first + 2i and first + 2i + 1,
    // where `first` is 0 or, to be even in the chunk, -1. Returns how many there are.
    int pair_rows(const float *const *rows, int first, int num_rows, const float **pairs, float *buffer) const {
        const int num_pairs = (num_rows - first + 1) / 2;
        for (int i = 0, j = first; i < num_pairs; ++i, j += 2) {
            const float *even = j < 0 ? ZEROS : rows[j], *odd = j + 1 < num_rows ? rows[j + 1] : ZEROS;
            pairs[i] = buffer + i * head_dim;
            for (int d = 0; d < head_dim; d += LANES)
                at(buffer + i * head_dim + d) = pair_stored(even + d / 2, odd + d / 2);
        }
        return num_pairs;
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

}  // namespace
