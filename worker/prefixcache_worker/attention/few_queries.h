// A task of few queries: a vector holds one query's scores for neighbouring KV rows.

#pragma once

#include "task.h"

namespace {

// scores[q][:] = sum over d of queries[q][d] * columns[d][:], for ROW_VECTORS vectors of KV rows
template <int QUERIES, bool PAIRED>
inline void score_columns(const float *columns, const float *queries, int stride, int row_width, float *scores) {
    Vec sum[QUERIES][ROW_VECTORS] = {};
    for (int d = 0; d < row_width; ++d)
        for (int q = 0; q < QUERIES; ++q)
            for (int v = 0; v < ROW_VECTORS; ++v)
                sum[q][v] = multiply<PAIRED>(at(columns + d * CHUNK_ROWS + v * LANES), fill(queries[q * stride + d]),
                                             sum[q][v]);
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < ROW_VECTORS; ++v) at(scores + q * CHUNK_ROWS + v * LANES) = sum[q][v];
}

// output[q][:] folded with the sum over j of weights[q][j] * values[j][:], for VECTORS vectors of elements
template <int QUERIES, int VECTORS, bool PAIRED>
inline void add_value_rows(const float *const *values, int first, const float *weights, int num_rows, const Fold &factors,
                           float *output, int stride) {
    Vec sum[QUERIES][VECTORS] = {};
    for (int j = 0; j < num_rows; ++j)
        for (int v = 0; v < VECTORS; ++v) {
            const Vec value = load(values[j] + first + v * LANES);
            for (int q = 0; q < QUERIES; ++q) sum[q][v] = multiply<PAIRED>(value, fill(weights[q * CHUNK_ROWS + j]), sum[q][v]);
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
    alignas(64) float pairs[CHUNK_ROWS / 2 * MAX_HEAD_DIM];
    alignas(64) float key_scales[CHUNK_ROWS], value_scales[CHUNK_ROWS], scores[QUAD * CHUNK_ROWS];
    const float *keys[CHUNK_ROWS], *values[CHUNK_ROWS];
    Vec max[MAX_FEW / QUAD], sum[MAX_FEW / QUAD];  // a lane for each query of the quad
};

// One chunk for QUERIES queries from `first_query` on. `begin` and `end` are its rows, from the chunk's beginning.
template <int QUERIES, bool PAIRED>
void run_quad(const Work &work, Few &few, int first_query, int64_t chunk, int begin, int end) {
    const int stride = padded(work.head_dim), first_vector = begin / LANES * LANES;
    float *queries = few.queries + first_query * stride, *output = few.output + first_query * stride;
    for (int j = first_vector / (ROW_VECTORS * LANES) * ROW_VECTORS * LANES; j < end; j += ROW_VECTORS * LANES)
        score_columns<QUERIES, PAIRED>(few.columns + j, queries, stride, work.row_width(), few.scores + j);

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

    if (PAIRED) {  // from here on begin and end count pairs, as few.values does
        for (int q = 0; q < QUERIES; ++q)
            for (int j = first_vector; j < end; j += LANES)
                pair_neighbours(at(few.scores + q * CHUNK_ROWS + j), few.scores + q * CHUNK_ROWS + j / 2);
        begin = begin / 2;
        end = (end + 1) / 2;
    }
    const float *weights = few.scores + begin, **values = few.values + begin;
    int d = 0;
    for (; d + ROW_VECTORS * LANES <= stride; d += ROW_VECTORS * LANES)
        add_value_rows<QUERIES, ROW_VECTORS, PAIRED>(values, d, weights, end - begin, factors, output, stride);
    for (; d < stride; d += LANES)
        add_value_rows<QUERIES, 1, PAIRED>(values, d, weights, end - begin, factors, output, stride);
}

template <bool PAIRED>
void run_few(const Work &work) {
    Few few;
    const int num_queries = work.task.num_queries, head_dim = work.head_dim, stride = padded(head_dim);
    const int row_stride = padded(work.row_width());
    const bool in_place = row_stride == work.row_width();
    std::memset(few.queries, 0, num_queries * stride * sizeof(float));
    for (int r = 0; r < num_queries; ++r) work.load_query(r, few.queries + r * stride, 1);
    if (PAIRED)
        for (int i = 0; i < num_queries * stride; i += LANES)
            pair_neighbours(at(few.queries + i), few.queries + i / stride * stride + i % stride / 2);
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
            for (int d = 0; d < row_stride; d += LANES)
                transpose(few.keys + j, d, few.columns + d * CHUNK_ROWS + j, CHUNK_ROWS);
        work.load_rows(work.step.values, start, end - begin, in_place, few.values + begin, few.value_scales + begin,
                       few.buffer);
        if (PAIRED) {
            const float *pairs[CHUNK_ROWS / 2];
            const int num_pairs = work.pair_rows(few.values + begin, -(begin % 2), end - begin, pairs, few.pairs);
            for (int i = 0; i < num_pairs; ++i) few.values[begin / 2 + i] = pairs[i];
        }
        for (int q = 0; q < num_queries; q += QUAD) switch (num_queries - q) {
            case 1: run_quad<1, PAIRED>(work, few, q, chunk, begin, end); break;
            case 2: run_quad<2, PAIRED>(work, few, q, chunk, begin, end); break;
            case 3: run_quad<(QUAD < 3 ? QUAD : 3), PAIRED>(work, few, q, chunk, begin, end); break;
            default: run_quad<QUAD, PAIRED>(work, few, q, chunk, begin, end);
            }
        if (work.is_fold && next < work.end) continue;
        for (int r = 0; r < num_queries; ++r)
            work.store(r, start, few.max[r / QUAD][r % QUAD], few.sum[r / QUAD][r % QUAD], few.output + r * stride, 1);
        clear();
    }
}

}  // namespace
