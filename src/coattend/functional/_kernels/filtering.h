// A few planes of one image filtered by k x k filters with k odd, zeros around the image, and the gradient of the
// filters.
//
// For few planes and large kernels, where libraries that divide planes into blocks of 16 leave most of a vector unused:
// here a vector holds neighbouring positions. Planes are padded, so that a tap is one offset for all positions:
// position (y, x) of a filtered plane is at y * stride + x, and reads from there + dy * stride + dx. The zeros to the
// right of a line are those to the left of the next one.

#pragma once

#include "tile.h"

namespace {

// Memory that is asked for a line at a time while filters are computed, which take nothing from memory themselves:
// `from` will be read, `to` will be written.
struct Ahead {
    static constexpr int line = 64;
    const char *from = nullptr;
    char *to = nullptr;
    int64_t bytes = 0, at = 0;

    INLINE void fetch() {
        if (at >= bytes) return;
        __builtin_prefetch(from + at);
        __builtin_prefetch(to + at, 1);
        at += line;
    }
};

template <typename T> struct Filtering {
    using vec = typename Lanes<T>::vec;
    static constexpr int count = Lanes<T>::count, images = 1;  // at once
    static constexpr int sums = 12;  // in registers at once: of 4 planes and 3 vectors, 2 and 6, or 1 and 12
#ifdef __AVX512VL__
    static constexpr int most = 4;  // planes at once for the gradients of 7 taps: 28 sums in 32 registers
#else
    static constexpr int most = 2;
#endif

    const int64_t height, width, kernel;
    const int64_t stride = width + kernel / 2, length = (height - 1) * stride + width;
    const int64_t plane = (height + kernel - 1) * stride + kernel + sums * count;  // the last block reads beyond
    const int64_t origin = kernel / 2 * (stride + 1);                              // of a padded plane

    int64_t size(int64_t planes) const { return planes * plane; }

    INLINE static vec at(const T *from) {
        vec v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }

    // From (positions, planes) to padded planes, whose padding is zero already; `known` is the number of planes or 0.
    template <int known = 0> void spread(const T *__restrict rows, int64_t number, T *__restrict to, int = 0) const {
        const int64_t planes = known ? known : number;
        for (int64_t y = 0; y < height; ++y, rows += width * planes)
            for (int64_t x = 0; x < width; ++x)
                for (int64_t i = 0; i < planes; ++i) to[i * plane + origin + y * stride + x] = rows[x * planes + i];
    }
    // From filtered planes to (positions, planes).
    template <int known = 0> void gather(const T *__restrict from, int64_t number, T *__restrict rows, int = 0) const {
        const int64_t planes = known ? known : number;
        for (int64_t y = 0; y < height; ++y, rows += width * planes)
            for (int64_t x = 0; x < width; ++x)
                for (int64_t i = 0; i < planes; ++i) rows[x * planes + i] = from[i * plane + y * stride + x];
    }

    // filters (outs, ins, k, k), without turning them:
    // to[o](u) = sum over i, d of filters[o, i](d) from[i](u + d - k / 2)
    [[gnu::noinline]] void apply(const T *from, int64_t ins, const T *filters, T *to, int64_t outs,
                                 Ahead ahead = {}) const {
        const int64_t taps = ins * kernel * kernel;
        int64_t o = 0;
        for (; o + 4 <= outs; o += 4) apply_some<4>(from, ins, filters + o * taps, to + o * plane, ahead);
        for (; o + 2 <= outs; o += 2) apply_some<2>(from, ins, filters + o * taps, to + o * plane, ahead);
        for (; o < outs; ++o) apply_some<1>(from, ins, filters + o * taps, to + o * plane, ahead);
    }

    template <int outs> void apply_some(const T *from, int64_t ins, const T *filters, T *to, Ahead &ahead) const {
        constexpr int vectors = sums / outs;
        const int64_t taps = ins * kernel * kernel;
        for (int64_t q = 0; q < length; q += vectors * count) {
            vec sum[outs][vectors] = {};
            const T *tap = filters;
            for (int64_t i = 0; i < ins; ++i)
                for (int64_t dy = 0; dy < kernel; ++dy) {
                    const T *line = from + i * plane + dy * stride + q;
                    ahead.fetch();
                    ahead.fetch();
                    for (int64_t dx = 0; dx < kernel; ++dx, ++tap)
#pragma GCC unroll 4
                        for (int o = 0; o < outs; ++o) {
                            const vec weight = tap[o * taps] - vec{};  // x + 0 is not x for -0
#pragma GCC unroll 12
                            for (int v = 0; v < vectors; ++v) sum[o][v] += weight * at(line + dx + v * count);
                        }
                }
            for (int o = 0; o < outs; ++o) std::memcpy(to + o * plane + q, sum[o], sizeof sum[o]);
        }
    }

    // Adds to the gradients (outs, ins, k, k) of the filters, `count` sums each, given the padded planes that were
    // filtered and the gradients `up` of the filtered ones, padded as well: beyond the end of a line they are zero.
    // Not inlined, like apply: among the passes of a gate its sums did not stay in registers.
    [[gnu::noinline]] void add_filter_gradients(const T *from, int64_t ins, const T *up, int64_t outs,
                                                T *gradients) const {
        const int64_t taps = ins * kernel * kernel * count;
        for (int64_t i = 0; i < ins; ++i)
            for (int64_t dy = 0; dy < kernel; ++dy, gradients += kernel * count) {
                const T *line = from + i * plane + dy * stride;
                int64_t o = 0;
                for (; o + most <= outs; o += most)
                    line_gradients<most>(line, up + o * plane, gradients + o * taps, taps);
                for (; o < outs; ++o) line_gradients<1>(line, up + o * plane, gradients + o * taps, taps);
            }
    }

    template <int outs> INLINE void line_gradients(const T *line, const T *up, T *gradients, int64_t step) const {
        int64_t dx = 0;
        for (; dx + 7 <= kernel; dx += 7) some_gradients<outs, 7>(line + dx, up, gradients + dx * count, step);
        for (; dx + 3 <= kernel; dx += 3) some_gradients<outs, 3>(line + dx, up, gradients + dx * count, step);
        for (; dx < kernel; ++dx) some_gradients<outs, 1>(line + dx, up, gradients + dx * count, step);
    }

    template <int outs, int offsets>
    INLINE void some_gradients(const T *line, const T *up, T *gradients, int64_t step) const {
        vec sum[outs][offsets];
#pragma GCC unroll 4
        for (int o = 0; o < outs; ++o) std::memcpy(sum[o], gradients + o * step, sizeof sum[o]);
        for (int64_t q = 0; q < length; q += count)
#pragma GCC unroll 8
            for (int d = 0; d < offsets; ++d)
#pragma GCC unroll 4
                for (int o = 0; o < outs; ++o) sum[o][d] += at(up + o * plane + origin + q) * at(line + q + d);
#pragma GCC unroll 4
        for (int o = 0; o < outs; ++o) std::memcpy(gradients + o * step, sum[o], sizeof sum[o]);
    }
};

}  // namespace
