// The convolutions of a few output lines, and their gradients.
//
// Each input pose is convolved on its own with filters for all columns; a convolution that sums over the poses has one
// pose, with more channels. A tile holds what some lines read and the responses to it pose by pose, so that the numbers
// of one pose stay in the nearest cache. Vectors are of columns; sums of several positions or channels are in registers
// at once. In planes beyond a line, `border` on either side, gradients of responses are zero, so that every tap of
// every position can be read.

#pragma once

#include "rows.h"

namespace {

struct ConvShape {
    int64_t images, height, width;
    int64_t poses, channels;  // planes of the input are ordered (channel, pose)
    int64_t columns;          // responses to each pose
    int64_t kernel, padding, threads;

    int64_t down() const { return height + 2 * padding - kernel + 1; }
    int64_t across() const { return width + 2 * padding - kernel + 1; }
    int64_t taps() const { return kernel * kernel; }
    int64_t filter() const { return taps() * channels * columns; }  // numbers for one input pose
};

// Threads cost more than they save on small maps.
int threads_for(const ConvShape &s) {
    return s.images * s.down() * s.across() * s.poses * s.columns < 16384 ? 1 : int(s.threads);
}

// Calls body(number in a bank, number in the filters of a tile), which are ordered (pose, column, channel, tap) and
// (pose, tap, channel, column).
template <typename Body> void for_filters(const ConvShape &s, const Body &body) {
    int64_t from = 0;
    for (int64_t h = 0; h < s.poses; ++h)
        for (int64_t column = 0; column < s.columns; ++column)
            for (int64_t c = 0; c < s.channels; ++c)
                for (int64_t tap = 0; tap < s.taps(); ++tap)
                    body(from++, ((h * s.taps() + tap) * s.channels + c) * s.columns + column);
}

std::vector<float> filters_of(const float *bank, const ConvShape &s) {
    std::vector<float> filters(s.poses * s.filter());
    for_filters(s, [&](int64_t i, int64_t k) { filters[k] = bank[i]; });
    return filters;
}

// Output lines first to first + lines of some images.
struct Lines {
    int64_t image, images, first, lines;
};

// Convolutions take vectors of 64 bytes where the processor has them, whatever those of attention; the last one of a
// row may be half a vector, since columns are a multiple of 8.
#ifdef __AVX512F__
typedef float wide __attribute__((vector_size(64)));
constexpr int most_positions = 8, most_channels = 5, most_vectors = 3;  // at most 24 sums, in 32 registers

template <bool half> INLINE wide load_wide(const float *from) {
    return half ? (wide)_mm512_maskz_loadu_ps(0xff, from) : (wide)_mm512_loadu_ps(from);
}
template <bool half> INLINE void store_wide(float *to, wide v) {
    half ? _mm512_mask_storeu_ps(to, 0xff, (__m512)v) : _mm512_storeu_ps(to, (__m512)v);
}
INLINE wide load_first(const float *from, int count) {
    return (wide)_mm512_maskz_loadu_ps(__mmask16((1 << count) - 1), from);
}
INLINE void store_first(float *to, wide v, int count) {
    _mm512_mask_storeu_ps(to, __mmask16((1 << count) - 1), (__m512)v);
}
#else
typedef float wide __attribute__((vector_size(32)));
constexpr int most_positions = 2, most_channels = 2, most_vectors = 5;

template <bool half> INLINE wide load_wide(const float *from) {
    wide v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <bool half> INLINE void store_wide(float *to, wide v) { std::memcpy(to, &v, sizeof v); }
INLINE wide load_first(const float *from, int count) {
    wide v = {};
    std::memcpy(&v, from, count * sizeof(float));
    return v;
}
INLINE void store_first(float *to, wide v, int count) { std::memcpy(to, &v, count * sizeof(float)); }
#endif
constexpr int wide_lanes = sizeof(wide) / sizeof(float);

// Lane i gets from[i % N].
template <int N> INLINE wide repeated(const float *from) {
#ifdef __AVX512F__
    if constexpr (N == 4) return (wide)_mm512_broadcast_f32x4(_mm_loadu_ps(from));
#elif defined(__AVX__)
    if constexpr (N == 4) return (wide)_mm256_broadcast_ps((const __m128 *)from);
#endif
    if constexpr (N == 8 && wide_lanes == 8) return load_wide<false>(from);
#ifdef __AVX512DQ__
    if constexpr (N == 8) return (wide)_mm512_broadcast_f32x8(_mm256_loadu_ps(from));
#endif
    typedef double pairs __attribute__((vector_size(sizeof(wide))));
    if constexpr (N == 2) {
        double pair;
        std::memcpy(&pair, from, sizeof pair);
        return (wide)(pair - pairs{});
    }
    wide v;
    for (int i = 0; i < wide_lanes; ++i) v[i] = from[i % N];
    return v;
}

// Calls body(n as a constant), 1 <= n <= most.
template <int most, typename Body> INLINE void with_constant(int64_t n, const Body &body) {
    if constexpr (most == 1)
        body(std::integral_constant<int, 1>());
    else if (n == most)
        body(std::integral_constant<int, most>());
    else
        with_constant<most - 1>(n, body);
}

// Calls body(count as a constant, first) for parts of about equal size, at most `most`.
template <int most, typename Body> INLINE void in_parts(int64_t total, const Body &body) {
    const int64_t number = (total + most - 1) / most, size = (total + number - 1) / number;
    for (int64_t first = 0; first < total; first += size)
        with_constant<most>(std::min(size, total - first), [&](auto count) { body(count, first); });
}

// How far apart neighbouring positions, and lines, are in memory.
struct Steps {
    int64_t position, line;
};

// Calls body(n as a constant, whether the last one is half a vector, first column) for parts of n vectors.
template <typename Body> INLINE void for_vectors(int64_t columns, const Body &body) {
    const int64_t number = (columns + wide_lanes - 1) / wide_lanes;
    in_parts<most_vectors>(number, [&](auto vectors, int64_t first) {
        if (first + vectors == number && columns % wide_lanes)
            body(vectors, std::true_type(), first * wide_lanes);
        else
            body(vectors, std::false_type(), first * wide_lanes);
    });
}

template <int V, bool half> INLINE void load_all(const float *from, wide *to) {
#pragma GCC unroll 8
    for (int v = 0; v + 1 < V; ++v) to[v] = load_wide<false>(from + v * wide_lanes);
    to[V - 1] = load_wide<half>(from + (V - 1) * wide_lanes);
}
template <int V, bool half> INLINE void store_all(float *to, const wide *from) {
#pragma GCC unroll 8
    for (int v = 0; v + 1 < V; ++v) store_wide<false>(to + v * wide_lanes, from[v]);
    store_wide<half>(to + (V - 1) * wide_lanes, from[V - 1]);
}

// The responses of P positions in V vectors of columns to filters (tap, channel, columns), added to a bias per column.
template <int P, int V, bool half>
INLINE void convolve_positions(const float *x, Steps in, const float *filter, const float *bias, const ConvShape &s,
                               float *y) {
    wide sum[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) load_all<V, half>(bias, sum[p]);
    for (int64_t i = 0; i < s.kernel; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const float *from = x + i * in.line + j * in.position;
            for (int64_t c = 0; c < s.channels; ++c, filter += s.columns) {
                wide weight[V];
                load_all<V, half>(filter, weight);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const wide value = from[p * in.position + c] - wide{};
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] += value * weight[v];
                }
            }
        }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store_all<V, half>(y + p * s.columns, sum[p]);
}

// Adds to the gradients of one tap of C channels in V vectors of columns.
template <int C, int V, bool half>
INLINE void add_tap_gradients(const float *x, Steps in, const float *up, Steps out, int64_t lines, int64_t across,
                              float *gradients, int64_t step) {
    wide sum[C][V];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) load_all<V, half>(gradients + c * step, sum[c]);
    for (int64_t y = 0; y < lines; ++y, x += in.line, up += out.line) {
        const float *from = x, *above = up;
        for (int64_t p = 0; p < across; ++p, from += in.position, above += out.position) {
            wide value[V];
            load_all<V, half>(above, value);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const wide factor = from[c] - wide{};
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[c][v] += factor * value[v];
            }
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store_all<V, half>(gradients + c * step, sum[c]);
}

// The filters as the gradients of an image need them: (tap, column, plane), with zeros up to whole vectors of planes.
struct ImageFilters {
    const int64_t planes, step;
    std::vector<float> filters;

    ImageFilters(const float *bank, const ConvShape &s)
        : planes(s.channels * s.poses),
          step((planes + wide_lanes - 1) / wide_lanes * wide_lanes),
          filters(s.taps() * s.columns * step) {
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t column = 0; column < s.columns; ++column)
                for (int64_t c = 0; c < s.channels; ++c)
                    for (int64_t tap = 0; tap < s.taps(); ++tap)
                        filters[(tap * s.columns + column) * step + c * s.poses + h] = *bank++;
    }
};

// The gradients of P neighbouring positions in V vectors of planes (channel, pose) from the taps of kernel lines first
// to last; `up` is where tap (0, 0) of the first position reads gradients (column, pose).
template <int N, int P, int V>
INLINE void add_image_gradients(const float *up, Steps out, const float *filter, int64_t step, int64_t first,
                                int64_t last, const ConvShape &s, wide (&sum)[P][V]) {
    for (int64_t i = first; i < last; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const float *above = up - i * out.line - j * out.position;
            const float *weights = filter + (i * s.kernel + j) * s.columns * step;
            for (int64_t column = 0; column < s.columns; ++column, above += N, weights += step) {
                wide weight[V];
                load_all<V, false>(weights, weight);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const wide value = repeated<N>(above + p * out.position);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] += value * weight[v];
                }
            }
        }
}

struct ConvTile {
    const ConvShape &s;
    const int64_t border = s.kernel - 1, across = s.across(), columns = s.columns;
    Lines at = {};
    std::vector<float> image, responses, gradients;  // (pose, image, line, position, channel or column)
    std::vector<float> gradients_of_poses;           // the same, (image, line, position, column, pose)
    const float *in_place = nullptr;

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

    Steps in_steps() const { return {s.channels, (across + border) * s.channels}; }
    Steps out_steps() const { return {columns, (across + 2 * border) * columns}; }
    int64_t in_lines() const { return at.lines + border; }
    // What the lines of an image read. Lines of a map that is ordered as a tile are read where they are.
    const float *read(int64_t h, int64_t m) const {
        if (in_place) return in_place + ((at.image + m) * s.height + at.first) * in_steps().line;
        return &image[(h * at.images + m) * in_lines() * in_steps().line];
    }
    int64_t out_pose() const { return at.images * at.lines * out_steps().line; }
    int64_t out(int64_t h, int64_t m, int64_t y = 0) const {
        return h * out_pose() + (m * at.lines + y) * out_steps().line + border * columns;
    }

    // Copies what the lines read, x (image, line, position, channel, pose), with zeros as its padding.
    void take(const float *x, Lines lines) {
        at = lines;
        const int64_t poses = s.poses, pose = at.images * in_lines() * in_steps().line;
        responses.resize(poses * out_pose());
        in_place = poses == 1 && s.padding == 0 ? x : nullptr;
        if (in_place) return;
        image.assign(poses * pose, 0);
        const int64_t left = std::min(s.padding, across + border);
        const int64_t right = std::min(s.padding + s.width, across + border);
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding;
                if (y < 0 || y >= s.height) continue;
                const float *from = x + ((at.image + m) * s.height + y) * s.width * s.channels * poses;
                float *to = &image[(m * in_lines() + i) * in_steps().line + left * s.channels];
                switch (poses) {
                    case 1: split<1>(from, (right - left) * s.channels, to, pose); break;
                    case 2: split<2>(from, (right - left) * s.channels, to, pose); break;
                    case 4: split<4>(from, (right - left) * s.channels, to, pose); break;
                    default: split<8>(from, (right - left) * s.channels, to, pose);
                }
            }
    }
    // (number, pose) -> (pose, number), with a number of poses for which the compiler has vectors.
    template <int poses>
    static void split(const float *__restrict from, int64_t numbers, float *__restrict to, int64_t pose) {
        for (int h = 0; h < poses; ++h)
            for (int64_t n = 0; n < numbers; ++n) to[h * pose + n] = from[n * poses + h];
    }

    // filters (pose, tap, channel, column), bias (column)
    void convolve(const float *filters, const float *bias) {
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t m = 0; m < at.images; ++m)
                for (int64_t y = 0; y < at.lines; ++y)
                    for_vectors(columns, [&](auto vectors, auto half, int64_t v) {
                        in_parts<most_positions>(across, [&](auto number, int64_t p) {
                            const float *from = read(h, m) + y * in_steps().line + p * s.channels;
                            convolve_positions<number.value, vectors.value, half.value>(
                                from, in_steps(), filters + h * s.filter() + v, bias + v, s,
                                &responses[out(h, m, y) + p * columns + v]);
                        });
                    });
    }

    // Makes room for the gradients of all responses. What is not one of them, the borders, is zero and stays so: tiles
    // of one size have the same order.
    void expect_gradients() {
        for (std::vector<float> *all : {&gradients, &gradients_of_poses})
            if (int64_t(all->size()) != s.poses * out_pose()) all->assign(s.poses * out_pose(), 0);
    }

    // Adds those of the filters, in their order.
    void add_filter_gradients(float *filters) {
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t tap = 0; tap < s.taps(); ++tap)
                in_parts<most_channels>(s.channels, [&](auto some, int64_t c) {
                    for_vectors(columns, [&](auto vectors, auto half, int64_t v) {
                        const int64_t offset = tap / s.kernel * in_steps().line + tap % s.kernel * s.channels + c;
                        float *sums = filters + h * s.filter() + (tap * s.channels + c) * columns + v;
                        for (int64_t m = 0; m < at.images; ++m)
                            add_tap_gradients<some.value, vectors.value, half.value>(
                                read(h, m) + offset, in_steps(), &gradients[out(h, m) + v], out_steps(), at.lines,
                                across, sums, columns);
                    });
                });
    }

    // Writes those of x; to lines that earlier tiles of the image have written to, it adds them.
    template <int N> void write_image_gradients(const ImageFilters &filters, float *dx) {
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t y = 0; y < at.lines; ++y)
                join<N>(&gradients[out(0, m, y)], across * columns, &gradients_of_poses[N * out(0, m, y)], out_pose());
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding;
                if (y < 0 || y >= s.height) continue;
                const bool adds = at.first > 0 && i < border;
                write_line<N>(filters, m, i, adds, dx + ((at.image + m) * s.height + y) * s.width * filters.planes);
            }
    }
    // (pose, number) -> (number, pose)
    template <int poses>
    static void join(const float *__restrict from, int64_t numbers, float *__restrict to, int64_t pose) {
        for (int64_t n = 0; n < numbers; ++n)
            for (int h = 0; h < poses; ++h) to[n * poses + h] = from[h * pose + n];
    }

    template <int N> void write_line(const ImageFilters &filters, int64_t m, int64_t i, bool adds, float *line) {
        const int64_t first = std::max<int64_t>(0, i - at.lines + 1), last = std::min(s.kernel, i + 1);
        const Steps out_of_poses = {N * out_steps().position, N * out_steps().line};
        in_parts<most_vectors>(filters.step / wide_lanes, [&](auto vectors, int64_t vector) {
            const int64_t plane = vector * wide_lanes;
            in_parts<most_positions>(s.width, [&](auto number, int64_t p) {
                constexpr int P = decltype(number)::value, V = decltype(vectors)::value;
                wide sum[P][V] = {};
                const int64_t at_first = out(0, m) + i * out_steps().line + (p + s.padding) * columns;
                const float *up = gradients_of_poses.data() + N * at_first;
                add_image_gradients<N>(up, out_of_poses, &filters.filters[plane], filters.step, first, last, s, sum);
#pragma GCC unroll 8
                for (int q = 0; q < P; ++q)
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) {
                        float *to = line + (p + q) * filters.planes + plane + v * wide_lanes;
                        const int count = int(std::min<int64_t>(wide_lanes, filters.planes - plane - v * wide_lanes));
                        store_first(to, adds ? load_first(to, count) + sum[q][v] : sum[q][v], count);
                    }
            });
        });
    }
};

// All lines of all images, some of them at a time.
struct Tiles {
    const ConvShape &s;
    const int64_t lines = ConvTile::lines_at_once(s), images = ConvTile::images_at_once(s);
    const int64_t per_image = (s.down() + lines - 1) / lines;
    const int64_t number = (s.images + images - 1) / images * per_image;

    Tiles(const ConvShape &s) : s(s) {}

    Lines at(int64_t i) const {
        const int64_t image = i / per_image * images, first = i % per_image * lines;
        return {image, std::min(images, s.images - image), first, std::min(lines, s.down() - first)};
    }
    // Calls body(tile, its number) in parallel, for tiles that have taken what they read of x.
    template <typename Body> void for_each(const float *x, const Body &body) const {
#pragma omp parallel num_threads(threads_for(s))
        {
            ConvTile tile(s);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < number; ++i) {
                tile.take(x, at(i));
                body(tile, i);
            }
        }
    }
};

}  // namespace
