// The convolutions of a few output lines.
//
// Each input pose is convolved on its own with filters for all columns; a convolution that sums over the poses has one
// pose, with more channels. A tile holds what some lines read and the responses to it pose by pose, so that the numbers
// of one pose stay in the nearest cache. Vectors are of columns; sums of several positions are in registers at once.
//
// What is multiplied has the type of the map, T; the pairs of bfloat16 that a lane holds (products.h) are of channels.

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
        assign(filters[lane * terms<T> + c % terms<T>], bank[i]);
    });
    return filters;
}

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
    vec sum[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) load_all<V, half>(bias, sum[p]);
    for (int64_t i = 0; i < s.kernel; ++i)
        for (int64_t j = 0; j < s.kernel; ++j) {
            const T *from = x + i * in.line + j * in.position;
            for (int64_t c = 0; c < in.position; c += terms<T>, filter += s.columns * terms<T>) {
                vec weight[V];
                load_all<V, half>(filter, weight);
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const vec value = repeated<1>(from + p * in.position + c);
#pragma GCC unroll 8
                    for (int v = 0; v < V; ++v) sum[p][v] = add_products<T>(sum[p][v], value, weight[v]);
                }
            }
        }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store_all<V, half>(y + p * s.columns, sum[p]);
}

// The numbers of memory as integers: what is reordered may look like any number.
template <typename T> struct Integers;
template <> struct Integers<float> {
    typedef uint32_t vec __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct Integers<bfloat16> {
    typedef uint16_t vec __attribute__((vector_size(VECTOR_BYTES)));
};

// The numbers (rows, columns) of a vector in the order (columns, rows).
template <int columns, typename V, int... i> INLINE V transposed(V v, std::integer_sequence<int, i...>) {
    constexpr int rows = sizeof...(i) / columns;
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(v, v, (i % rows * columns + i / rows)...);
#else
    return __builtin_shuffle(v, (V){(i % rows * columns + i / rows)...});
#endif
}
template <typename T, int columns> INLINE typename Integers<T>::vec transposed(typename Integers<T>::vec v) {
    return transposed<columns>(v, std::make_integer_sequence<int, sizeof(v) / sizeof(T)>());
}

template <typename T> struct ConvTile {
    const ConvShape &s;
    const int64_t border = s.kernel - 1, across = s.across(), columns = s.columns, slots = s.slots<T>();
    Lines at = {};
    std::vector<T> image;          // (pose, image, line, position, channel)
    std::vector<float> responses;  // (pose, image, line, position, column)
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
        const int64_t left = s.padding, right = s.padding + s.width;
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
    // (number, pose) -> (pose, number): a vector has `some` numbers of each pose.
    template <int poses> static void split(const T *from, int64_t numbers, T *to, int64_t pose) {
        constexpr int some = sizeof(vec) / sizeof(T) / poses;
        int64_t n = 0;
        for (; n + some <= numbers; n += some) {
            typename Integers<T>::vec v;
            std::memcpy(&v, from + n * poses, sizeof v);
            v = transposed<T, poses>(v);
            for (int h = 0; h < poses; ++h)
                std::memcpy(to + h * pose + n, (const char *)&v + h * some * sizeof(T), some * sizeof(T));
        }
        for (; n < numbers; ++n)
            for (int h = 0; h < poses; ++h) to[h * pose + n] = from[n * poses + h];
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
