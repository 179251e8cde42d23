// The convolutions of a few output lines, and their gradients.
//
// Each input pose is convolved on its own with filters for all columns; a convolution that sums over the poses has one
// pose, with more channels. A tile holds what some lines read and the responses to it pose by pose, so that the numbers
// of one pose stay in the nearest cache. Vectors are of columns; sums of several positions or channels are in registers
// at once. In planes beyond a line, `border` on either side, gradients of responses are zero, so that every tap of every
// position can be read.

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

// Calls body(number in a bank (pose, column, channel, tap), number in the filters of a tile (pose, tap, channel, column)).
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

#ifdef __AVX512VL__
constexpr int most_positions = 4, most_channels = 5;  // with 5 vectors at most 25 sums, in 32 registers
#else
constexpr int most_positions = 2, most_channels = 2;
#endif
constexpr int most_vectors = 5;

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

// The responses of P positions in V vectors of columns to filters (tap, channel, columns), added to a bias per column.
template <int P, int V>
INLINE void convolve_positions(const float *x, Steps in, const float *filter, const float *bias, const ConvShape &s,
                               float *y) {
    vec sum[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[p][v] = load(bias + v * lanes);
    for (int64_t i = 0; i < s.kernel; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const float *from = x + i * in.line + j * in.position;
            for (int64_t c = 0; c < s.channels; ++c, filter += s.columns) {
                vec weight[V];
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) weight[v] = load(filter + v * lanes);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const vec value = from[p * in.position + c] - vec{};
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] += value * weight[v];
                }
            }
        }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store(y + p * s.columns + v * lanes, sum[p][v]);
}

// Adds to the gradients of one tap of C channels in V vectors of columns.
template <int C, int V>
INLINE void add_tap_gradients(const float *x, Steps in, const float *up, Steps out, int64_t lines, int64_t across,
                              float *gradients, int64_t step) {
    vec sum[C][V];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[c][v] = load(gradients + c * step + v * lanes);
    for (int64_t y = 0; y < lines; ++y, x += in.line, up += out.line) {
        const float *from = x, *above = up;
        for (int64_t p = 0; p < across; ++p, from += in.position, above += out.position) {
            vec value[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) value[v] = load(above + v * lanes);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const vec factor = from[c] - vec{};
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[c][v] += factor * value[v];
            }
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store(gradients + c * step + v * lanes, sum[c][v]);
}

// Lane i gets lane from[i] of a, or lane from[i] - lanes of b.
template <int... from> INLINE vec gathered(vec a, vec b) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, from...);
#else
    return __builtin_shuffle(a, b, (bits){from...});
#endif
}

// The sums of four vectors, together with fewer permutations than one by one.
INLINE void sums_of_lanes(const vec *v, float *sums) {
    static_assert(lanes == 8, "the permutations below are of eight lanes");
    vec half[2], quarter;
    for (int i = 0; i < 2; ++i)
        half[i] = gathered<0, 1, 2, 3, 8, 9, 10, 11>(v[2 * i], v[2 * i + 1]) +
                  gathered<4, 5, 6, 7, 12, 13, 14, 15>(v[2 * i], v[2 * i + 1]);
    quarter = gathered<0, 1, 8, 9, 4, 5, 12, 13>(half[0], half[1]) +
              gathered<2, 3, 10, 11, 6, 7, 14, 15>(half[0], half[1]);
    quarter += gathered<1, 0, 3, 2, 5, 4, 7, 6>(quarter, quarter);
    sums[0] = quarter[0], sums[1] = quarter[4], sums[2] = quarter[2], sums[3] = quarter[6];
}

// The gradients of P neighbouring positions of C channels from the taps of kernel lines first to last; `up` is where
// tap (0, 0) of the first position reads. Each is the sum of a vector. Calls body(position, channel, gradient).
template <int P, int C, typename Body>
INLINE void image_gradients(const float *up, Steps out, const float *filter, int64_t first, int64_t last,
                            const ConvShape &s, const Body &body) {
    vec sum[C][4] = {};
    static_assert(P <= 4, "sums are added in fours");
    const int64_t columns = s.columns;
    for (int64_t i = first; i < last; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const float *above = up - i * out.line - j * out.position;
            const float *tap = filter + (i * s.kernel + j) * s.channels * columns;
            for (int64_t v = 0; v < columns; v += lanes) {
                vec value[P];
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) value[p] = load(above + p * out.position + v);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) {
                    const vec weight = load(tap + c * columns + v);
#pragma GCC unroll 8
                    for (int p = 0; p < P; ++p) sum[c][p] += weight * value[p];
                }
            }
        }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
        float total[4];
        sums_of_lanes(sum[c], total);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) body(p, c, total[p]);
    }
}

struct ConvTile {
    const ConvShape &s;
    const int64_t border = s.kernel - 1, across = s.across(), columns = s.columns;
    Lines at = {};
    std::vector<float> image, responses, gradients;  // (pose, image, line, position, channel or column)

    ConvTile(const ConvShape &s) : s(s) {}

    // Positions of a tile: so many that sums are rarely loaded and stored, so few that one pose fits into the cache.
    static int64_t positions(const ConvShape &s) {
        return std::max<int64_t>(32, 16384 / (s.poses * s.columns));
    }
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
    float *read(int64_t h, int64_t m) { return &image[(h * at.images + m) * in_lines() * in_steps().line]; }
    int64_t out_pose() const { return at.images * at.lines * out_steps().line; }
    int64_t out(int64_t h, int64_t m, int64_t y = 0) const {
        return h * out_pose() + (m * at.lines + y) * out_steps().line + border * columns;
    }

    // Copies what the lines read, x (image, line, position, channel, pose), with zeros as its padding.
    void take(const float *x, Lines lines) {
        at = lines;
        const int64_t poses = s.poses, pose = at.images * in_lines() * in_steps().line;
        image.assign(poses * pose, 0);
        const int64_t left = std::min(s.padding, across + border);
        const int64_t right = std::min(s.padding + s.width, across + border);
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding;
                if (y < 0 || y >= s.height) continue;
                const float *from = x + ((at.image + m) * s.height + y) * s.width * s.channels * poses;
                float *to = read(0, m) + i * in_steps().line + left * s.channels;
                for (int64_t n = 0; n < (right - left) * s.channels; ++n)
                    for (int64_t h = 0; h < poses; ++h) to[h * pose + n] = from[n * poses + h];
            }
        responses.resize(poses * out_pose());
    }

    // filters (pose, tap, channel, column), bias (column)
    void convolve(const float *filters, const float *bias) {
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t m = 0; m < at.images; ++m)
                for (int64_t y = 0; y < at.lines; ++y)
                    in_parts<most_vectors>(columns / lanes, [&](auto vectors, int64_t v) {
                        in_parts<most_positions>(across, [&](auto number, int64_t p) {
                            const float *from = read(h, m) + y * in_steps().line + p * s.channels;
                            convolve_positions<number.value, vectors.value>(
                                from, in_steps(), filters + h * s.filter() + v * lanes, bias + v * lanes, s,
                                &responses[out(h, m, y) + p * columns + v * lanes]);
                        });
                    });
    }

    void clear_gradients() { gradients.assign(s.poses * out_pose(), 0); }

    // Adds those of the filters, in their order.
    void add_filter_gradients(float *filters) {
        for (int64_t h = 0; h < s.poses; ++h)
            for (int64_t tap = 0; tap < s.taps(); ++tap)
                in_parts<most_channels>(s.channels, [&](auto some, int64_t c) {
                    in_parts<most_vectors>(columns / lanes, [&](auto vectors, int64_t v) {
                        const int64_t offset = tap / s.kernel * in_steps().line + tap % s.kernel * s.channels + c;
                        float *sums = filters + h * s.filter() + (tap * s.channels + c) * columns + v * lanes;
                        for (int64_t m = 0; m < at.images; ++m)
                            add_tap_gradients<some.value, vectors.value>(read(h, m) + offset, in_steps(),
                                                                         &gradients[out(h, m) + v * lanes], out_steps(),
                                                                         at.lines, across, sums, columns);
                    });
                });
    }

    // Writes those of x; to lines that earlier tiles of the image have written to, it adds them.
    void write_image_gradients(const float *filters, float *dx) {
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t i = 0; i < in_lines(); ++i) {
                const int64_t y = at.first + i - s.padding;
                if (y < 0 || y >= s.height) continue;
                const bool adds = at.first > 0 && i < border;
                float *line = dx + ((at.image + m) * s.height + y) * s.width * s.channels * s.poses;
                for (int64_t h = 0; h < s.poses; ++h) write_line(filters, h, m, i, adds, line);
            }
    }

    void write_line(const float *filters, int64_t h, int64_t m, int64_t i, bool adds, float *line) {
        const int64_t first = std::max<int64_t>(0, i - at.lines + 1), last = std::min(s.kernel, i + 1);
        in_parts<most_channels>(s.channels, [&](auto some, int64_t c) {
            const float *filter = filters + h * s.filter() + c * columns;
            in_parts<most_positions>(s.width, [&](auto number, int64_t p) {
                const float *up = gradients.data() + out(h, m) + i * out_steps().line + (p + s.padding) * columns;
                float *to = line + (p * s.channels + c) * s.poses + h;
                image_gradients<number.value, some.value>(up, out_steps(), filter, first, last, s,
                                                          [&](int64_t position, int64_t channel, float value) {
                    float &gradient = to[(position * s.channels + channel) * s.poses];
                    gradient = adds ? gradient + value : value;
                });
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
