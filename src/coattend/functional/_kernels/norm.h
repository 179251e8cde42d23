// Batch norm with known statistics: a factor and a summand per column.

#pragma once

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
    for (int64_t i = 0; i < s.outputs(); ++i) columns[i] = per_channel[i / s.order % per_channel.size()];
    return columns;
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
