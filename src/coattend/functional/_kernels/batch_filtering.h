// The same as filtering.h for as many images at once as a vector has numbers, one in each lane: for small maps, most of
// whose padded planes are padding.

#pragma once

#include "filtering.h"

namespace {

template <typename T> struct BatchFiltering {
    using vec = typename Lanes<T>::vec;
    static constexpr int images = Lanes<T>::count, most = Filtering<T>::most;

    const int64_t height, width, kernel;
    // In vectors. Lines are padded; lines of padding are left out.
    const int64_t half = kernel / 2, stride = width + kernel - 1, plane = height * stride;

    int64_t size(int64_t planes) const { return planes * plane * images; }

    INLINE static vec at(const T *from) { return Filtering<T>::at(from); }

    // From (positions, planes) to the planes of an image, whose padding is zero already, and back.
    template <int known = 0> void spread(const T *__restrict rows, int64_t number, T *__restrict to, int image) const {
        over_numbers<known>(number, [&](int64_t row, int64_t number) { to[number * images + image] = rows[row]; });
    }
    template <int known = 0>
    void gather(const T *__restrict from, int64_t number, T *__restrict rows, int image) const {
        over_numbers<known>(number, [&](int64_t row, int64_t number) { rows[row] = from[number * images + image]; });
    }
    // Calls body(number in rows, number in planes); `known` is the number of planes or 0.
    template <int known, typename Body> INLINE void over_numbers(int64_t planes, const Body &body) const {
        if (known) planes = known;
        for (int64_t y = 0, row = 0; y < height; ++y)
            for (int64_t x = 0; x < width; ++x)
                for (int64_t i = 0; i < planes; ++i, ++row) body(row, i * plane + y * stride + half + x);
    }

    // The taps that read from an image at line y, first and last.
    int64_t first(int64_t y) const { return std::max<int64_t>(0, half - y); }
    int64_t last(int64_t y) const { return std::min(kernel, height + half - y); }

    [[gnu::noinline]] void apply(const T *from, int64_t ins, const T *filters, T *to, int64_t outs, Ahead = {}) const {
        const int64_t taps = ins * kernel * kernel;
        int64_t o = 0;
        for (; o + 4 <= outs; o += 4) apply_some<4>(from, ins, filters + o * taps, to + size(o));
        for (; o + 2 <= outs; o += 2) apply_some<2>(from, ins, filters + o * taps, to + size(o));
        for (; o < outs; ++o) apply_some<1>(from, ins, filters + o * taps, to + size(o));
    }

    template <int outs> void apply_some(const T *from, int64_t ins, const T *filters, T *to) const {
        for (int64_t y = 0; y < height; ++y) {
            int64_t x = 0;
            for (; x + 4 <= width; x += 4) apply_at<outs, 4>(from, ins, filters, to, y, x);
            for (; x + 2 <= width; x += 2) apply_at<outs, 2>(from, ins, filters, to, y, x);
            for (; x < width; ++x) apply_at<outs, 1>(from, ins, filters, to, y, x);
        }
    }

    template <int outs, int columns>
    INLINE void apply_at(const T *from, int64_t ins, const T *filters, T *to, int64_t y, int64_t x) const {
        const int64_t taps = ins * kernel * kernel;
        vec sum[outs][columns] = {};
        for (int64_t i = 0; i < ins; ++i)
            for (int64_t dy = first(y); dy < last(y); ++dy) {
                const T *line = from + (i * plane + (y + dy - half) * stride + x) * images;
                const T *tap = filters + (i * kernel + dy) * kernel;
                for (int64_t dx = 0; dx < kernel; ++dx, ++tap, line += images)
#pragma GCC unroll 4
                    for (int o = 0; o < outs; ++o) {
                        const vec weight = tap[o * taps] - vec{};  // x + 0 is not x for -0
#pragma GCC unroll 4
                        for (int c = 0; c < columns; ++c) sum[o][c] += weight * at(line + c * images);
                    }
            }
        for (int o = 0; o < outs; ++o)
            std::memcpy(to + (o * plane + y * stride + half + x) * images, sum[o], sizeof sum[o]);
    }

    // Not inlined, like apply: among the passes of a gate its sums did not stay in registers.
    [[gnu::noinline]] void add_filter_gradients(const T *from, int64_t ins, const T *up, int64_t outs,
                                                T *gradients) const {
        const int64_t taps = ins * kernel * kernel * images;
        for (int64_t i = 0; i < ins; ++i)
            for (int64_t dy = 0; dy < kernel; ++dy, gradients += kernel * images) {
                int64_t o = 0;
                for (; o + most <= outs; o += most)
                    line_gradients<most>(from + size(i), up + size(o), gradients + o * taps, taps, dy);
                for (; o < outs; ++o) line_gradients<1>(from + size(i), up + size(o), gradients + o * taps, taps, dy);
            }
    }

    template <int outs>
    INLINE void line_gradients(const T *from, const T *up, T *gradients, int64_t step, int64_t dy) const {
        int64_t dx = 0;
        for (; dx + 7 <= kernel; dx += 7) some_gradients<outs, 7>(from, up, gradients + dx * images, step, dy, dx);
        for (; dx + 3 <= kernel; dx += 3) some_gradients<outs, 3>(from, up, gradients + dx * images, step, dy, dx);
        for (; dx < kernel; ++dx) some_gradients<outs, 1>(from, up, gradients + dx * images, step, dy, dx);
    }

    template <int outs, int offsets>
    INLINE void some_gradients(const T *from, const T *up, T *gradients, int64_t step, int64_t dy, int64_t dx) const {
        vec sum[outs][offsets];
#pragma GCC unroll 4
        for (int o = 0; o < outs; ++o) std::memcpy(sum[o], gradients + o * step, sizeof sum[o]);
        for (int64_t y = first(dy); y < std::min(height, height + half - dy); ++y) {
            const T *line = from + ((y + dy - half) * stride + dx) * images, *above = up + (y * stride + half) * images;
            for (int64_t x = 0; x < width; ++x, line += images, above += images)
#pragma GCC unroll 8
                for (int d = 0; d < offsets; ++d)
#pragma GCC unroll 4
                    for (int o = 0; o < outs; ++o) sum[o][d] += at(above + size(o)) * at(line + d * images);
        }
#pragma GCC unroll 4
        for (int o = 0; o < outs; ++o) std::memcpy(gradients + o * step, sum[o], sizeof sum[o]);
    }
};

}  // namespace
