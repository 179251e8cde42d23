// Batch norm of maps in channels-last format, with statistics per channel, of the map or of what attention makes of it,
// and the ReLU after it.

#include "pose_rows.h"

namespace {

struct NormShape {
    RowShape map;
    int64_t training, relu;
    double eps;
};

// Numbers per channel as one per column.
std::vector<float> per_column(const RowShape &s, const std::vector<float> &per_channel) {
    std::vector<float> columns(padded(s.outputs()));
    for (int64_t i = 0; i < s.outputs(); ++i) columns[i] = per_channel[i / s.order];
    return columns;
}

// The sums of two functions of the numbers over all positions: double (2, padded columns).
template <typename Body> std::vector<double> two_sums(const RowShape &s, const Body &body) {
    const Chunks chunks(s.rows, s.outputs());
    const int64_t step = padded(s.outputs()), block = block_rows(step);
    std::vector<double> parts(chunks.number * 2 * step), total(2 * step);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_columns(s.outputs(), [&](auto whole, int64_t v, int count) {
                vec sums[2] = {};
                body(whole, p, Columns{v, std::min(block, chunks.end(i) - p), count}, sums);
                for (int k = 0; k < 2; ++k)
                    for (int lane = 0; lane < lanes; ++lane) parts[(2 * i + k) * step + v + lane] += sums[k][lane];
            });
    for (size_t i = 0; i < parts.size(); ++i) total[i % (2 * step)] += parts[i];
    return total;
}

// Finds mean and variance of the attended map, and writes that to y if there is attention.
template <int N, typename T>
void find_statistics(const T *x, const Factors<N> &a, const RowShape &s, T *y, float *mean, float *variance) {
    const int64_t columns = s.outputs(), step = padded(columns), few = std::min(s.rows, block_rows(step));
    // Sums of differences from a number near the mean do not cancel.
    std::vector<float> pivot(s.channels);
    for_columns(columns, [&](auto whole, int64_t v, int count) {
        vec sum = vec{};
        const auto add = [&](int64_t, vec n) { sum += n; };
        for_rows<N, decltype(whole)::value>(x, a, s, {v, few, count}, add, [&] { sum = vec{}; });
        for (int i = 0; i < count; ++i) pivot[(v + i) / s.order] += sum[i] / (few * s.order);
    });
    const std::vector<float> pivots = per_column(s, pivot);
    const auto sums = two_sums(s, [&](auto whole, int64_t p, Columns at, vec *sums) {
        constexpr bool is_whole = decltype(whole)::value;
        const vec k = load(&pivots[at.first]);
        T *to = y + p * columns + at.first;
        vec sum = vec{}, squares = vec{};
        const auto add = [&](int64_t r, vec n) {
            if (N > 1) put<is_whole>(to + r * columns, n, at.count);
            sum += n - k;
            squares += (n - k) * (n - k);
        };
        for_rows<N, is_whole>(x + p * columns, a, s, at, add, [&] { sum = squares = vec{}; });
        sums[0] = sum, sums[1] = squares;
    });
    const double number = double(s.rows) * s.order;
    for (int64_t c = 0; c < s.channels; ++c) {
        double sum = 0, squares = 0;
        for (int64_t g = 0; g < s.order; ++g) {
            sum += sums[c * s.order + g];
            squares += sums[step + c * s.order + g];
        }
        const double shift = sum / number;
        mean[c] = float(pivot[c] + shift);
        variance[c] = float(squares / number - shift * shift);
        if (variance[c] < 0) variance[c] = 0;
    }
}

// y -> y * scale + shift, per column.
struct Affine {
    std::vector<float> scale, shift;

    Affine(const RowShape &s, const float *weight, const float *bias, const float *mean, const float *variance,
           double eps) {
        std::vector<float> a(s.channels), b(s.channels);
        for (int64_t c = 0; c < s.channels; ++c) {
            const double factor = (weight ? weight[c] : 1.0) / std::sqrt(double(variance[c]) + eps);
            a[c] = float(factor);
            b[c] = float((bias ? bias[c] : 0.0) - mean[c] * factor);
        }
        scale = per_column(s, a);
        shift = per_column(s, b);
    }
};

// z may be x.
template <int N, typename T>
void apply_norm(const T *x, const Factors<N> &a, const Affine &affine, T *z, const NormShape &shape) {
    const RowShape &s = shape.map;
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns);
    const vec lowest = vec{} + (shape.relu ? 0.f : -INFINITY);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_columns(columns, [&](auto whole, int64_t v, int count) {
                constexpr bool is_whole = decltype(whole)::value;
                const vec scale = load(&affine.scale[v]), shift = load(&affine.shift[v]);
                const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                T *to = z + p * columns + v, before[most_rows * lanes];
                const bool overwrites = N > 1 && z == x;
                for (int64_t r = 0; overwrites && r < at.rows; ++r)
                    std::memcpy(before + r * lanes, to + r * columns, count * sizeof(T));
                const auto restore = [&] {
                    for (int64_t r = 0; overwrites && r < at.rows; ++r)
                        std::memcpy(to + r * columns, before + r * lanes, count * sizeof(T));
                };
                const auto write = [&](int64_t r, vec n) {
                    const vec h = n * scale + shift;
                    put<is_whole>(to + r * columns, h < lowest ? lowest : h, count);
                };
                for_rows<N, is_whole>(x + p * columns, a, s, at, write, restore);
            });
}

template <int N, typename T>
void normalize(const T *x, const float *matrices, const float *weight, const float *bias, float *mean, float *variance,
               T *z, const NormShape &shape) {
    const RowShape &s = shape.map;
    const Factors<N> a(matrices, s.channels);
    if (shape.training) find_statistics(x, a, s, z, mean, variance);
    const Affine affine(s, weight, bias, mean, variance, shape.eps);
    if (N > 1 && shape.training)  // z holds the attended map
        apply_norm(z, Factors<1>(nullptr, 0), affine, z, shape);
    else
        apply_norm(x, a, affine, z, shape);
}

template <int N, typename T>
void differentiate_norm(const T *dz, const T *x, const float *matrices, const float *weight, const float *bias,
                        const float *mean, const float *variance, T *dx, float *dmatrices, float *dweight,
                        float *dbias, const NormShape &shape) {
    const RowShape &s = shape.map;
    const Factors<N> a(matrices, s.channels);
    const Affine affine(s, weight, bias, mean, variance, shape.eps);
    const int64_t columns = s.outputs(), step = padded(columns), block = block_rows(step);
    const std::vector<float> means = per_column(s, std::vector<float>(mean, mean + s.channels));
    const vec zero = vec{} + (shape.relu ? 0.f : -INFINITY);  // at and below it the ReLU has no gradient

    const auto sums = two_sums(s, [&](auto whole, int64_t p, Columns at, vec *sums) {
        constexpr bool is_whole = decltype(whole)::value;
        const vec scale = load(&affine.scale[at.first]), shift = load(&affine.shift[at.first]);
        const vec center = load(&means[at.first]);
        const T *from = dz + p * columns + at.first;
        vec direct = vec{}, scaled = vec{};
        const auto add = [&](int64_t r, vec n) {
            const vec up = get<is_whole>(from + r * columns, at.count);
            const vec d = n * scale + shift <= zero ? vec{} : up;
            direct += d;
            scaled += d * (n - center);
        };
        for_rows<N, is_whole>(x + p * columns, a, s, at, add, [&] { direct = scaled = vec{}; });
        sums[0] = direct, sums[1] = scaled;
    });
    // dy = scale * (d - mean of d - (y - mean) * slope)
    std::vector<float> offset(s.channels), slope(s.channels);
    const double number = double(s.rows) * s.order;
    for (int64_t c = 0; c < s.channels; ++c) {
        double direct = 0, scaled = 0;
        for (int64_t g = 0; g < s.order; ++g) {
            direct += sums[c * s.order + g];
            scaled += sums[step + c * s.order + g];
        }
        const double inverse = 1 / std::sqrt(double(variance[c]) + shape.eps);
        dbias[c] = float(direct);
        dweight[c] = float(scaled * inverse);
        offset[c] = shape.training ? float(direct / number) : 0;
        slope[c] = shape.training ? float(scaled * inverse * inverse / number) : 0;
    }
    const std::vector<float> offsets = per_column(s, offset), slopes = per_column(s, slope);

    const Chunks chunks(s.rows, columns);
    const int64_t size = N > 1 ? s.channels * N * N : 0;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::vector<float> da(N > 1 ? N * step : 0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
                for_columns(columns, [&](auto whole, int64_t v, int count) {
                    constexpr bool is_whole = decltype(whole)::value;
                    const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                    const vec scale = load(&affine.scale[v]), shift = load(&affine.shift[v]);
                    const vec center = load(&means[v]), mean_d = load(&offsets[v]), steepness = load(&slopes[v]);
                    const T *from = dz + p * columns + v;
                    const auto above = [&](int64_t r, vec n) {
                        const vec up = get<is_whole>(from + r * columns, count);
                        const vec d = n * scale + shift <= zero ? vec{} : up;
                        return scale * (d - mean_d - (n - center) * steepness);
                    };
                    T *to = dx + p * columns;
                    if constexpr (N > 1)
                        differentiate_rows<N, is_whole>(above, x + p * columns, to, a, s, at, da.data(),
                                                        &parts[i * size]);
                    else
                        each_row<1, is_whole>(x + p * columns, a, s, at, [&](int64_t r, vec n) {
                            put<is_whole>(to + r * columns + v, above(r, n), count);
                        });
                });
            if constexpr (N > 1) add_sums<N>(da.data(), step, s.channels, &parts[i * size]);
        }
    }
    if constexpr (N > 1) add_parts(parts, size, dmatrices);
}

}  // namespace

#define DEFINE(T, name)                                                                                                \
    void coattend_norm_forward_##name(const T *x, const float *a, const float *w, const float *b, float *mean,         \
                                      float *var, T *z, const NormShape *s) {                                          \
        FOR_ORDER(a ? s->map.order : 0, normalize<2>(x, a, w, b, mean, var, z, *s),                                    \
                  normalize<4>(x, a, w, b, mean, var, z, *s), normalize<8>(x, a, w, b, mean, var, z, *s),              \
                  normalize<1>(x, a, w, b, mean, var, z, *s))                                                          \
    }                                                                                                                  \
    void coattend_norm_backward_##name(const T *dz, const T *x, const float *a, const float *w, const float *b,        \
                                       const float *mean, const float *var, T *dx, float *da, float *dw, float *db,    \
                                       const NormShape *s) {                                                           \
        FOR_ORDER(a ? s->map.order : 0, differentiate_norm<2>(dz, x, a, w, b, mean, var, dx, da, dw, db, *s),          \
                  differentiate_norm<4>(dz, x, a, w, b, mean, var, dx, da, dw, db, *s),                                \
                  differentiate_norm<8>(dz, x, a, w, b, mean, var, dx, da, dw, db, *s),                                \
                  differentiate_norm<1>(dz, x, a, w, b, mean, var, dx, da, dw, db, *s))                                \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
