// Co-attention in rows through tiles of positions (tile.h): every order, every number of slices, to the letter for
// infinities and NaN.

#pragma once

#include "rows.h"

namespace {

// Adds what attention to one slice of one channel gives to sum (rows, order).
template <typename T>
void attend_tiles(const T *x, const float *matrix, const RowShape &s, int64_t channel, int64_t t, int64_t rows,
                  Scratch<float, 0> &scratch, float *sum) {
    const int n = s.order;
    Tile<float, 0, true> tile;
    constexpr int width = Tile<float, 0, true>::width;
    Edge<float, 0> &in = scratch.in, &out = scratch.below;
    scratch.a.take(matrix, n);
    for (int64_t p = 0; p < rows; p += width) {
        const int count = std::min<int64_t>(width, rows - p);
        in.clear(n), out.clear(n);
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < count; ++i)
                in.row[g][i] = number(x[(p + i) * s.inputs() + channel * s.channel_step + s.sources[t * n + g]]);
        tile.attend(in.row, out.row, 0, scratch.a, n, false);
        for (int i = 0; i < count; ++i)
            for (int g = 0; g < n; ++g) sum[(p + i) * n + g] += out.row[g][i];
    }
}

// Writes the gradient of the columns of one slice of one channel, and adds that of its matrix to dmatrix.
template <typename T, typename G>
void differentiate_tiles(const G *dy, int64_t dy_step, const T *x, const float *matrix, T *dx, float *dmatrix,
                         const RowShape &s, int64_t channel, int64_t t, int64_t rows, Scratch<float, 0> &scratch) {
    const int n = s.order;
    Tile<float, 0, true> tile;
    constexpr int width = Tile<float, 0, true>::width;
    Edge<float, 0> &in = scratch.in, &above = scratch.above, &below = scratch.below;
    scratch.a.take(matrix, n);
    std::memset((void *)scratch.da, 0, n * n * sizeof(vec));
    for (int64_t p = 0; p < rows; p += width) {
        const int count = std::min<int64_t>(width, rows - p);
        in.clear(n), above.clear(n), below.clear(n);
        const int64_t first = p * s.inputs() + channel * s.channel_step;
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < count; ++i) {
                in.row[g][i] = number(x[first + i * s.inputs() + s.sources[t * n + g]]);
                above.row[g][i] = number(dy[(p + i) * dy_step + channel * n + g]);
            }
        tile.find_gradients(in.row, above.row, below.row, 0, scratch.a, scratch.da, n);
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < count; ++i) assign(dx[first + i * s.inputs() + s.sources[t * n + g]], below.row[g][i]);
    }
    for (int i = 0; i < n * n; ++i) {
        float sum = 0;
        for (int k = 0; k < lanes; ++k) sum += scratch.da[i][k];
        dmatrix[i] += sum / n;
    }
}

// Adds parts (number, size) in order.
void add_parts(const std::vector<float> &parts, int64_t size, float *sum) {
    std::vector<double> total(size);
    for (size_t first = 0; first < parts.size(); first += size)
        for (int64_t i = 0; i < size; ++i) total[i] += parts[first + i];
    for (int64_t i = 0; i < size; ++i) sum[i] = float(total[i]);
}

// Orders for which there are no vectors.
template <typename T> void attend_any(const T *x, const float *matrices, T *y, const RowShape &s) {
    const Chunks chunks(s.rows, s.inputs());
    const int64_t n = s.order, columns = s.outputs();
#pragma omp parallel num_threads(threads_for(s))
    {
        std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
        std::vector<float> sum(chunks.rows * n);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            const int64_t p = chunks.begin(i), rows = chunks.end(i) - p;
            for (int64_t c = 0; c < s.channels; ++c) {
                std::fill(sum.begin(), sum.end(), 0.f);
                for (int64_t t = 0; t < s.slices; ++t)
                    attend_tiles(x + p * s.inputs(), matrices + (c * s.slices + t) * n * n, s, c, t, rows, *scratch,
                                 sum.data());
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t g = 0; g < n; ++g) assign(y[(p + r) * columns + c * n + g], sum[r * n + g]);
            }
        }
    }
}

template <typename T>
void differentiate_any(const T *dy, const T *x, const float *matrices, T *dx, float *dmatrices, const RowShape &s) {
    const Chunks chunks(s.rows, s.inputs());
    const int64_t n = s.order, size = s.channels * s.slices * n * n;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            const int64_t p = chunks.begin(i), rows = chunks.end(i) - p;
            for (int64_t c = 0; c < s.channels; ++c)
                for (int64_t t = 0; t < s.slices; ++t) {
                    const int64_t first = (c * s.slices + t) * n * n;
                    differentiate_tiles(dy + p * s.outputs(), s.outputs(), x + p * s.inputs(), matrices + first,
                                        dx + p * s.inputs(), &parts[i * size + first], s, c, t, rows, *scratch);
                }
        }
    }
    add_parts(parts, size, dmatrices);
}

}  // namespace
