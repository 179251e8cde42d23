// Co-attention in one pass over a map, forward and backward; the mask is recomputed, never stored. The maximum over
// 2x2 windows follows at the end.
//
// A plane belongs to one image and one channel: `slices` times `order` rows of `pixels` numbers, row (t, g) beginning
// rows[t * order + g] after the plane. Each slice is attended to with its own matrix (source pose, target pose), then the
// slices are summed. Plain co-attention has one slice.
//
// No torch header is included, so that building takes seconds. OpenMP is the one torch has loaded: with a second
// runtime two pools of threads would wait for the same cores.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

#define INLINE __attribute__((always_inline)) inline

constexpr int largest_order = 64;
constexpr int ordinary_logit = 1024;  // the largest one, see Tile

template <typename T> struct Lanes;
template <> struct Lanes<float> {
    typedef float vec __attribute__((vector_size(32)));
    typedef int32_t bits __attribute__((vector_size(32)));
    static constexpr int count = 8, mantissa = 23, bias = 127, degree = 5;
    static constexpr float round = 12582912.0f, lowest = -87.0f, log2_e = 1.44269504f;
    static constexpr float ln2_high = 0.693147181f, ln2_low = 0;
    // The smallest maximum of the relative error, 9e-8, among the polynomials that are 1 at 0.
    static constexpr float series[] = {1, 0.999999707f, 0.4999914919f, 0.1666763659f, 0.0418979756f, 0.008290305692f};
};
template <> struct Lanes<double> {
    typedef double vec __attribute__((vector_size(32)));
    typedef int64_t bits __attribute__((vector_size(32)));
    static constexpr int count = 4, mantissa = 52, bias = 1023, degree = 13;
    static constexpr double round = 6755399441055744.0, lowest = -708.0, log2_e = 1.4426950408889634;
    static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    static constexpr double series[] = {1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320,
                                        1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};
};

// exp(t) for t <= 0: exactly 1 at 0, relative error below 3e-7 in float and 1e-15 in double.
// Adding `round` leaves the nearest whole number of halvings, with the exponent's bias, in the lowest bits.
template <typename T, typename vec = typename Lanes<T>::vec> inline vec exponential(vec t) {
    using L = Lanes<T>;
    constexpr T round = L::round + L::bias;
    const vec lowest = vec{} + L::lowest;
    t = lowest > t ? lowest : t;  // in this order a NaN stays one
    const vec rounded = t * L::log2_e + round, halvings = rounded - round;
    vec r = t - halvings * L::ln2_high;
    if constexpr (L::ln2_low != 0) r -= halvings * L::ln2_low;
    vec p = vec{} + L::series[L::degree];
#pragma GCC unroll 16
    for (int k = L::degree - 1; k >= 0; --k) p = p * r + L::series[k];
    return p * (vec)((typename L::bits)rounded << L::mantissa);
}

// An attention matrix, target pose first, divided by the order; spread over the lanes where the order is known.
template <typename T, int N> struct Matrix {
    static constexpr int most = N ? N : largest_order;
    using entry = typename std::conditional<N != 0, typename Lanes<T>::vec, T>::type;
    entry entries[most * most];

    // Whether all entries are finite.
    inline bool take(const T *matrix, int n) {
        const T share = T(1) / n;
        T nothing = 0;
        for (int g = 0; g < n; ++g)
            for (int h = 0; h < n; ++h) {
                entries[g * n + h] = entry{} + matrix[h * n + g] * share;
                nothing += matrix[h * n + g] * 0;
            }
        return nothing == 0;
    }
};

// Some positions in all poses, one vector or two of each. N is the order where the compiler knows it, else 0.
// No address of a member is ever taken, so that they stay in registers.
//
// `careful` follows the formula to the letter for infinities, NaN and large logits, where one pose has nearly all of
// the mask. There d logit is 0 or as small as the rounding error of a product; if the compiler fused that product with
// the difference, the error would remain and be multiplied by a large x.
template <typename T, int N, bool careful = false> struct Tile {
    using vec = typename Lanes<T>::vec;
    using bits = typename Lanes<T>::bits;
    static constexpr int most = N ? N : largest_order, depth = N ? 1 : 2, width = depth * Lanes<T>::count;

    vec x[most * depth], logit[most * depth], mask[most * depth], top[depth];
    bits ordinary = ~bits{};  // lanes in which all logits so far are ordinary

    INLINE static vec at(const T *from) {
        vec values;
        std::memcpy(&values, from, sizeof values);
        return values;
    }

    INLINE static void put(T *to, vec values) { std::memcpy(to, &values, sizeof values); }

    INLINE void find_mask(const T *const *from, int64_t p, const Matrix<T, N> &a, int n) {
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g)
            for (int v = 0; v < depth; ++v) x[g * depth + v] = at(from[g] + p + v * Lanes<T>::count);
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g) {
            vec sum[depth];
            for (int v = 0; v < depth; ++v) sum[v] = a.entries[g * n] * x[v];
#pragma GCC unroll 8
            for (int h = 1; h < n; ++h)
                for (int v = 0; v < depth; ++v) sum[v] += a.entries[g * n + h] * x[h * depth + v];
            for (int v = 0; v < depth; ++v) {
                logit[g * depth + v] = sum[v];
                bits higher = sum[v] > top[v];
                if constexpr (careful) higher |= sum[v] != sum[v];  // a NaN is the maximum
                top[v] = g == 0 ? sum[v] : (higher ? sum[v] : top[v]);
            }
        }
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g)
            for (int v = 0; v < depth; ++v) {
                const vec below = logit[g * depth + v] - top[v];
                mask[g * depth + v] = exponential<T>(below);
                if constexpr (careful)
                    mask[g * depth + v] = below < vec{} + Lanes<T>::lowest ? vec{} : mask[g * depth + v];
            }
        // If the matrices are finite and the input is not, all logits are infinite or NaN, and so is their maximum.
        for (int v = 0; v < depth; ++v) ordinary &= top[v] * top[v] <= vec{} + T(ordinary_logit) * ordinary_logit;
    }

    INLINE bool was_ordinary() const {
        typedef int64_t words __attribute__((vector_size(32)));
        const words w = (words)ordinary;
        return (w[0] & w[1] & w[2] & w[3]) == -1;
    }

    // y = mask * x, or y += mask * x for every slice but the first.
    INLINE void attend(const T *const *from, T *const *to, int64_t p, const Matrix<T, N> &a, int n, bool adds) {
        find_mask(from, p, a, n);
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g)
            for (int v = 0; v < depth; ++v) {
                const int i = g * depth + v;
                T *y = to[g] + p + v * Lanes<T>::count;
                put(y, adds ? at(y) + mask[i] * x[i] : mask[i] * x[i]);
            }
    }

    // dx from dy, and the products x[h] * d logit[g] are added to da[h * n + g].
    // d logit = mask * x * dy, minus the sum of these, which the poses at the maximum share evenly.
    INLINE void find_gradients(const T *const *from, const T *const *up, T *const *down, int64_t p,
                               const Matrix<T, N> &a, vec *da, int n) {
        find_mask(from, p, a, n);
        vec total[depth] = {}, ties[depth] = {}, nothing[depth];
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g)
            for (int v = 0; v < depth; ++v) {
                const int i = g * depth + v;
                mask[i] *= at(up[g] + p + v * Lanes<T>::count);
                total[v] += through_mask(i);
                ties[v] += logit[i] == top[v] ? vec{} + 1 : vec{};
            }
        for (int v = 0; v < depth; ++v) {
            total[v] /= ties[v];
            nothing[v] = total[v] - total[v];  // NaN if the total is not finite, as 0 times the total
        }
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g)
            for (int v = 0; v < depth; ++v) {
                const int i = g * depth + v;
                logit[i] = through_mask(i) - (logit[i] == top[v] ? total[v] : nothing[v]);
            }
#pragma GCC unroll 8
        for (int h = 0; h < n; ++h) {
#pragma GCC unroll 8
            for (int g = 0; g < n; ++g) {
                vec product = x[h * depth] * logit[g * depth];
                for (int v = 1; v < depth; ++v) product += x[h * depth + v] * logit[g * depth + v];
                da[h * n + g] += product;
                for (int v = 0; v < depth; ++v)
                    mask[h * depth + v] += a.entries[g * n + h] * logit[g * depth + v];
            }
        }
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g)
            for (int v = 0; v < depth; ++v) put(down[g] + p + v * Lanes<T>::count, mask[g * depth + v]);
    }

    INLINE vec through_mask(int i) const {
        vec product = mask[i] * x[i];
        if constexpr (careful) asm("" : "+m"(product));  // rounded, so that it is not fused with what follows
        return product;
    }
};

// The last positions, too few for a tile, are in a tile of their own, padded with zeros.
template <typename T, int N> struct Edge {
    using tile = Tile<T, N>;
    T values[tile::most * tile::width];
    T *row[tile::most];

    void clear(int n) {
        std::memset(values, 0, n * tile::width * sizeof(T));
        for (int g = 0; g < n; ++g) row[g] = values + g * tile::width;
    }
    template <typename Rows> void take(const Rows &from, int64_t p, int pixels, int n) {
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < pixels; ++i) row[g][i] = from[g][p + i];
    }
    void give(T *const *to, int64_t p, int pixels, int n) const {
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < pixels; ++i) to[g][p + i] = row[g][i];
    }
};

// The working memory of a thread: up to 170 KB where the order is not known, which may exceed its stack.
template <typename T, int N> struct Scratch {
    Matrix<T, N> a;
    Edge<T, N> in, above, below;
    typename Lanes<T>::vec da[Matrix<T, N>::most * Matrix<T, N>::most];
};
template <typename T, int N> struct Room {
    Scratch<T, N> scratch;
    Scratch<T, N> &get() { return scratch; }
};
template <typename T> struct Room<T, 0> {
    std::unique_ptr<Scratch<T, 0>> scratch{new Scratch<T, 0>};
    Scratch<T, 0> &get() { return *scratch; }
};

// Fresh memory comes in pages of 4 KB, each of which interrupts the program when it is first written: for a map of many
// megabytes that takes as long as attending to it. Large pages reduce the interruptions to a five-hundredth.
void ask_for_large_pages(void *start, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t page = uintptr_t(1) << 21;
    const uintptr_t first = (uintptr_t(start) + page - 1) / page * page;
    const uintptr_t last = (uintptr_t(start) + bytes) / page * page;
    if (first < last) madvise((void *)first, last - first, MADV_HUGEPAGE);
#endif
}

struct Shape {
    int64_t batch, channels, slices, order, pixels;
    int64_t batch_step, channel_step;  // between planes of the input
    const int64_t *rows;
    int64_t threads;
};

struct PoolShape {
    int64_t planes, height, width;  // height and width are even
    int64_t threads;
};

// Attends to one image and channel. Returns whether logits and matrices were ordinary; if not, repeat it carefully.
template <typename T, int N, bool careful>
INLINE bool attend_plane(const T *x, const T *matrices, T *y, const Shape &s, int64_t plane, Scratch<T, N> &scratch) {
    using Tile = Tile<T, N, careful>;
    const int n = N ? N : s.order;
    const int64_t whole = s.pixels / Tile::width * Tile::width, channel = plane % s.channels;
    const int rest = s.pixels - whole;
    const T *start = x + plane / s.channels * s.batch_step + channel * s.channel_step;
    const T *from[Tile::most];
    T *to[Tile::most];
    Matrix<T, N> &a = scratch.a;
    Tile tile;
    bool finite = true;
    for (int g = 0; g < n; ++g) to[g] = y + (plane * n + g) * s.pixels;
    for (int t = 0; t < s.slices; ++t) {
        finite &= a.take(matrices + (channel * s.slices + t) * n * n, n);
        for (int g = 0; g < n; ++g) from[g] = start + s.rows[t * n + g];
        if (t == 0)
            for (int64_t p = 0; p < whole; p += Tile::width) tile.attend(from, to, p, a, n, false);
        else
            for (int64_t p = 0; p < whole; p += Tile::width) tile.attend(from, to, p, a, n, true);
        if (rest) {
            Edge<T, N> &in = scratch.in, &out = scratch.below;
            in.clear(n), out.clear(n);
            in.take(from, whole, rest, n);
            if (t > 0) out.take(to, whole, rest, n);
            tile.attend(in.row, out.row, 0, a, n, t > 0);
            out.give(to, whole, rest, n);
        }
    }
    return finite && tile.was_ordinary();
}

template <typename T>
__attribute__((noinline)) void attend_carefully(const T *x, const T *matrices, T *y, const Shape &s, int64_t plane) {
    Room<T, 0> room;
    attend_plane<T, 0, true>(x, matrices, y, s, plane, room.get());
}

template <typename T, int N> void forward(const T *x, const T *matrices, T *y, const Shape &s) {
    ask_for_large_pages(y, s.batch * s.channels * s.order * s.pixels * sizeof(T));
#pragma omp parallel num_threads(s.threads)
    {
        Room<T, N> room;
#pragma omp for schedule(static)
        for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
            if (!attend_plane<T, N, false>(x, matrices, y, s, plane, room.get()))
                attend_carefully(x, matrices, y, s, plane);
    }
}

// As attend_plane. The caller sums dmatrices (batch, channels, slices, order, order) over the batch, so that the result
// does not depend on the number of threads.
template <typename T, int N, bool careful>
INLINE bool find_plane_gradients(const T *dy, const T *x, const T *matrices, T *dx, T *dmatrices, const Shape &s,
                                 int64_t plane, Scratch<T, N> &scratch) {
    using Tile = Tile<T, N, careful>;
    using vec = typename Tile::vec;
    const int n = N ? N : s.order;
    const int64_t whole = s.pixels / Tile::width * Tile::width, channel = plane % s.channels;
    const int rest = s.pixels - whole;
    const int64_t start = plane / s.channels * s.batch_step + channel * s.channel_step;
    const T *from[Tile::most], *up[Tile::most];
    T *down[Tile::most];
    Matrix<T, N> &a = scratch.a;
    Tile tile;
    vec *da = scratch.da;
    bool finite = true;
    for (int g = 0; g < n; ++g) up[g] = dy + (plane * n + g) * s.pixels;
    for (int t = 0; t < s.slices; ++t) {
        finite &= a.take(matrices + (channel * s.slices + t) * n * n, n);
        std::memset((void *)da, 0, n * n * sizeof(vec));
        for (int g = 0; g < n; ++g) {
            from[g] = x + start + s.rows[t * n + g];
            down[g] = dx + start + s.rows[t * n + g];
        }
        for (int64_t p = 0; p < whole; p += Tile::width) tile.find_gradients(from, up, down, p, a, da, n);
        if (rest) {
            Edge<T, N> &in = scratch.in, &above = scratch.above, &below = scratch.below;
            in.clear(n), above.clear(n), below.clear(n);
            in.take(from, whole, rest, n);
            above.take(up, whole, rest, n);
            tile.find_gradients(in.row, above.row, below.row, 0, a, da, n);
            below.give(down, whole, rest, n);
        }
        T *to = dmatrices + (plane * s.slices + t) * n * n;
        for (int i = 0; i < n * n; ++i) {
            T sum = 0;
            for (int k = 0; k < Lanes<T>::count; ++k) sum += da[i][k];
            to[i] = sum / n;
        }
    }
    return finite && tile.was_ordinary();
}

template <typename T>
__attribute__((noinline)) void find_gradients_carefully(const T *dy, const T *x, const T *matrices, T *dx,
                                                        T *dmatrices, const Shape &s, int64_t plane) {
    Room<T, 0> room;
    find_plane_gradients<T, 0, true>(dy, x, matrices, dx, dmatrices, s, plane, room.get());
}

template <typename T, int N>
void backward(const T *dy, const T *x, const T *matrices, T *dx, T *dmatrices, const Shape &s) {
    ask_for_large_pages(dx, s.batch * s.batch_step * sizeof(T));
#pragma omp parallel num_threads(s.threads)
    {
        Room<T, N> room;
#pragma omp for schedule(static)
        for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
            if (!find_plane_gradients<T, N, false>(dy, x, matrices, dx, dmatrices, s, plane, room.get()))
                find_gradients_carefully(dy, x, matrices, dx, dmatrices, s, plane);
    }
}

// The maximum over 2x2 windows, and its gradient, which equal maxima share evenly. Compilers vectorise these loops.
template <typename T> INLINE T larger(T a, T b) { return a > b || a != a ? a : b; }  // NaN if one of them is

template <typename T> void pool_forward(const T *x, T *y, const PoolShape &s) {
    const int64_t height = s.height / 2, width = s.width / 2;
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t line = 0; line < s.planes * height; ++line) {
        const T *__restrict__ upper = x + (line / height * s.height + line % height * 2) * s.width;
        const T *__restrict__ lower = upper + s.width;
        T *__restrict__ to = y + line * width;
        for (int64_t j = 0; j < width; ++j)
            to[j] = larger(larger(upper[2 * j], upper[2 * j + 1]), larger(lower[2 * j], lower[2 * j + 1]));
    }
}

template <typename T> void pool_backward(const T *dy, const T *x, T *dx, const PoolShape &s) {
    const int64_t height = s.height / 2, width = s.width / 2;
    ask_for_large_pages(dx, s.planes * s.height * s.width * sizeof(T));
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t line = 0; line < s.planes * height; ++line) {
        const int64_t start = (line / height * s.height + line % height * 2) * s.width;
        const T *__restrict__ upper = x + start, *__restrict__ lower = upper + s.width;
        const T *__restrict__ from = dy + line * width;
        T *__restrict__ to_upper = dx + start, *__restrict__ to_lower = to_upper + s.width;
        for (int64_t j = 0; j < width; ++j) {
            const T a = upper[2 * j], b = upper[2 * j + 1], c = lower[2 * j], d = lower[2 * j + 1];
            const T top = larger(larger(a, b), larger(c, d));
            const T share = from[j] / (T(a == top) + T(b == top) + T(c == top) + T(d == top));
            to_upper[2 * j] = a == top ? share : T(0);
            to_upper[2 * j + 1] = b == top ? share : T(0);
            to_lower[2 * j] = c == top ? share : T(0);
            to_lower[2 * j + 1] = d == top ? share : T(0);
        }
    }
}

}  // namespace

extern "C" {

int64_t coattend_largest_order() { return largest_order; }

void coattend_forward_float(const float *x, const float *matrices, float *y, const Shape *s) {
    switch (s->order) {
        case 2: return forward<float, 2>(x, matrices, y, *s);
        case 4: return forward<float, 4>(x, matrices, y, *s);
        case 8: return forward<float, 8>(x, matrices, y, *s);
        default: return forward<float, 0>(x, matrices, y, *s);
    }
}

void coattend_backward_float(const float *dy, const float *x, const float *matrices, float *dx, float *dmatrices,
                             const Shape *s) {
    switch (s->order) {
        case 2: return backward<float, 2>(dy, x, matrices, dx, dmatrices, *s);
        case 4: return backward<float, 4>(dy, x, matrices, dx, dmatrices, *s);
        case 8: return backward<float, 8>(dy, x, matrices, dx, dmatrices, *s);
        default: return backward<float, 0>(dy, x, matrices, dx, dmatrices, *s);
    }
}

void coattend_forward_double(const double *x, const double *matrices, double *y, const Shape *s) {
    forward<double, 0>(x, matrices, y, *s);
}

void coattend_backward_double(const double *dy, const double *x, const double *matrices, double *dx,
                              double *dmatrices, const Shape *s) {
    backward<double, 0>(dy, x, matrices, dx, dmatrices, *s);
}

void coattend_pool_forward_float(const float *x, float *y, const PoolShape *s) { pool_forward(x, y, *s); }
void coattend_pool_forward_double(const double *x, double *y, const PoolShape *s) { pool_forward(x, y, *s); }

void coattend_pool_backward_float(const float *dy, const float *x, float *dx, const PoolShape *s) {
    pool_backward(dy, x, dx, *s);
}

void coattend_pool_backward_double(const double *dy, const double *x, double *dx, const PoolShape *s) {
    pool_backward(dy, x, dx, *s);
}

}  // extern "C"
