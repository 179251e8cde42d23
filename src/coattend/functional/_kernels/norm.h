// Batch norm of rows: statistics per channel from sums per column, and a factor and a summand per column.

#pragma once

#include "pose_rows.h"

namespace {

struct NormShape {
    RowShape map;
    int64_t training, relu;
    double eps;
};

// The number that a map of T would hold, as if attention were a layer of its own.
template <typename T> INLINE vec rounded(vec v) {
    if constexpr (std::is_same<T, float>::value) return v;
#ifdef __AVX512BF16__
    return (vec)(__builtin_convertvector((halves)NATIVE(cvtneps_pbh)(v), words) << 16);
#else
    return (vec)(nearest(v) >> 16 << 16);
#endif
}

// Numbers per channel as one per column.
std::vector<float> per_column(const RowShape &s, const std::vector<float> &per_channel) {
    std::vector<float> columns(padded(s.outputs()));
    for (int64_t i = 0; i < s.outputs(); ++i) columns[i] = per_channel[i / s.order % per_channel.size()];
    return columns;
}

// The sum of the columns of each channel.
template <typename S> std::vector<double> per_channel(const RowShape &s, int64_t channels, const S *per_column) {
    std::vector<double> sums(channels);
    for (int64_t i = 0; i < s.outputs(); ++i) sums[i / s.order % channels] += per_column[i];
    return sums;
}

// Mean and variance per channel from sums per column of the differences from a pivot per channel, and of their squares.
void finish_statistics(const RowShape &s, int64_t channels, const std::vector<float> &pivot, const double *sums,
                       const double *squares, float *mean, float *variance) {
    const double number = double(s.rows) * s.outputs() / channels;
    const auto sum = per_channel(s, channels, sums), square = per_channel(s, channels, squares);
    for (int64_t c = 0; c < channels; ++c) {
        const double shift = sum[c] / number;
        mean[c] = float(pivot[c] + shift);
        variance[c] = float(square[c] / number - shift * shift);
        if (variance[c] < 0) variance[c] = 0;
    }
}

// y -> y * scale + shift, per column.
struct Affine {
    std::vector<float> scale, shift;

    explicit Affine(const RowShape &s) : scale(padded(s.outputs()), 1.f), shift(padded(s.outputs())) {}
    Affine(const RowShape &s, int64_t channels, const float *weight, const float *bias, const float *mean,
           const float *variance, double eps) {
        std::vector<float> a(channels), b(channels);
        for (int64_t c = 0; c < channels; ++c) {
            const double factor = (weight ? weight[c] : 1.0) / std::sqrt(double(variance[c]) + eps);
            a[c] = float(factor);
            b[c] = float((bias ? bias[c] : 0.0) - mean[c] * factor);
        }
        scale = per_column(s, a);
        shift = per_column(s, b);
    }
};

}  // namespace
