// A convolution with co-attention, a norm and a ReLU after it.
//
// The responses of a few lines are attended to while they are in the cache: in evaluation also normalised, in training
// the statistics of what attention returns are found.

#include "wide_vectors.h"

#include "conv_tile.h"
#include "norm.h"

namespace {

struct ConvAttentionShape {
    NormShape norm;  // of the responses
    ConvShape conv;
};

// The rows of a line, neighbouring ones as one where vectors fill that, and those of all lines.
RowShape rows_of_line(const ConvAttentionShape &shape) {
    RowShape line = shape.norm.map;
    line.rows = shape.conv.across();
    return side_by_side(line);
}
RowShape rows_of_map(const ConvAttentionShape &shape) {
    RowShape rows = rows_of_line(shape);
    rows.rows *= shape.conv.images * shape.conv.down();
    return rows;
}

// Calls body(first column, whether the vector is whole, its columns, calling) for all vectors of a line; calling(body)
// calls body(row, attended numbers).
template <int N, typename Body>
INLINE void attend_line(const float *x, const Factors<N> &a, const RowShape &line, const Body &body) {
    for_columns(line.outputs(), [&](auto whole, int64_t v, int count) {
        body(v, whole, count,
             [&](const auto &with_row) { for_rows<N, whole.value>(x, a, line, {v, line.rows, count}, with_row); });
    });
}

template <int N, typename T>
void normalize(const T *x, const float *bank, const float *bias, const float *matrices, const float *weight,
               const float *shift, const float *mean, const float *variance, T *z, const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const int64_t channels = shape.norm.map.channels;
    const RowShape line = rows_of_line(shape);
    const Factors<N> a(matrices, channels, line);
    const Affine affine(line, channels, weight, shift, mean, variance, shape.norm.eps);
    const std::vector<T> filters = filters_of<T>(bank, s);
    const vec lowest = vec{} + (shape.norm.relu ? 0.f : -INFINITY);
    Tiles(s).for_each(x, [&](ConvTile<T> &tile, int64_t) {
        tile.convolve(filters.data(), bias);
        tile.for_lines([&](const float *responses, int64_t position) {
            T *to = z + position * s.columns;
            attend_line(responses, a, line, [&](int64_t v, auto whole, int count, const auto &for_rows) {
                const vec scale = load(&affine.scale[v]), summand = load(&affine.shift[v]);
                for_rows([&](int64_t r, vec n) {
                    const vec h = n * scale + summand;
                    put<whole.value>(to + r * line.outputs() + v, h < lowest ? lowest : h, count);
                });
            });
        });
    });
}

// The mean of what attention returns for the first lines, per column: sums of differences from it do not cancel.
template <int N, typename T>
std::vector<float> first_means(const T *x, const T *filters, const float *bias, const Factors<N> &a,
                               const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const RowShape line = rows_of_line(shape);
    const int64_t channels = shape.norm.map.channels;
    ConvTile<T> tile(s);
    tile.take(x, Tiles(s).at(0));
    tile.convolve(filters, bias);
    std::vector<double> sums(padded(line.outputs()));
    double rows = 0;
    tile.for_lines([&](const float *responses, int64_t) {
        rows += tile.across;
        attend_line(responses, a, line, [&](int64_t v, auto, int, const auto &for_rows) {
            for_rows([&](int64_t, vec n) {
                for (int lane = 0; lane < lanes; ++lane) sums[v + lane] += n[lane];
            });
        });
    });
    std::vector<float> means(channels);
    const std::vector<double> totals = per_channel(line, channels, sums.data());
    for (int64_t c = 0; c < channels; ++c) means[c] = float(totals[c] / (rows * line.order));
    return means;
}

// Writes numbers of a line as those of a map, and rounds them alike: attention is that of the map, also for its
// gradient.
template <typename T> void write_line(float *numbers, int64_t count, T *to) {
    if constexpr (std::is_same_v<T, float>)
        std::memcpy(to, numbers, count * sizeof(float));
    else
        for_columns(count, [&](auto whole, int64_t v, int some) {
            put<whole.value>(to + v, get<whole.value>(numbers + v, some), some);
            put<whole.value>(numbers + v, get<whole.value>(to + v, some), some);
        });
}

// Writes the responses y, what attention returns for them, z, and its mean and variance.
template <int N, typename T>
void find_statistics(const T *x, const float *bank, const float *bias, const float *matrices, T *y, T *z, float *mean,
                     float *variance, const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const RowShape line = rows_of_line(shape);
    const int64_t channels = shape.norm.map.channels, columns = line.outputs(), step = padded(columns);
    const Factors<N> a(matrices, channels, line);
    const std::vector<T> filters = filters_of<T>(bank, s);
    const std::vector<float> pivot = first_means(x, filters.data(), bias, a, shape), pivots = per_column(line, pivot);
    const Tiles tiles(s);
    std::vector<float> parts(tiles.number * 2 * step);
    tiles.for_each(x, [&](ConvTile<T> &tile, int64_t i) {
        tile.convolve(filters.data(), bias);
        float *sums = &parts[i * 2 * step], *squares = sums + step;
        tile.for_lines([&](float *responses, int64_t position) {
            write_line(responses, tile.across * s.columns, y + position * s.columns);
            T *to = z + position * s.columns;
            attend_line(responses, a, line, [&](int64_t v, auto whole, int count, const auto &for_rows) {
                const vec center = load(&pivots[v]);
                vec sum = load(sums + v), square = load(squares + v);
                for_rows([&](int64_t r, vec attended) {
                    const vec n = rounded<T>(attended);
                    put<whole.value>(to + r * columns + v, n, count);
                    const vec d = n - center;
                    sum += d;
                    square += d * d;
                });
                store(sums + v, sum);
                store(squares + v, square);
            });
        });
    });
    std::vector<double> total(2 * step);
    for (int64_t i = 0; i < tiles.number; ++i)
        for (int64_t k = 0; k < 2 * step; ++k) total[k] += parts[i * 2 * step + k];
    finish_statistics(rows_of_map(shape), channels, pivot, total.data(), &total[step], mean, variance);
}

}  // namespace

#define FOR_ORDERS(call)         \
    switch (s->norm.map.order) { \
        case 2: return call(2);  \
        case 4: return call(4);  \
        case 8: return call(8);  \
    }
#define NORMALIZE(N) normalize<N>(x, bank, bias, a, weight, shift, mean, variance, z, *s)
#define STATISTICS(N) find_statistics<N>(x, bank, bias, a, y, z, mean, variance, *s)
#define DEFINE(T, name)                                                                                                \
    void coattend_conv_attention_##name(const T *x, const float *bank, const float *bias, const float *a,              \
                                        const float *weight, const float *shift, const float *mean,                    \
                                        const float *variance, T *z, const ConvAttentionShape *s) {                    \
        FOR_ORDERS(NORMALIZE)                                                                                          \
    }                                                                                                                  \
    void coattend_conv_statistics_##name(const T *x, const float *bank, const float *bias, const float *a, T *y, T *z, \
                                         float *mean, float *variance, const ConvAttentionShape *s) {                  \
        FOR_ORDERS(STATISTICS)                                                                                         \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
