// A convolution with co-attention, a norm and a ReLU after it.
//
// The responses of a few lines are attended to while they are in the cache: in evaluation also normalised, in training
// the statistics of what attention returns are found.

#include "conv_tile.h"
#include "norm.h"

namespace {

struct ConvAttentionShape {
    NormShape norm;  // of the responses
    ConvShape conv;
};

// Calls body(row, first column, attended numbers) for some rows of responses.
template <int N, typename Body>
INLINE void attend_rows(const float *x, const Factors<N> &a, const RowShape &s, int64_t rows, const Body &body) {
    for (int64_t v = 0; v < s.outputs(); v += lanes)
        for_rows<N, true>(x, a, s, {v, rows, lanes}, [&](int64_t r, vec n) { body(r, v, n); });
}

template <int N>
void normalize(const float *x, const float *bank, const float *bias, const float *matrices, const float *weight,
               const float *shift, const float *mean, const float *variance, float *z,
               const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const RowShape &map = shape.norm.map;
    const Factors<N> a(matrices, map.channels, map);
    const Affine affine(map, map.channels, weight, shift, mean, variance, shape.norm.eps);
    const std::vector<float> filters = filters_of(bank, s);
    const vec lowest = vec{} + (shape.norm.relu ? 0.f : -INFINITY);
    Tiles(s).for_each(x, [&](ConvTile &tile, int64_t) {
        tile.convolve(filters.data(), bias);
        tile.for_lines([&](const float *responses, int64_t position) {
            float *to = z + position * s.columns;
            attend_rows(responses, a, map, tile.across, [&](int64_t r, int64_t v, vec n) {
                const vec h = n * load(&affine.scale[v]) + load(&affine.shift[v]);
                store(to + r * s.columns + v, h < lowest ? lowest : h);
            });
        });
    });
}

// The mean of what attention returns for the first lines, per column: sums of differences from it do not cancel.
template <int N>
std::vector<float> first_means(const float *x, const float *filters, const float *bias, const Factors<N> &a,
                               const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const RowShape &map = shape.norm.map;
    ConvTile tile(s);
    tile.take(x, Tiles(s).at(0));
    tile.convolve(filters, bias);
    std::vector<double> sums(s.columns);
    double rows = 0;
    tile.for_lines([&](const float *responses, int64_t) {
        rows += tile.across;
        attend_rows(responses, a, map, tile.across, [&](int64_t, int64_t v, vec n) {
            for (int lane = 0; lane < lanes; ++lane) sums[v + lane] += n[lane];
        });
    });
    std::vector<float> means(map.channels);
    const std::vector<double> totals = per_channel(map, map.channels, sums.data());
    for (int64_t c = 0; c < map.channels; ++c) means[c] = float(totals[c] / (rows * map.order));
    return means;
}

// Writes the responses y, what attention returns for them, z, and its mean and variance.
template <int N>
void find_statistics(const float *x, const float *bank, const float *bias, const float *matrices, float *y, float *z,
                     float *mean, float *variance, const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const RowShape &map = shape.norm.map;
    const Factors<N> a(matrices, map.channels, map);
    const std::vector<float> filters = filters_of(bank, s);
    const std::vector<float> pivot = first_means(x, filters.data(), bias, a, shape), pivots = per_column(map, pivot);
    const Tiles tiles(s);
    std::vector<float> parts(tiles.number * 2 * s.columns);
    tiles.for_each(x, [&](ConvTile &tile, int64_t i) {
        tile.convolve(filters.data(), bias);
        float *sums = &parts[i * 2 * s.columns], *squares = sums + s.columns;
        tile.for_lines([&](const float *responses, int64_t position) {
            std::memcpy(y + position * s.columns, responses, tile.across * s.columns * sizeof(float));
            float *to = z + position * s.columns;
            for (int64_t v = 0; v < s.columns; v += lanes) {
                const vec center = load(&pivots[v]);
                vec sum = load(sums + v), square = load(squares + v);
                for_rows<N, true>(responses, a, map, {v, tile.across, lanes}, [&](int64_t r, vec n) {
                    store(to + r * s.columns + v, n);
                    const vec d = n - center;
                    sum += d;
                    square += d * d;
                });
                store(sums + v, sum);
                store(squares + v, square);
            }
        });
    });
    std::vector<double> total(2 * s.columns);
    for (int64_t i = 0; i < tiles.number; ++i)
        for (int64_t k = 0; k < 2 * s.columns; ++k) total[k] += parts[i * 2 * s.columns + k];
    finish_statistics(map, map.channels, pivot, total.data(), &total[s.columns], mean, variance);
}

}  // namespace

#define FOR_ORDERS(call)               \
    switch (s->norm.map.order) {       \
        case 2: return call(2);        \
        case 4: return call(4);        \
        case 8: return call(8);        \
    }

extern "C" {
void coattend_conv_attention_float(const float *x, const float *bank, const float *bias, const float *a,
                                   const float *weight, const float *shift, const float *mean, const float *variance,
                                   float *z, const ConvAttentionShape *s) {
#define CALL(N) normalize<N>(x, bank, bias, a, weight, shift, mean, variance, z, *s)
    FOR_ORDERS(CALL)
#undef CALL
}
void coattend_conv_statistics_float(const float *x, const float *bank, const float *bias, const float *a, float *y,
                                    float *z, float *mean, float *variance, const ConvAttentionShape *s) {
#define CALL(N) find_statistics<N>(x, bank, bias, a, y, z, mean, variance, *s)
    FOR_ORDERS(CALL)
#undef CALL
}
}  // extern "C"
