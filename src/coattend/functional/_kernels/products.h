// Sums of products of numbers in float or bfloat16.
//
// A lane of a factor has 32 bits: a float, or two numbers in bfloat16, whose products with two others are added up by
// one instruction of AVX-512, elsewhere by several. Sums are float.

#pragma once

#include "wide_vectors.h"

#include "rows.h"

namespace {

template <typename T> constexpr int terms = 4 / sizeof(T);  // numbers in a lane

#ifdef __AVX512F__
constexpr int most_positions = 8, most_channels = 5, most_vectors = 3;  // at most 24 sums, in 32 registers
#else
constexpr int most_positions = 2, most_channels = 2, most_vectors = 5;
#endif

// The last vector of a row may be half a vector.
template <bool half> INLINE vec load_vector(const void *from) {
#ifdef __AVX512F__
    return half ? (vec)_mm512_maskz_loadu_ps(0xff, from) : (vec)_mm512_loadu_ps(from);
#else
    vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
#endif
}
template <bool half> INLINE void store_vector(float *to, vec v) {
#ifdef __AVX512F__
    half ? _mm512_mask_storeu_ps(to, 0xff, (__m512)v) : _mm512_storeu_ps(to, (__m512)v);
#else
    std::memcpy(to, &v, sizeof v);
#endif
}
template <int V, bool half, typename T> INLINE void load_all(const T *from, vec *to) {
#pragma GCC unroll 8
    for (int v = 0; v + 1 < V; ++v) to[v] = load_vector<false>(from + v * lanes * terms<T>);
    to[V - 1] = load_vector<half>(from + (V - 1) * lanes * terms<T>);
}
template <int V, bool half> INLINE void store_all(float *to, const vec *from) {
#pragma GCC unroll 8
    for (int v = 0; v + 1 < V; ++v) store_vector<false>(to + v * lanes, from[v]);
    store_vector<half>(to + (V - 1) * lanes, from[V - 1]);
}

// Lane i gets the 32 bits at lane i % N of memory. No number is computed with: two of bfloat16 may look like any float.
template <int N> INLINE vec repeated(const void *from) {
    int32_t few[N];
    std::memcpy(few, from, sizeof few);
#ifdef __AVX512F__
    if constexpr (N == 1) return (vec)_mm512_set1_epi32(few[0]);
    if constexpr (N == 4) return (vec)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)from));
#elif defined(__AVX__)
    if constexpr (N == 4) return (vec)_mm256_broadcast_ps((const __m128 *)from);
    if constexpr (N == 8) return load_vector<false>(from);
#endif
#ifdef __AVX512DQ__
    if constexpr (N == 8) return (vec)_mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *)from));
#endif
    bits v;
    for (int i = 0; i < lanes; ++i) v[i] = few[i % N];
    return (vec)v;
}

template <typename T> INLINE vec add_products(vec sum, vec a, vec b) {
    if constexpr (terms<T> == 1) {
        return sum + a * b;
    } else {
#ifdef __AVX512BF16__
        return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
        const auto x = (words)a, y = (words)b;
        sum += (vec)(x << 16) * (vec)(y << 16);
        return sum + (vec)(x >> 16 << 16) * (vec)(y >> 16 << 16);
#endif
    }
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

// Calls body(n as a constant, whether the last one is half a vector, first column) for parts of n vectors; columns are
// a multiple of 8.
template <typename Body> INLINE void for_vectors(int64_t columns, const Body &body) {
    const int64_t number = padded(columns) / lanes;
    in_parts<most_vectors>(number, [&](auto vectors, int64_t first) {
        if (first + vectors == number && columns % lanes)
            body(vectors, std::true_type(), first * lanes);
        else
            body(vectors, std::false_type(), first * lanes);
    });
}

}  // namespace
