// Co-attention of slices in rows, and the sum over the slices, for orders 2, 4 and 8 and as many slices.
//
// A row has the responses (channel, slice t) of one position and one input pose h. A vector has all slices of some
// channels, so poses are mixed between vectors, each lane with the matrix of its slice. Output pose g reads input pose
// h through slice t(g, h): `outward[h]` takes the lanes t to their g.

#pragma once

#include "pose_rows.h"

namespace {

// Numbers from a row to that of the next position, and to that of the next input pose.
struct SliceSteps {
    int64_t position, pose;
};

template <int N> struct SliceFactors {
    int64_t step;  // columns per input pose
    bool finite = true;
    std::vector<float> matrix;  // (column / lanes, h, h', lanes): from input pose h to input pose h', divided by N
    bits outward[N], inward[N];
    int pose[N][N];  // the output pose of input pose h and slice t
    const float *matrices;

    SliceFactors(const float *matrices, const RowShape &s) : step(padded(s.outputs())), matrices(matrices) {
        for (int t = 0; t < N; ++t)
            for (int g = 0; g < N; ++g) pose[s.sources[t * N + g] / s.outputs()][t] = g;
        for (int h = 0; h < N; ++h)
            for (int i = 0; i < lanes; ++i) {
                const int first = i / N * N, g = pose[h][i % N];
                inward[h][i] = first + g;
                outward[h][first + g] = i;
            }
        matrix.assign(step * N * N, 0);
        for (int64_t column = 0; column < s.outputs(); ++column)
            for (int h = 0; h < N; ++h)
                for (int k = 0; k < N; ++k) {
                    const float entry = matrices[(column * N + pose[h][column % N]) * N + pose[k][column % N]];
                    at(column, h, k) = entry / N;
                    finite &= entry * 0 == 0;
                }
    }
    float &at(int64_t column, int h, int k) {
        return matrix[((column / lanes * N + h) * N + k) * lanes + column % lanes];
    }
    const float *of(int64_t v) const { return &matrix[v * N * N]; }
    int64_t sums() const { return step * N * N; }

    // Adds the sums of attend_slice_gradients, in the order of `matrix`, to the gradients of the matrices.
    void add_sums(const float *da, int64_t columns, float *dmatrices) const {
        for (int64_t column = 0; column < columns; ++column)
            for (int h = 0; h < N; ++h)
                for (int k = 0; k < N; ++k)
                    dmatrices[(column * N + pose[h][column % N]) * N + pose[k][column % N]] +=
                        da[((column / lanes * N + h) * N + k) * lanes + column % lanes] / N;
    }
};

// The poses of some channels at one position, one vector for each input pose.
template <int N> struct SliceAttention {
    vec x[N], logit[N], mask[N], top;

    template <bool whole, typename T> INLINE void find(const T *from, int64_t step, const float *a, int count) {
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) x[h] = get<whole>(from + h * step, count);
#pragma GCC unroll 8
        for (int k = 0; k < N; ++k) {
            logit[k] = load(a + k * lanes) * x[0];
#pragma GCC unroll 8
            for (int h = 1; h < N; ++h) logit[k] += load(a + (h * N + k) * lanes) * x[h];
            top = k == 0 ? logit[0] : larger(logit[k], top);
        }
#pragma GCC unroll 8
        for (int k = 0; k < N; ++k) mask[k] = power_of_two((logit[k] - top) * L::log2_e);
    }
};

template <int N, bool whole, typename T, typename Y>
INLINE bool attend_slice_columns(const T *x, SliceSteps steps, const SliceFactors<N> &a, Columns at, Y *y,
                                 int64_t columns) {
    const float *matrix = a.of(at.first);
    vec squares = vec{};
    SliceAttention<N> attention;
    for (int64_t p = 0; p < at.rows; ++p) {
        attention.template find<whole>(x + p * steps.position + at.first, steps.pose, matrix, at.count);
        squares += attention.top * attention.top;
        vec sum = vec{};
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) sum += permuted(attention.mask[h] * attention.x[h], a.outward[h]);
        put<whole>(y + p * columns + at.first, sum, at.count);
    }
    return were_ordinary(squares);
}

template <int N, bool whole, typename T, typename Y>
INLINE bool differentiate_slice_columns(const Y *dy, int64_t columns, const T *x, SliceSteps steps,
                                        const SliceFactors<N> &a, Columns at, Y *dx, float *da) {
    const float *matrix = a.of(at.first);
    vec squares = vec{};
    SliceAttention<N> attention;
    vec sums[N * N] = {};
    for (int64_t p = 0; p < at.rows; ++p) {
        attention.template find<whole>(x + p * steps.position + at.first, steps.pose, matrix, at.count);
        squares += attention.top * attention.top;
        const vec above = get<whole>(dy + p * columns + at.first, at.count);
        vec direct[N], d_logit[N], total = vec{}, ties = vec{};
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) {
            direct[h] = attention.mask[h] * permuted(above, a.inward[h]);
            d_logit[h] = direct[h] * attention.x[h];
            total += d_logit[h];
            ties += attention.logit[h] == attention.top ? vec{} + 1 : vec{};
        }
        total /= ties;
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) d_logit[h] -= attention.logit[h] == attention.top ? total : total - total;
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) {
#pragma GCC unroll 8
            for (int k = 0; k < N; ++k) {
                direct[h] += load(matrix + (h * N + k) * lanes) * d_logit[k];
                sums[h * N + k] += attention.x[h] * d_logit[k];
            }
            put<whole>(dx + p * steps.position + h * steps.pose + at.first, direct[h], at.count);
        }
    }
    const bool was_ordinary = were_ordinary(squares);
    if (was_ordinary)
        for (int i = 0; i < N * N; ++i) {
            float *sum = da + at.first * N * N + i * lanes;
            store(sum, load(sum) + sums[i]);
        }
    return was_ordinary;
}

// The rows of all input poses of a position one after another, as tiles read them.
template <int N, typename T>
std::vector<T> poses_side_by_side(const T *x, SliceSteps steps, int64_t rows, int64_t columns) {
    std::vector<T> copy(rows * N * columns);
    for (int64_t r = 0; r < rows; ++r)
        for (int h = 0; h < N; ++h)
            std::copy_n(x + r * steps.position + h * steps.pose, columns, &copy[(r * N + h) * columns]);
    return copy;
}

// Attends to some positions, x (position, pose, column) in steps, and sums the slices: y (rows, columns).
template <int N, typename T, typename Y>
void attend_slice_rows(const T *x, SliceSteps steps, const SliceFactors<N> &a, const RowShape &s, int64_t rows, Y *y) {
    const int64_t columns = s.outputs();
    for_columns(columns, [&](auto whole, int64_t v, int count) {
        const Columns at = {v, rows, count};
        if (attend_slice_columns<N, whole.value>(x, steps, a, at, y, columns) && a.finite) return;
        const std::vector<T> copy = poses_side_by_side<N>(x, steps, rows, columns);
        std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
        std::vector<float> sum(rows * N);
        for (int64_t c = v / N; c * N < v + count; ++c) {
            std::fill(sum.begin(), sum.end(), 0.f);
            for (int64_t t = 0; t < N; ++t)
                attend_tiles(copy.data(), a.matrices + (c * N + t) * N * N, s, c, t, rows, *scratch, sum.data());
            for (int64_t r = 0; r < rows; ++r)
                for (int g = 0; g < N; ++g) assign(y[r * columns + c * N + g], sum[r * N + g]);
        }
    });
}

// The gradients: dx in the steps of x; sums for those of the matrices are added to da and, from tiles, to dmatrices.
template <int N, typename T, typename Y>
void differentiate_slice_rows(const Y *dy, const T *x, SliceSteps steps, const SliceFactors<N> &a, const RowShape &s,
                              int64_t rows, Y *dx, float *da, float *dmatrices) {
    const int64_t columns = s.outputs();
    for_columns(columns, [&](auto whole, int64_t v, int count) {
        const Columns at = {v, rows, count};
        if (a.finite && differentiate_slice_columns<N, whole.value>(dy, columns, x, steps, a, at, dx, da)) return;
        const std::vector<T> copy = poses_side_by_side<N>(x, steps, rows, columns);
        std::vector<T> gradients(copy.size());
        std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
        for (int64_t k = v; k < v + count; ++k)
            differentiate_tiles(dy, columns, copy.data(), a.matrices + k * N * N, gradients.data(),
                                dmatrices + k * N * N, s, k / N, k % N, rows, *scratch);
        for (int64_t r = 0; r < rows; ++r)
            for (int h = 0; h < N; ++h)
                for (int i = 0; i < count; ++i)
                    assign(dx[r * steps.position + h * steps.pose + v + i],
                           number(gradients[(r * N + h) * columns + v + i]));
    });
}

}  // namespace
