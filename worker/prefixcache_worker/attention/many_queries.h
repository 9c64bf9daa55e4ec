// A task of many queries: a vector holds one KV row's scores for neighbouring queries.

#pragma once

#include "task.h"

namespace {

// scores[m][:] = sum over d of keys[m][d] * queries[d][:]
template <int ROWS, int VECTORS, bool PAIRED>
inline void score_rows(const float *const *keys, const float *queries, int row_width, float *scores) {
    constexpr int width = VECTORS * LANES;
    Vec sum[ROWS][VECTORS] = {};
    for (int d = 0; d < row_width; ++d) {
        Vec query[VECTORS];
        for (int n = 0; n < VECTORS; ++n) query[n] = at(queries + d * width + n * LANES);
        for (int m = 0; m < ROWS; ++m)
            for (int n = 0; n < VECTORS; ++n) sum[m][n] = multiply<PAIRED>(fill(keys[m][d]), query[n], sum[m][n]);
    }
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) at(scores + m * width + n * LANES) = sum[m][n];
}

// output[m][:] folded with the sum over j of values[j][m] * weights[j][:], for the elements from `first` on
template <int ROWS, int VECTORS, bool PAIRED>
inline void add_values(const float *const *values, int first, const float *weights, int num_rows, const Vec *old_factor,
                       const Vec *new_factor, float *output) {
    constexpr int width = VECTORS * LANES;
    Vec sum[ROWS][VECTORS] = {};
    for (int j = 0; j < num_rows; ++j) {
        Vec weight[VECTORS];
        for (int n = 0; n < VECTORS; ++n) weight[n] = at(weights + j * width + n * LANES);
        const float *value = values[j] + first;
        for (int m = 0; m < ROWS; ++m)
            for (int n = 0; n < VECTORS; ++n) sum[m][n] = multiply<PAIRED>(fill(value[m]), weight[n], sum[m][n]);
    }
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < VECTORS; ++n) {
            Vec &out = at(output + (first + m) * width + n * LANES);
            out = fold(out, old_factor[n], sum[m][n], new_factor[n]);
        }
}

template <int VECTORS, bool PAIRED>
void run_many(const Work &work) {
    constexpr int width = VECTORS * LANES, tile = VECTORS < 2 || LANES == 16 ? 8 : 4;
    alignas(64) float queries[MAX_HEAD_DIM * width], output[MAX_HEAD_DIM * width], scores[CHUNK_ROWS * width];
    alignas(64) float buffer[CHUNK_ROWS * MAX_HEAD_DIM], pair_buffer[PAIRED ? CHUNK_ROWS / 2 * MAX_HEAD_DIM : 1];
    float scales[CHUNK_ROWS];
    const float *rows[CHUNK_ROWS], *pairs[CHUNK_ROWS / 2];
    const int num_queries = work.task.num_queries, head_dim = work.head_dim, row_width = work.row_width();

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
    if (PAIRED)
        for (int i = 0; i < row_width * width; i += LANES) {
            const int even = i / width * 2 * width + i % width;
            at(queries + i) = pair(at(queries + even), at(queries + even + width));
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
            score_rows<tile, VECTORS, PAIRED>(rows + j, queries, row_width, scores + j * width);
        for (; j + 2 <= num_rows; j += 2) score_rows<2, VECTORS, PAIRED>(rows + j, queries, row_width, scores + j * width);
        for (; j < num_rows; ++j) score_rows<1, VECTORS, PAIRED>(rows + j, queries, row_width, scores + j * width);

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
        const float **values = rows;
        int num_values = num_rows;
        if (PAIRED) {
            const int first = -(start % 2);
            num_values = work.pair_rows(rows, first, num_rows, pairs, pair_buffer);
            values = pairs;
            for (int i = 0; i < num_values * VECTORS; ++i) {
                const int n = i % VECTORS * LANES;
                j = first + i / VECTORS * 2;
                const Vec even = j < 0 ? Vec{} : at(scores + j * width + n);
                const Vec odd = j + 1 < num_rows ? at(scores + (j + 1) * width + n) : Vec{};
                at(scores + i / VECTORS * width + n) = pair(even, odd);
            }
        }
        int d = 0;
        for (; d + tile <= head_dim; d += tile)
            add_values<tile, VECTORS, PAIRED>(values, d, scores, num_values, old_factor, new_factor, output);
        for (; d + 4 <= head_dim; d += 4)
            add_values<4, VECTORS, PAIRED>(values, d, scores, num_values, old_factor, new_factor, output);
        for (; d < head_dim; ++d)
            add_values<1, VECTORS, PAIRED>(values, d, scores, num_values, old_factor, new_factor, output);

        if (work.is_fold && next < work.end) continue;
        for (int r = 0; r < num_queries; ++r)
            work.store(r, start, max[r / LANES][r % LANES], sum[r / LANES][r % LANES], output + r, width);
        std::memset(output, 0, head_dim * width * sizeof(float));
        for (int n = 0; n < VECTORS; ++n) max[n] = fill(MINUS_INFINITY), sum[n] = Vec{};
    }
}

}  // namespace
