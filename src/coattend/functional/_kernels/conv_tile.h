// The convolutions of a few output lines, and their gradients.
//
// Each input pose is convolved on its own with filters for all columns; a convolution that sums over the poses has one
// pose, with more channels. A tile holds what some lines read and the responses to it pose by pose, so that the numbers
// of one pose stay in the nearest cache. Vectors are of columns, for the gradients of the map of planes; sums of
// several positions or channels are in registers at once. In planes beyond a line, `border` on either side, gradients
// of responses are zero, so that every tap of every position can be read.
//
// What is multiplied has the type of the map, T; in bfloat16 the pairs that a lane holds (products.h) are of channels
// for the responses, of columns for the gradients of the map, and of neighbouring positions for those of the filters.

#pragma once

#include "products.h"

namespace {

struct ConvShape {
    int64_t images, height, width;
    int64_t poses, channels;  // planes of the input are ordered (channel, pose)
    int64_t columns;          // responses to each pose
    int64_t kernel, padding, threads;

    int64_t down() const { return height + 2 * padding - kernel + 1; }
    int64_t across() const { return width + 2 * padding - kernel + 1; }
    int64_t taps() const { return kernel * kernel; }
    // Channels in whole lanes.
    template <typename T> int64_t slots() const { return (channels + terms<T> - 1) / terms<T> * terms<T>; }
};

// Threads cost more than they save on small maps.
int threads_for(const ConvShape &s) {
    return s.images * s.down() * s.across() * s.poses * s.columns < 16384 ? 1 : int(s.threads);
}

// Calls body(number in a bank, pose, column, channel, tap) in their order there.
template <typename Body> void for_filters(const ConvShape &s, const Body &body) {
    int64_t from = 0;
    for (int64_t h = 0; h < s.poses; ++h)
        for (int64_t column = 0; column < s.columns; ++column)
            for (int64_t c = 0; c < s.channels; ++c)
                for (int64_t tap = 0; tap < s.taps(); ++tap) body(from++, h, column, c, tap);
}

// The filters as the responses need them: (pose, tap, channels / terms, column, term).
template <typename T> std::vector<T> filters_of(const float *bank, const ConvShape &s) {
    const int64_t slots = s.slots<T>();
    std::vector<T> filters(s.poses * s.taps() * slots * s.columns, T{});
    for_filters(s, [&](int64_t i, int64_t h, int64_t column, int64_t c, int64_t tap) {
        const int64_t lane = ((h * s.taps() + tap) * slots / terms<T> + c / terms<T>)*s.columns + column;
        filters[lane * terms<T> + c % terms<T>] = rounded_to<T>(bank[i]);
    });
    return filters;
}

// The filters as the gradients of a map need them: (tap, columns / terms, plane, term), with zeros up to whole vectors
// of planes.
template <typename T> struct ImageFilters {
    const int64_t planes, step;
    std::vector<T> filters;

    ImageFilters(const float *bank, const ConvShape &s)
        : planes(s.channels * s.poses),
          step((planes + wide_lanes - 1) / wide_lanes * wide_lanes),
          filters(s.taps() * s.columns * step, T{}) {
        for_filters(s, [&](int64_t i, int64_t h, int64_t column, int64_t c, int64_t tap) {
            const int64_t lane = (tap * s.columns + column) / terms<T> * step + c * s.poses + h;
            filters[lane * terms<T> + column % terms<T>] = rounded_to<T>(bank[i]);
        });
    }
};

// Output lines first to first + lines of some images.
struct Lines {
    int64_t image, images, first, lines;
};

// Calls body(number of poses as a constant).
template <typename Body> INLINE void with_poses(int64_t poses, const Body &body) {
    switch (poses) {
        case 1: return body(std::integral_constant<int, 1>());
        case 2: return body(std::integral_constant<int, 2>());
        case 4: return body(std::integral_constant<int, 4>());
        case 8: return body(std::integral_constant<int, 8>());
    }
}

// How far apart neighbouring positions, and lines, are in memory.
struct Steps {
    int64_t position, line;
};

// The responses of P positions in V vectors of columns to filters (tap, lane of channels, column), added to a bias per
// column.
template <int P, int V, bool half, typename T>
INLINE void convolve_positions(const T *x, Steps in, const T *filter, const float *bias, const ConvShape &s, float *y) {
    wide sum[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) load_all<V, half>(bias, sum[p]);
    for (int64_t i = 0; i < s.kernel; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const T *from = x + i * in.line + j * in.position;
            for (int64_t c = 0; c < in.position; c += terms<T>, filter += s.columns * terms<T>) {
                wide weight[V];
                load_all<V, half>(filter, weight);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const wide value = repeated<1>(from + p * in.position + c);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] = add_products<T>(sum[p][v], value, weight[v]);
                }
            }
        }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store_all<V, half>(y + p * s.columns, sum[p]);
}

// Adds to the gradients of one tap of C channels in V vectors of columns. x and up have lanes of neighbouring
// positions, `across` in a line.
template <int C, int V, bool half, typename T>
INLINE void add_tap_gradients(const T *x, Steps in, const T *up, Steps out, int64_t lines, int64_t across,
                              float *gradients, int64_t step) {
    wide sum[C][V];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) load_all<V, half>(gradients + c * step, sum[c]);
    for (int64_t y = 0; y < lines; ++y, x += in.line, up += out.line) {
        const T *from = x, *above = up;
        for (int64_t p = 0; p < across; ++p, from += in.position, above += out.position) {
            wide value[V];
            load_all<V, half>(above, value);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const wide factor = repeated<1>(from + c * terms<T>);
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
                                const ConvShape &s, wide (&sum)[P][V]) {
    for (int64_t i = first; i < last; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const T *above = up - i * out.line - j * out.position,
                    *weights = filter + (i * s.kernel + j) * s.columns * step;
            for (int64_t k = 0; k < s.columns; k += terms<T>, above += N * terms<T>, weights += step * terms<T>) {
                wide weight[V];
                load_all<V, false>(weights, weight);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const wide value = repeated<N>(above + p * out.position);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] = add_products<T>(sum[p][v], value, weight[v]);
                }
            }
        }
}

template <typename T> struct ConvTile {
    const ConvShape &s;
    const int64_t border = s.kernel - 1, across = s.across(), columns = s.columns, slots = s.slots<T>();
    Lines at = {};
    std::vector<T> image;          // (pose, image, line, position, channel)
    std::vector<float> responses;  // (pose, image, line, position, column)
    std::vector<T> gradients;      // of the responses, in their order
    const T *in_place = nullptr;

    ConvTile(const ConvShape &s) : s(s) {}

    // Positions of a tile: so many that sums are rarely loaded and stored, so few that one pose fits into the cache.
    static int64_t positions(const ConvShape &s) { return std::max<int64_t>(32, 16384 / (s.poses * s.columns)); }
    static int64_t lines_at_once(const ConvShape &s) {
        const int64_t most = std::min(s.down(), std::max<int64_t>(1, positions(s) / s.across()));
        const int64_t parts = (s.down() + most - 1) / most;
        return (s.down() + parts - 1) / parts;
    }
    // Of small images several are taken together.
    static int64_t images_at_once(const ConvShape &s) {
        return std::max<int64_t>(1, std::min(s.images, positions(s) / (s.down() * s.across())));
    }

    // Calls body(responses of the first pose, first position among those of all images) for every line.
    template <typename Body> void for_lines(const Body &body) {
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t y = 0; y < at.lines; ++y)
                body(&responses[out(0, m, y)], ((at.image + m) * s.down() + at.first + y) * across);
    }

    Steps in_steps() const { return {slots, (across + border) * slots}; }
    Steps out_steps() const { return {columns, (across + 2 * border) * columns}; }
    int64_t in_lines() const { return at.lines + border; }
    int64_t in_pose() const { return at.images * in_lines() * in_steps().line; }
    // What the lines of an image read. Lines of a map that is ordered as a tile are read where they are.
    const T *read(int64_t h, int64_t m) const {
        if (in_place) return in_place + ((at.image + m) * s.height + at.first) * in_steps().line;
        return &image[h * in_pose() + m * in_lines() * in_steps().line];
    }
    int64_t out_pose() const { return at.images * at.lines * out_steps().line; }
    int64_t out(int64_t h, int64_t m, int64_t y = 0) const {
        return h * out_pose() + (m * at.lines + y) * out_steps().line + border * columns;
    }

    // Copies what the lines read, x (image, line, position, channel, pose), with zeros as its padding.
    void take(const T *x, Lines lines) {
        at = lines;
        const int64_t poses = s.poses, pose = in_pose();
        responses.resize(poses * out_pose());
        in_place = poses == 1 && s.padding == 0 && slots == s.channels ? x : nullptr;
        if (in_place) return;
        if (int64_t(image.size()) != poses * pose) image.assign(poses * pose, T{});  // left and right it stays zero
        const int64_t left = std::min(s.padding, across + border);
        const int64_t right = std::min(s.padding + s.width, across + border);
        // With a channel in every slot a line is copied as one position.
        const int64_t positions = slots == s.channels ? 1 : right - left;
        const int64_t numbers = (right - left) * s.channels / positions;
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding;
                T *to = &image[(m * in_lines() + i) * in_steps().line + left * slots];
                if (y < 0 || y >= s.height) {
                    for (int64_t h = 0; h < poses; ++h) std::fill_n(to + h * pose, (right - left) * slots, T{});
                    continue;
                }
                const T *from = x + ((at.image + m) * s.height + y) * s.width * s.channels * poses;
                for (int64_t p = 0; p < positions; ++p, from += numbers * poses, to += slots)
                    with_poses(poses, [&](auto n) { split<n.value>(from, numbers, to, pose); });
            }
    }
    // (number, pose) -> (pose, number), with a number of poses for which the compiler has vectors.
    template <int poses> static void split(const T *__restrict from, int64_t numbers, T *__restrict to, int64_t pose) {
        for (int h = 0; h < poses; ++h)
            for (int64_t n = 0; n < numbers; ++n) to[h * pose + n] = from[n * poses + h];
    }

    // filters: see filters_of; bias (column)
    void convolve(const T *filters, const float *bias) {
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t m = 0; m < at.images; ++m)
                for (int64_t y = 0; y < at.lines; ++y)
                    for_vectors(columns, [&](auto vectors, auto half, int64_t v) {
                        in_parts<most_positions>(across, [&](auto number, int64_t p) {
                            const T *from = read(h, m) + y * in_steps().line + p * slots;
                            const T *filter = filters + h * s.taps() * slots * columns + v * terms<T>;
                            convolve_positions<number.value, vectors.value, half.value>(
                                from, in_steps(), filter, bias + v, s, &responses[out(h, m, y) + p * columns + v]);
                        });
                    });
    }
};

// The gradients of a convolution, given those of the responses of a tile.
template <typename T, int N> struct TileGradients {
    ConvTile<T> tile;
    const ConvShape &s = tile.s;
    std::vector<T> of_poses;  // the gradients of the responses, (image, line, position, lane of columns, pose)
    std::vector<T> up_pairs, in_pairs;  // lanes of neighbouring positions, (pose, image, line, ..., column or channel)
    std::vector<float> carried;         // gradients of lines that the next tile of the image adds to

    TileGradients(const ConvShape &s) : tile(s), carried(tile.border * s.width * s.channels * N) {}

    // Makes room for the gradients of all responses. What is not one of them, the borders, is zero and stays so: tiles
    // of one size have the same order.
    void expect() {
        for (std::vector<T> *all : {&tile.gradients, &of_poses})
            if (int64_t(all->size()) != N * tile.out_pose()) all->assign(N * tile.out_pose(), T{});
    }

    // Adds those of the filters, (pose, tap, channel, column).
    void add_filter_gradients(float *filters) {
        const int64_t columns = s.columns;
        if constexpr (terms<T> == 2) pair_positions();
        for (int64_t h = 0; h < N; ++h)
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
        if constexpr (terms<T> == 1) return &tile.gradients[tile.out(h, m)];
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
        const int64_t lines = N * tile.at.images * tile.at.lines, in_lines = N * tile.at.images * tile.in_lines();
        up_pairs.resize(lines * up_steps().line);
        in_pairs.resize(in_lines * read_steps().line);
        const Steps out = tile.out_steps(), in = tile.in_steps();
        for (int64_t y = 0; y < lines; ++y) {
            const T *from = &tile.gradients[y * out.line + tile.border * s.columns];
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
    void write_image_gradients(const ImageFilters<T> &filters, T *dx) {
        const Lines &at = tile.at;
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t y = 0; y < at.lines; ++y)
                join(&tile.gradients[tile.out(0, m, y)], tile.across * s.columns / terms<T>,
                     &of_poses[N * tile.out(0, m, y)]);
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < tile.in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding, numbers = s.width * filters.planes;
                if (y < 0 || y >= s.height) continue;
                const float *before = at.first > 0 && i < tile.border ? &carried[i * numbers] : nullptr;
                if (i >= at.lines && at.first + at.lines < s.down())
                    write_line(filters, m, i, before, &carried[(i - at.lines) * numbers]);
                else
                    write_line(filters, m, i, before, dx + ((at.image + m) * s.height + y) * numbers);
            }
    }
    // (pose, lane) -> (lane, pose)
    void join(const T *from, int64_t number, T *to) const {
        typedef int32_t lane __attribute__((may_alias));
        const lane *__restrict lanes = (const lane *)from;
        lane *__restrict joined = (lane *)to;
        const int64_t pose = tile.out_pose() / terms<T>;
        for (int64_t n = 0; n < number; ++n)
            for (int h = 0; h < N; ++h) joined[n * N + h] = lanes[h * pose + n];
    }

    template <typename To>
    void write_line(const ImageFilters<T> &filters, int64_t m, int64_t i, const float *before, To *line) {
        const int64_t first = std::max<int64_t>(0, i - tile.at.lines + 1), last = std::min(s.kernel, i + 1);
        const Steps out = {N * tile.out_steps().position, N * tile.out_steps().line};
        in_parts<most_vectors>(filters.step / wide_lanes, [&](auto vectors, int64_t vector) {
            const int64_t plane = vector * wide_lanes;
            in_parts<most_positions>(s.width, [&](auto number, int64_t p) {
                constexpr int P = decltype(number)::value, V = decltype(vectors)::value;
                wide sum[P][V] = {};
                const T *up = of_poses.data() + N * tile.out(0, m) + i * out.line + (p + s.padding) * out.position;
                add_image_gradients<N>(up, out, &filters.filters[plane * terms<T>], filters.step, first, last, s, sum);
#pragma GCC unroll 8
                for (int q = 0; q < P; ++q)
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) {
                        const int64_t at = (p + q) * filters.planes + plane + v * wide_lanes;
                        const int count = int(std::min<int64_t>(wide_lanes, filters.planes - plane - v * wide_lanes));
                        store_first(line + at, before ? load_first(before + at, count) + sum[q][v] : sum[q][v], count);
                    }
            });
        });
    }
};

// All lines of all images, some of them at a time.
struct Tiles {
    const ConvShape &s;
    const int64_t lines = ConvTile<float>::lines_at_once(s), images = ConvTile<float>::images_at_once(s);
    const int64_t per_image = (s.down() + lines - 1) / lines;
    const int64_t number = (s.images + images - 1) / images * per_image;

    Tiles(const ConvShape &s) : s(s) {}

    Lines at(int64_t i) const {
        const int64_t image = i / per_image * images, first = i % per_image * lines;
        return {image, std::min(images, s.images - image), first, std::min(lines, s.down() - first)};
    }
    // Calls body(tile, its number) in parallel, for tiles that have taken what they read of x.
    template <typename T, typename Body> void for_each(const T *x, const Body &body) const {
#pragma omp parallel num_threads(threads_for(s))
        {
            ConvTile<T> tile(s);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < number; ++i) {
                tile.take(x, at(i));
                body(tile, i);
            }
        }
    }
};

}  // namespace
