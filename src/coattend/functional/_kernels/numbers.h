// Vectors of any number of floats or doubles, loaded from memory in their type or in bfloat16.

#pragma once

#include "rows.h"

namespace {

template <typename T, int count> struct Numbers {
    typedef T vec __attribute__((vector_size(count * sizeof(T))));
};

template <typename T>
struct Numbers<T, 1> : Numbers<T, 4> {};  // four times the same: scalars would be compared by jumps

template <typename T, int count> INLINE typename Numbers<T, count>::vec load_as(const T *from) {
    typename Numbers<T, count>::vec v = {};
    if constexpr (count == 1) return v + *from;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <typename T, int count> INLINE typename Numbers<T, count>::vec load_as(const bfloat16 *from) {
    if constexpr (count == 1) {
        return typename Numbers<T, count>::vec{} + number(*from);
    } else {
        typename Numbers<uint16_t, count>::vec parts;
        std::memcpy(&parts, from, sizeof parts);
        return (typename Numbers<float, count>::vec)(
            __builtin_convertvector(parts, typename Numbers<uint32_t, count>::vec) << 16);
    }
}
template <int count, typename T, typename V> INLINE void store_as(T *to, V v) {
    std::memcpy(to, &v, count * sizeof(T));
}
template <int count, typename V> INLINE void store_as(bfloat16 *to, V v) {
    if constexpr (count % lanes == 0) {
        for (int i = 0; i < count; i += lanes) {
            vec part;
            std::memcpy(&part, (const float *)&v + i, sizeof part);
            store(to + i, part);
        }
    } else {
        for (int i = 0; i < count; ++i) assign(to[i], v[i]);
    }
}

// The numbers of a vector in the lanes `from`.
template <int... from, typename V> INLINE auto picked(V v) {
    using T = decltype(v[0] + 0);
#if defined(__clang__) || __GNUC__ >= 12
    return (typename Numbers<T, sizeof...(from)>::vec)__builtin_shufflevector(v, v, from...);
#else
    return typename Numbers<T, sizeof...(from)>::vec{v[from]...};
#endif
}

// The larger of each pair of numbers, the second one if either is NaN. Compilers make a comparison and a choice of this
// unless it is a known instruction.
template <typename V> INLINE V larger_of(V a, V b) {
    constexpr bool is_float = std::is_same_v<decltype(a[0] + 0), float>;
#ifdef __AVX__
    if constexpr (is_float && sizeof(V) == 16) return (V)_mm_max_ps((__m128)a, (__m128)b);
    if constexpr (is_float && sizeof(V) == 32) return (V)_mm256_max_ps((__m256)a, (__m256)b);
#endif
    return a > b ? a : b;
}

}  // namespace
