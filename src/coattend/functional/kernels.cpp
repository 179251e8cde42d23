// Co-attention in one pass over a map, forward and backward; the mask is recomputed, never stored.
//
// A plane belongs to one image and one channel: `slices` times `order` rows of `pixels` numbers, row (t, g) beginning
// rows[t * order + g] after the plane. Each slice is attended with its own matrix (source pose, target pose), then the
// slices are summed. Plain co-attention has one slice.
//
// No torch header is included, so that building takes seconds. OpenMP is the one torch has loaded: with a second
// runtime two pools of threads would wait for the same cores.

#include <algorithm>
#include <cstdint>
#include <cstring>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

constexpr int largest_order = 64;

template <typename T> struct Lanes;
template <> struct Lanes<float> {
    typedef float vec __attribute__((vector_size(32)));
    typedef int32_t word;
    typedef word bits __attribute__((vector_size(32)));
    static constexpr int count = 8, mantissa = 23, bias = 127, taylor = 6;
    static constexpr float round = 12582912.0f, lowest = -87.0f, log2_e = 1.44269504f;
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
};
template <> struct Lanes<double> {
    typedef double vec __attribute__((vector_size(32)));
    typedef int64_t word;
    typedef word bits __attribute__((vector_size(32)));
    static constexpr int count = 4, mantissa = 52, bias = 1023, taylor = 13;
    static constexpr double round = 6755399441055744.0, lowest = -708.0, log2_e = 1.4426950408889634;
    static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
};

constexpr double factorial(int k) { return k < 2 ? 1.0 : k * factorial(k - 1); }

// exp(t) for t <= 0: exactly 1 at 0, relative error below 3e-7 in float and 1e-15 in double.
// Adding `round` leaves the nearest whole number of halvings in the lowest bits.
template <typename T, typename vec = typename Lanes<T>::vec> inline vec exponential(vec t) {
    using L = Lanes<T>;
    using bits = typename L::bits;
    t = t < L::lowest ? vec{} + L::lowest : t;
    const vec rounded = t * L::log2_e + L::round;
    const vec halvings = rounded - L::round;
    const vec r = (t - halvings * L::ln2_high) - halvings * L::ln2_low;
    vec p = vec{} + T(1 / factorial(L::taylor));
#pragma GCC unroll 16
    for (int k = L::taylor - 1; k >= 0; --k) p = p * r + T(1 / factorial(k));
    return p * (vec)(((bits)rounded << L::mantissa) + (typename L::word(L::bias) << L::mantissa));
}

// A few vectors per pose, held in registers or the first cache. N is the order where the compiler knows it, else 0.
template <typename T, int N> struct Tile {
    using vec = typename Lanes<T>::vec;
    static constexpr int most = N ? N : largest_order, depth = N ? 1 : 2, width = depth * Lanes<T>::count;

    vec x[most * depth], logit[most * depth], mask[most * depth], up[most * depth], down[most * depth], top[depth];
    T a[most * most];  // target pose first, divided by the order

    static void load(vec *to, const T *from, int pixels) {
        if (pixels == width) {  // a constant size: one instruction instead of a call
            std::memcpy((void *)to, from, width * sizeof(T));
        } else {
            std::memset((void *)to, 0, width * sizeof(T));
            std::memcpy((void *)to, from, pixels * sizeof(T));
        }
    }

    static void store(T *to, const vec *from, int pixels) {
        if (pixels == width)
            std::memcpy(to, (const void *)from, width * sizeof(T));
        else
            std::memcpy(to, (const void *)from, pixels * sizeof(T));
    }

    inline void take_matrix(const T *matrix, int n) {
        for (int g = 0; g < n; ++g)
            for (int h = 0; h < n; ++h) a[g * n + h] = matrix[h * n + g] / n;
    }

    __attribute__((always_inline)) inline void find_mask(int n) {
#pragma GCC unroll 8
        for (int g = 0; g < n; ++g) {
            vec sum[depth] = {};
#pragma GCC unroll 8
            for (int h = 0; h < n; ++h)
                for (int v = 0; v < depth; ++v) sum[v] += a[g * n + h] * x[h * depth + v];
            for (int v = 0; v < depth; ++v) {
                logit[g * depth + v] = sum[v];
                top[v] = g == 0 ? sum[v] : (sum[v] > top[v] ? sum[v] : top[v]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < n * depth; ++i) mask[i] = exponential<T>(logit[i] - top[i % depth]);
    }

    // From up = dy: down = dx, and the products x[h] * d logit[g] are added to da[h * n + g].
    // d logit = mask * x * dy, less the sum of these, which the poses at the maximum share evenly.
    __attribute__((always_inline)) inline void find_gradients(vec *da, int n) {
        vec total[depth] = {}, ties[depth] = {};
#pragma GCC unroll 8
        for (int i = 0; i < n * depth; ++i) {
            down[i] = mask[i] * up[i];
            mask[i] = down[i] * x[i];
            total[i % depth] += mask[i];
            ties[i % depth] += logit[i] == top[i % depth] ? vec{} + 1 : vec{};
        }
        for (int v = 0; v < depth; ++v) total[v] /= ties[v];
#pragma GCC unroll 8
        for (int i = 0; i < n * depth; ++i)
            logit[i] = mask[i] - (logit[i] == top[i % depth] ? total[i % depth] : vec{});
#pragma GCC unroll 8
        for (int h = 0; h < n; ++h) {
#pragma GCC unroll 8
            for (int g = 0; g < n; ++g) {
                vec product = {};
                for (int v = 0; v < depth; ++v) {
                    down[h * depth + v] += a[g * n + h] * logit[g * depth + v];
                    product += x[h * depth + v] * logit[g * depth + v];
                }
                da[h * n + g] += product;
            }
        }
    }
};

// Fresh memory comes in pages of 4 KB, each of which stops the program when it is first written: for a map of many
// megabytes that takes as long as attending to it. Large pages make it a five-hundredth as many stops.
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

template <typename T, int N> void forward(const T *x, const T *matrices, T *y, const Shape &s) {
    using Tile = Tile<T, N>;
    const int n = N ? N : s.order;
    ask_for_large_pages(y, s.batch * s.channels * n * s.pixels * sizeof(T));
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t plane = 0; plane < s.batch * s.channels; ++plane) {
        const int64_t channel = plane % s.channels;
        const T *from = x + plane / s.channels * s.batch_step + channel * s.channel_step;
        T *to = y + plane * n * s.pixels;
        Tile tile;
        for (int t = 0; t < s.slices; ++t) {
            tile.take_matrix(matrices + (channel * s.slices + t) * n * n, n);
            for (int64_t p = 0; p < s.pixels; p += Tile::width) {
                const int pixels = std::min<int64_t>(Tile::width, s.pixels - p);
#pragma GCC unroll 8
                for (int g = 0; g < n; ++g)
                    Tile::load(tile.x + g * Tile::depth, from + s.rows[t * n + g] + p, pixels);
                tile.find_mask(n);
                if (t == 0) {
#pragma GCC unroll 8
                    for (int i = 0; i < n * Tile::depth; ++i) tile.down[i] = tile.mask[i] * tile.x[i];
                } else {
#pragma GCC unroll 8
                    for (int g = 0; g < n; ++g)
                        Tile::load(tile.down + g * Tile::depth, to + g * s.pixels + p, pixels);
#pragma GCC unroll 8
                    for (int i = 0; i < n * Tile::depth; ++i) tile.down[i] += tile.mask[i] * tile.x[i];
                }
#pragma GCC unroll 8
                for (int g = 0; g < n; ++g)
                    Tile::store(to + g * s.pixels + p, tile.down + g * Tile::depth, pixels);
            }
        }
    }
}

// dmatrices (batch, channels, slices, order, order) is left for the caller to sum over the batch: the result does not
// depend on the number of threads.
template <typename T, int N>
void backward(const T *dy, const T *x, const T *matrices, T *dx, T *dmatrices, const Shape &s) {
    using Tile = Tile<T, N>;
    using vec = typename Tile::vec;
    const int n = N ? N : s.order;
    ask_for_large_pages(dx, s.batch * s.batch_step * sizeof(T));
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t plane = 0; plane < s.batch * s.channels; ++plane) {
        const int64_t channel = plane % s.channels;
        const int64_t start = plane / s.channels * s.batch_step + channel * s.channel_step;
        const T *from = dy + plane * n * s.pixels;
        Tile tile;
        vec da[Tile::most * Tile::most];
        for (int t = 0; t < s.slices; ++t) {
            tile.take_matrix(matrices + (channel * s.slices + t) * n * n, n);
            std::memset((void *)da, 0, n * n * sizeof(vec));
            for (int64_t p = 0; p < s.pixels; p += Tile::width) {
                const int pixels = std::min<int64_t>(Tile::width, s.pixels - p);
#pragma GCC unroll 8
                for (int g = 0; g < n; ++g) {
                    Tile::load(tile.x + g * Tile::depth, x + start + s.rows[t * n + g] + p, pixels);
                    Tile::load(tile.up + g * Tile::depth, from + g * s.pixels + p, pixels);
                }
                tile.find_mask(n);
                tile.find_gradients(da, n);
#pragma GCC unroll 8
                for (int g = 0; g < n; ++g)
                    Tile::store(dx + start + s.rows[t * n + g] + p, tile.down + g * Tile::depth, pixels);
            }
            T *to = dmatrices + (plane * s.slices + t) * n * n;
            for (int i = 0; i < n * n; ++i) {
                T sum = 0;
                for (int k = 0; k < Lanes<T>::count; ++k) sum += da[i][k];
                to[i] = sum / n;
            }
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

}  // extern "C"
