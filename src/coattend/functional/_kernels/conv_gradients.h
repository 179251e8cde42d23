// The gradients of the convolutions of a few output lines (conv_tile.h), given those of the responses.
//
// For the gradients of the map vectors are of planes, for those of the filters of columns; sums of several positions or
// channels are in registers at once. In planes beyond a line, `border` on either side, gradients of responses are zero,
// so that every tap of every position can be read. The pairs of bfloat16 that a lane holds (products.h) are of columns
// for the gradients of the map, of neighbouring positions for those of the filters.

#pragma once

#include "conv_tile.h"

namespace {

// The filters as the gradients of a map need them: (tap, columns / terms, plane, term), with zeros up to whole vectors
// of planes.
template <typename T> struct ImageFilters {
    const int64_t planes, step;
    std::vector<T> filters;

    ImageFilters(const float *bank, const ConvShape &s)
        : planes(s.channels * s.poses), step(padded(planes)), filters(s.taps() * s.columns * step, T{}) {
        for_filters(s, [&](int64_t i, int64_t h, int64_t column, int64_t c, int64_t tap) {
            const int64_t lane = (tap * s.columns + column) / terms<T> * step + c * s.poses + h;
            assign(filters[lane * terms<T> + column % terms<T>], bank[i]);
        });
    }
};

// Adds to the gradients of one tap of C channels in V vectors of columns. x and up have lanes of neighbouring
// positions, `across` in a line.
template <int C, int V, bool half, typename T>
INLINE void add_tap_gradients(const T *x, Steps in, const T *up, Steps out, int64_t lines, int64_t across,
                              float *gradients, int64_t step) {
    vec sum[C][V];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) load_all<V, half>(gradients + c * step, sum[c]);
    for (int64_t y = 0; y < lines; ++y, x += in.line, up += out.line) {
        const T *from = x, *above = up;
        for (int64_t p = 0; p < across; ++p, from += in.position, above += out.position) {
            vec value[V];
            load_all<V, half>(above, value);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const vec factor = repeated<1>(from + c * terms<T>);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[c][v] = add_products<T>(sum[c][v], factor, value[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store_all<V, half>(gradients + c * step, sum[c]);
}

// The gradients of P neighbouring positions in V vectors of planes (channel, pose) from the taps of kernel lines first
// to last; `up` is where tap (0, 0) of the first position reads gradients (lane of columns, pose).
template <int N, int P, int V, typename T>
INLINE void add_image_gradients(const T *up, Steps out, const T *filter, int64_t step, int64_t first, int64_t last,
                                const ConvShape &s, vec (&sum)[P][V]) {
    for (int64_t i = first; i < last; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const T *above = up - i * out.line - j * out.position;
            const T *weights = filter + (i * s.kernel + j) * s.columns * step;
            for (int64_t k = 0; k < s.columns; k += terms<T>, above += N * terms<T>, weights += step * terms<T>) {
                vec weight[V];
                load_all<V, false>(weights, weight);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const vec value = repeated<N>(above + p * out.position);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] = add_products<T>(sum[p][v], value, weight[v]);
                }
            }
        }
}

// The gradients of a convolution, given those of the responses of a tile.
template <typename T> struct TileGradients {
    ConvTile<T> tile;
    const ConvShape &s = tile.s;
    std::vector<T> of_responses;        // in the order of the responses
    std::vector<T> of_poses;            // the same, (image, line, position, lane of columns, pose)
    std::vector<T> up_pairs, in_pairs;  // lanes of neighbouring positions, (pose, image, line, ..., column or channel)
    std::vector<float> carried;         // gradients of lines that the next tile of the image adds to
    std::vector<float> line;

    TileGradients(const ConvShape &s)
        : tile(s),
          carried(tile.border * s.width * s.channels * s.poses),
          line(terms<T> > 1 ? s.width * s.channels * s.poses : 0) {}

    // Makes room for the gradients of all responses. What is not one of them, the borders, is zero and stays so: tiles
    // of one size have the same order.
    void expect() {
        for (std::vector<T> *all : {&of_responses, &of_poses})
            if (int64_t(all->size()) != s.poses * tile.out_pose()) all->assign(s.poses * tile.out_pose(), T{});
    }

    // Adds those of the filters, (pose, tap, channel, column).
    void add_filter_gradients(float *filters) {
        const int64_t columns = s.columns;
        if constexpr (terms<T> == 2) pair_positions();
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t tap = 0; tap < s.taps(); ++tap)
                in_parts<most_channels>(s.channels, [&](auto some, int64_t c) {
                    for_vectors(columns, [&](auto vectors, auto half, int64_t v) {
                        float *sums = filters + ((h * s.taps() + tap) * s.channels + c) * columns + v;
                        for (int64_t m = 0; m < tile.at.images; ++m)
                            add_tap_gradients<some.value, vectors.value, half.value>(
                                read(h, m, tap) + c * terms<T>, read_steps(), up(h, m) + v * terms<T>, up_steps(),
                                tile.at.lines, lanes_across(), sums, columns);
                    });
                });
    }

    // Lanes of positions p and p + 1, of the responses for every other p, of the image for every p.
    int64_t lanes_across() const { return (tile.across + terms<T> - 1) / terms<T>; }
    const T *up(int64_t h, int64_t m) const {
        if constexpr (terms<T> == 1) return &of_responses[tile.out(h, m)];
        return &up_pairs[(h * tile.at.images + m) * tile.at.lines * up_steps().line];
    }
    Steps up_steps() const {
        if constexpr (terms<T> == 1) return tile.out_steps();
        return {2 * s.columns, lanes_across() * 2 * s.columns};
    }
    const T *read(int64_t h, int64_t m, int64_t tap) const {
        const int64_t i = tap / s.kernel, j = tap % s.kernel;
        if constexpr (terms<T> == 1) return tile.read(h, m) + i * tile.in_steps().line + j * tile.slots;
        return &in_pairs[((h * tile.at.images + m) * tile.in_lines() + i) * read_steps().line + j * 2 * tile.slots];
    }
    Steps read_steps() const {
        if constexpr (terms<T> == 1) return tile.in_steps();
        return {4 * tile.slots, 2 * tile.in_steps().line};
    }
    void pair_positions() {
        const int64_t all = s.poses * tile.at.images, lines = all * tile.at.lines, in_lines = all * tile.in_lines();
        up_pairs.resize(lines * up_steps().line);
        in_pairs.resize(in_lines * read_steps().line);
        const Steps out = tile.out_steps(), in = tile.in_steps();
        for (int64_t y = 0; y < lines; ++y) {
            const T *from = &of_responses[y * out.line + tile.border * s.columns];
            T *to = &up_pairs[y * up_steps().line];
            for (int64_t p = 0; p + 1 < tile.across; p += 2, from += 2 * s.columns, to += 2 * s.columns)
                pair(from, s.columns, s.columns, to);
            if (tile.across % 2) pair_with_zeros(from, s.columns, to);
        }
        for (int64_t y = 0; y < in_lines; ++y) {
            const T *from = tile.read(0, 0) + y * in.line;
            T *to = &in_pairs[y * read_steps().line];
            const int64_t last = in.line - in.position;
            pair(from, in.position, last, to);
            pair_with_zeros(from + last, in.position, to + 2 * last);
        }
    }
    static void pair_with_zeros(const T *from, int64_t numbers, T *to) {
        for (int64_t n = 0; n < numbers; ++n) to[2 * n] = from[n], to[2 * n + 1] = T{};
    }
    static void pair(const T *from, int64_t apart, int64_t numbers, T *to) {
        typedef uint16_t number __attribute__((may_alias));
        typedef uint32_t lane __attribute__((may_alias));
        const number *__restrict lower = (const number *)from, *__restrict upper = (const number *)(from + apart);
        lane *__restrict lanes = (lane *)to;
        for (int64_t n = 0; n < numbers; ++n) lanes[n] = lower[n] | uint32_t(upper[n]) << 16;
    }

    // Writes those of x. The next tile of an image adds to the last `border` lines, which it gets as floats.
    template <int N> void write_image_gradients(const ImageFilters<T> &filters, T *dx) {
        const Lines &at = tile.at;
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t y = 0; y < at.lines; ++y)
                join<N>(&of_responses[tile.out(0, m, y)], tile.across * s.columns / terms<T>,
                        &of_poses[N * tile.out(0, m, y)]);
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < tile.in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding, numbers = s.width * filters.planes;
                if (y < 0 || y >= s.height) continue;
                const float *before = at.first > 0 && i < tile.border ? &carried[i * numbers] : nullptr;
                if (i >= at.lines && at.first + at.lines < s.down()) {
                    write_line<N>(filters, m, i, before, &carried[(i - at.lines) * numbers]);
                    continue;
                }
                T *to = dx + ((at.image + m) * s.height + y) * numbers;
                if constexpr (terms<T> == 1) {
                    write_line<N>(filters, m, i, before, to);
                } else {
                    write_line<N>(filters, m, i, before, line.data());
                    for_columns(numbers, [&](auto whole, int64_t v, int count) {
                        put<whole.value>(to + v, get<whole.value>(&line[v], count), count);
                    });
                }
            }
    }
    // (pose, lane) -> (lane, pose)
    template <int N> void join(const T *from, int64_t number, T *to) const {
        typedef int32_t lane __attribute__((may_alias));
        const lane *__restrict lanes = (const lane *)from;
        lane *__restrict joined = (lane *)to;
        const int64_t pose = tile.out_pose() / terms<T>;
        for (int64_t n = 0; n < number; ++n)
            for (int h = 0; h < N; ++h) joined[n * N + h] = lanes[h * pose + n];
    }

    template <int N>
    void write_line(const ImageFilters<T> &filters, int64_t m, int64_t i, const float *before, float *to) {
        const int64_t first = std::max<int64_t>(0, i - tile.at.lines + 1), last = std::min(s.kernel, i + 1);
        const Steps out = {N * tile.out_steps().position, N * tile.out_steps().line};
        in_parts<most_vectors>(filters.step / lanes, [&](auto vectors, int64_t vector) {
            const int64_t plane = vector * lanes;
            in_parts<most_positions>(s.width, [&](auto number, int64_t p) {
                constexpr int P = decltype(number)::value, V = decltype(vectors)::value;
                vec sum[P][V] = {};
                const T *up = of_poses.data() + N * tile.out(0, m) + i * out.line + (p + s.padding) * out.position;
                add_image_gradients<N>(up, out, &filters.filters[plane * terms<T>], filters.step, first, last, s, sum);
#pragma GCC unroll 8
                for (int q = 0; q < P; ++q)
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) {
                        const int64_t at = (p + q) * filters.planes + plane + v * lanes;
                        const int count = int(std::min<int64_t>(lanes, filters.planes - plane - v * lanes));
                        const vec value = before ? get<false>(before + at, count) + sum[q][v] : sum[q][v];
                        put<false>(to + at, value, count);
                    }
            });
        });
    }
};

}  // namespace
