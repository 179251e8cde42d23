// Co-attention of a few positions in all poses, forward and backward; the mask is recomputed, never stored.
//
// No torch header is included, so that building takes seconds. OpenMP is the one torch has loaded: with a second
// runtime two pools of threads would wait for the same cores.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

#define INLINE __attribute__((always_inline)) inline

// The length of vectors. A file that gains from longer ones defines it before: where these are computed in halves, as
// many numbers still need half as many instructions, so that the processor looks twice as far ahead.
#ifndef VECTOR_BYTES
#define VECTOR_BYTES 32
#endif
#if VECTOR_BYTES == 64
#define NATIVE(operation) _mm512_##operation
#elif defined(__AVX__)
#define NATIVE(operation) _mm256_##operation
#endif

constexpr int largest_order = 64;
constexpr int ordinary_logit = 1024;  // the largest one, see Tile

template <typename T> struct Lanes;
template <> struct Lanes<float> {
    typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
    typedef int32_t bits __attribute__((vector_size(VECTOR_BYTES)));
    static constexpr int count = VECTOR_BYTES / 4, mantissa = 23, bias = 127, degree = 5;
    static constexpr float round = 12582912.0f, lowest = -87.0f, log2_e = 1.44269504f;
    static constexpr float ln2_high = 0.693147181f, ln2_low = 0;
    // The smallest maximum of the relative error, 9e-8, among the polynomials that are 1 at 0.
    static constexpr float series[] = {1, 0.999999707f, 0.4999914919f, 0.1666763659f, 0.0418979756f, 0.008290305692f};
};
template <> struct Lanes<double> {
    typedef double vec __attribute__((vector_size(VECTOR_BYTES)));
    typedef int64_t bits __attribute__((vector_size(VECTOR_BYTES)));
    static constexpr int count = VECTOR_BYTES / 8, mantissa = 52, bias = 1023, degree = 13;
    static constexpr double round = 6755399441055744.0, lowest = -708.0, log2_e = 1.4426950408889634;
    static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    // clang-format off
    static constexpr double series[] = {1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320,
                                        1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};
    // clang-format on
};

// The second one if either is NaN.
INLINE Lanes<float>::vec larger(Lanes<float>::vec a, Lanes<float>::vec b) {
#ifdef NATIVE
    return NATIVE(max_ps)(a, b);  // a comparison and a choice otherwise
#else
    return a > b ? a : b;
#endif
}
INLINE Lanes<double>::vec larger(Lanes<double>::vec a, Lanes<double>::vec b) {
#ifdef NATIVE
    return NATIVE(max_pd)(a, b);
#else
    return a > b ? a : b;
#endif
}

// exp(t) for t <= 0: exactly 1 at 0, relative error below 3e-7 in float and 1e-15 in double.
// Adding `round` leaves the nearest whole number of halvings, with the exponent's bias, in the lowest bits.
template <typename T, typename vec = typename Lanes<T>::vec> inline vec exponential(vec t) {
    using L = Lanes<T>;
    constexpr T round = L::round + L::bias;
    const vec lowest = vec{} + L::lowest;
    t = larger(lowest, t);  // in this order a NaN stays one
    const vec rounded = t * L::log2_e + round, halvings = rounded - round;
    vec r = t - halvings * L::ln2_high;
    if constexpr (L::ln2_low != 0) r -= halvings * L::ln2_low;
    // In pairs of terms, which do not wait for one another.
    const vec square = r * r;
    vec p = r * L::series[L::degree] + L::series[L::degree - 1];
#pragma GCC unroll 16
    for (int k = L::degree - 3; k >= 0; k -= 2) p = p * square + (r * L::series[k + 1] + L::series[k]);
    return p * (vec)((typename L::bits)rounded << L::mantissa);
}

// 2^t in float for t <= 0: exactly 1 at 0, relative error below 3e-7.
INLINE Lanes<float>::vec power_of_two(Lanes<float>::vec t) {
    using L = Lanes<float>;
    using vec = L::vec;
    constexpr double ln2 = 0.69314718055994531, square = ln2 * ln2;
#if defined(__AVX512VL__) && defined(__AVX512DQ__)
    // The fraction and the scaling are an instruction each, which also know the smallest numbers, infinities and NaN.
    const vec whole = NATIVE(roundscale_ps)(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec r = NATIVE(reduce_ps)(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    constexpr float round = L::round + L::bias;
    t = larger(vec{} - 126.f, t);  // in this order a NaN stays one
    const vec rounded = t + round, r = t - (rounded - round);
#endif
    const vec r2 = r * r;
    vec p = r * float(L::series[5] * square * square * ln2) + float(L::series[4] * square * square);
    p = p * r2 + (r * float(L::series[3] * square * ln2) + float(L::series[2] * square));
    p = p * r2 + (r * float(L::series[1] * ln2) + 1);
#if defined(__AVX512VL__) && defined(__AVX512DQ__)
    return NATIVE(scalef_ps)(p, whole);
#else
    return p * (vec)((L::bits)rounded << L::mantissa);
#endif
}

// Whether all bits are set.
template <typename Bits> INLINE bool all(Bits bits) {
    const auto words = (Lanes<double>::bits)bits;
#if VECTOR_BYTES == 64
    return _mm512_cmpeq_epi64_mask((__m512i)words, _mm512_set1_epi64(-1)) == 0xff;
#else
    return (words[0] & words[1] & words[2] & words[3]) == -1;
#endif
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

    INLINE bool was_ordinary() const { return all(ordinary); }

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
                for (int v = 0; v < depth; ++v) mask[h * depth + v] += a.entries[g * n + h] * logit[g * depth + v];
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

}  // namespace
