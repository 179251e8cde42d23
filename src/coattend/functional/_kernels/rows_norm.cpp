// Batch norm of maps in channels-last format, with statistics per channel, of the map or of what attention makes of it,
// and the ReLU after it.

#include "wide_vectors.h"

#include "norm.h"

namespace {

// Several neighbouring vectors of a row at a time, if nothing mixes their numbers: that reads the memory in order.
template <int N> constexpr int strip = N == 1 ? 5 : 1;

// Calls body(W, whole, first column, number of columns of a vector) for every strip of W vectors.
template <int most, typename Body> INLINE void for_strips(int64_t columns, const Body &body) {
    int64_t v = 0;
    for (; v + most * lanes <= columns; v += most * lanes)
        body(std::integral_constant<int, most>(), std::true_type(), v, lanes);
    for (; v + lanes <= columns; v += lanes) body(std::integral_constant<int, 1>(), std::true_type(), v, lanes);
    if (v < columns) body(std::integral_constant<int, 1>(), std::false_type(), v, int(columns - v));
}

// Numbers of W neighbouring vectors.
template <int W> struct Strip {
    vec at[W];

    INLINE Strip() : at{} {}
    INLINE explicit Strip(const float *from) {
#pragma GCC unroll 8
        for (int w = 0; w < W; ++w) at[w] = load(from + w * lanes);
    }
};

// Calls body(row, w, numbers of vector w, attended) for every row once, in turn.
template <int N, int W, bool whole, typename T, typename Body>
INLINE void for_rows_of_strip(const T *x, const Factors<N> &a, const RowShape &s, Columns at, const Body &body) {
    if constexpr (N == 1) {
        const int64_t columns = s.outputs();
        for (int64_t r = 0; r < at.rows; ++r)
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w) body(r, w, get<whole>(x + r * columns + at.first + w * lanes, at.count));
    } else {
        for_rows<N, whole>(x, a, s, at, [&](int64_t r, vec n) { body(r, 0, rounded<T>(n)); });
    }
}

// The sums of two functions of the numbers over all positions: double (2, padded columns).
template <int N, typename Body> std::vector<double> two_sums(const RowShape &s, const Body &body) {
    const Chunks chunks(s.rows, s.outputs());
    const int64_t step = padded(s.outputs()), block = block_rows(step);
    std::vector<double> parts(chunks.number * 2 * step), total(2 * step);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_strips<strip<N>>(s.outputs(), [&](auto width, auto whole, int64_t v, int count) {
                constexpr int W = decltype(width)::value;
                Strip<W> sums[2];
                body(width, whole, p, Columns{v, std::min(block, chunks.end(i) - p), count}, sums);
                for (int k = 0; k < 2; ++k)
                    for (int lane = 0; lane < W * lanes; ++lane)
                        parts[(2 * i + k) * step + v + lane] += sums[k].at[lane / lanes][lane % lanes];
            });
    for (size_t i = 0; i < parts.size(); ++i) total[i % (2 * step)] += parts[i];
    return total;
}

// Finds mean and variance of the attended map, and writes that to y if there is attention.
template <int N, typename T>
void find_statistics(const T *x, const Factors<N> &a, const RowShape &s, int64_t channels, T *y, float *mean,
                     float *variance) {
    const int64_t columns = s.outputs(), step = padded(columns), few = std::min(s.rows, block_rows(step));
    // Sums of differences from a number near the mean do not cancel.
    std::vector<float> first(step);
    for_columns(columns, [&](auto whole, int64_t v, int count) {
        vec sum = vec{};
        for_rows<N, decltype(whole)::value>(x, a, s, {v, few, count}, [&](int64_t, vec n) { sum += n; });
        store(&first[v], sum);
    });
    std::vector<float> pivot(channels);
    const std::vector<double> firsts = per_channel(s, channels, first.data());
    for (int64_t c = 0; c < channels; ++c) pivot[c] = float(firsts[c] / (double(few) * columns / channels));
    const std::vector<float> pivots = per_column(s, pivot);
    const auto sums = two_sums<N>(s, [&](auto width, auto whole, int64_t p, Columns at, auto *sums) {
        constexpr int W = decltype(width)::value;
        constexpr bool is_whole = decltype(whole)::value;
        const Strip<W> pivot(&pivots[at.first]);
        T *to = y + p * columns + at.first;
        Strip<W> sum, squares;
        const auto add = [&](int64_t r, int w, vec n) {
            if (N > 1) {
                put<is_whole>(to + r * columns, n, at.count);
                expect_to_write(to + (r + at.rows) * columns);
            }
            const vec d = n - pivot.at[w];
            sum.at[w] += d;
            squares.at[w] += d * d;
        };
        for_rows_of_strip<N, W, is_whole>(x + p * columns, a, s, at, add);
        sums[0] = sum, sums[1] = squares;
    });
    finish_statistics(s, channels, pivot, sums.data(), &sums[step], mean, variance);
}

// z may be x.
template <int N, typename T>
void apply_norm(const T *x, const Factors<N> &a, const RowShape &s, const Affine &affine, bool relu, T *z) {
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns);
    const vec lowest = vec{} + (relu ? 0.f : -INFINITY);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_strips<strip<N>>(columns, [&](auto width, auto whole, int64_t v, int count) {
                constexpr int W = decltype(width)::value;
                constexpr bool is_whole = decltype(whole)::value;
                const Strip<W> scale(&affine.scale[v]), shift(&affine.shift[v]);
                const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                T *to = z + p * columns + v;
                const auto write = [&](int64_t r, int w, vec n) {
                    if (N > 1) expect_to_write(to + (r + at.rows) * columns);
                    const vec h = n * scale.at[w] + shift.at[w];
                    put<is_whole>(to + r * columns + w * lanes, h < lowest ? lowest : h, count);
                };
                for_rows_of_strip<N, W, is_whole>(x + p * columns, a, s, at, write);
            });
}

template <int N, typename T>
void normalize(const T *x, const float *matrices, const float *weight, const float *bias, float *mean, float *variance,
               T *z, const NormShape &shape) {
    const int64_t channels = shape.map.channels;
    const RowShape s = side_by_side(shape.map);
    const Factors<N> a(matrices, channels, s);
    if (shape.training) find_statistics(x, a, s, channels, z, mean, variance);
    const Affine affine(s, channels, weight, bias, mean, variance, shape.eps);
    if (N > 1 && shape.training)  // z holds the attended map
        apply_norm(z, Factors<1>(), s, affine, shape.relu, z);
    else
        apply_norm(x, a, s, affine, shape.relu, z);
}

// Whether the sums for the gradients can be taken from z, what the norm and the ReLU returned: there
// (y - mean) * inverse = (z - bias) / weight wherever z is positive, up to a rounding error of bias / weight.
bool is_invertible(int64_t channels, const float *weight, const float *bias) {
    for (int64_t c = 0; c < channels; ++c)
        if (!(std::abs(weight ? weight[c] : 1.f) >= std::abs(bias ? bias[c] : 0.f) / 16)) return false;
    return true;
}

// The sums over all positions of d, the gradient before the ReLU, and of d * (y - mean): double (2, padded columns).
template <int N, typename T>
std::vector<double> gradient_sums(const T *dz, const T *x, const Factors<N> &a, const RowShape &s, const Affine &affine,
                                  const std::vector<float> &means, bool relu) {
    const int64_t columns = s.outputs();
    const vec zero = vec{} + (relu ? 0.f : -INFINITY);  // at and below it the ReLU has no gradient
    return two_sums<N>(s, [&](auto width, auto whole, int64_t p, Columns at, auto *sums) {
        constexpr int W = decltype(width)::value;
        constexpr bool is_whole = decltype(whole)::value;
        const Strip<W> scale(&affine.scale[at.first]), shift(&affine.shift[at.first]), center(&means[at.first]);
        const T *from = dz + p * columns + at.first;
        Strip<W> direct, scaled;
        const auto add = [&](int64_t r, int w, vec n) {
            const vec up = get<is_whole>(from + r * columns + w * lanes, at.count);
            const vec d = n * scale.at[w] + shift.at[w] <= zero ? vec{} : up;
            direct.at[w] += d;
            scaled.at[w] += d * (n - center.at[w]);
        };
        for_rows_of_strip<N, W, is_whole>(x + p * columns, a, s, at, add);
        sums[0] = direct, sums[1] = scaled;
    });
}

// z: what normalize with a ReLU returned, or null.
template <int N, typename T>
void differentiate_norm(const T *dz, const T *x, const T *z, const float *matrices, const float *weight,
                        const float *bias, const float *mean, const float *variance, T *dx, float *dmatrices,
                        float *dweight, float *dbias, const NormShape &shape) {
    const int64_t channels = shape.map.channels;
    const RowShape s = side_by_side(shape.map);
    const Factors<N> a(matrices, channels, s);
    const Affine affine(s, channels, weight, bias, mean, variance, shape.eps);
    const int64_t columns = s.outputs(), step = padded(columns), block = block_rows(step);
    const std::vector<float> means = per_column(s, std::vector<float>(mean, mean + channels));
    const vec zero = vec{} + (shape.relu ? 0.f : -INFINITY);
    const bool inverts = z && is_invertible(channels, weight, bias);

    // With z in the place of y there is nothing to attend to: the norm is the identity, its center is the bias.
    const std::vector<float> biases =
        per_column(s, bias ? std::vector<float>(bias, bias + channels) : std::vector<float>(channels));
    const auto sums = inverts ? gradient_sums(dz, z, Factors<1>(), s, Affine(s), biases, shape.relu)
                              : gradient_sums(dz, x, a, s, affine, means, shape.relu);
    // dy = scale * (d - mean of d - (y - mean) * slope)
    std::vector<float> offset(channels), slope(channels);
    const double number = double(s.rows) * columns / channels;
    const auto direct = per_channel(s, channels, sums.data());
    auto scaled = per_channel(s, channels, &sums[step]);
    for (int64_t c = 0; c < channels; ++c) {
        const double inverse = 1 / std::sqrt(double(variance[c]) + shape.eps);
        if (inverts) scaled[c] /= (weight ? weight[c] : 1.0) * inverse;
        dbias[c] = float(direct[c]);
        dweight[c] = float(scaled[c] * inverse);
        offset[c] = shape.training ? float(direct[c] / number) : 0;
        slope[c] = shape.training ? float(scaled[c] * inverse * inverse / number) : 0;
    }
    const std::vector<float> offsets = per_column(s, offset), slopes = per_column(s, slope);

    const Chunks chunks(s.rows, columns);
    const int64_t size = N > 1 ? channels * N * N : 0;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::vector<float> da(N > 1 ? N * step : 0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
                for_strips<strip<N>>(columns, [&](auto width, auto whole, int64_t v, int count) {
                    constexpr int W = decltype(width)::value;
                    constexpr bool is_whole = decltype(whole)::value;
                    const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                    const Strip<W> scale(&affine.scale[v]), shift(&affine.shift[v]), center(&means[v]);
                    const Strip<W> mean_d(&offsets[v]), steepness(&slopes[v]);
                    const T *from = dz + p * columns + v;
                    const auto above = [&](int64_t r, int w, vec n) {
                        const vec up = get<is_whole>(from + r * columns + w * lanes, count);
                        if (N > 1) expect_to_read(from + (r + at.rows) * columns);
                        const vec d = n * scale.at[w] + shift.at[w] <= zero ? vec{} : up;
                        return scale.at[w] * (d - mean_d.at[w] - (n - center.at[w]) * steepness.at[w]);
                    };
                    T *to = dx + p * columns;
                    if constexpr (N > 1)
                        differentiate_rows<N, is_whole>([&](int64_t r, vec n) { return above(r, 0, rounded<T>(n)); },
                                                        x + p * columns, to, a, s, at, da.data(), &parts[i * size]);
                    else
                        for_rows_of_strip<N, W, is_whole>(x + p * columns, a, s, at, [&](int64_t r, int w, vec n) {
                            put<is_whole>(to + r * columns + v + w * lanes, above(r, w, n), count);
                        });
                });
            if constexpr (N > 1) add_sums(da.data(), a, s.channels, &parts[i * size]);
        }
    }
    if constexpr (N > 1) add_parts(parts, size, dmatrices);
}

}  // namespace

#define DEFINE(T, name)                                                                                          \
    void coattend_norm_forward_##name(const T *x, const float *a, const float *w, const float *b, float *mean,   \
                                      float *var, T *z, const NormShape *s) {                                    \
        FOR_ORDER(a ? s->map.order : 0, normalize<2>(x, a, w, b, mean, var, z, *s),                              \
                  normalize<4>(x, a, w, b, mean, var, z, *s), normalize<8>(x, a, w, b, mean, var, z, *s),        \
                  normalize<1>(x, a, w, b, mean, var, z, *s))                                                    \
    }                                                                                                            \
    void coattend_norm_backward_##name(const T *dz, const T *x, const T *z, const float *a, const float *w,      \
                                       const float *b, const float *mean, const float *var, T *dx, float *da,    \
                                       float *dw, float *db, const NormShape *s) {                               \
        FOR_ORDER(a ? s->map.order : 0, differentiate_norm<2>(dz, x, z, a, w, b, mean, var, dx, da, dw, db, *s), \
                  differentiate_norm<4>(dz, x, z, a, w, b, mean, var, dx, da, dw, db, *s),                       \
                  differentiate_norm<8>(dz, x, z, a, w, b, mean, var, dx, da, dw, db, *s),                       \
                  differentiate_norm<1>(dz, x, z, a, w, b, mean, var, dx, da, dw, db, *s))                       \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
