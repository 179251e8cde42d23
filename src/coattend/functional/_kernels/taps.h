// The taps of a filter in blocks whose sums stay in registers.

#pragma once

#include "rows.h"

namespace {

#ifdef __AVX512F__
constexpr int most_taps = 25;
#else
constexpr int most_taps = 10;
#endif

// Calls body(kernel as a constant): those that the compiler knows are faster; 0 stands for any other.
template <typename Body> INLINE void with_kernel(int64_t kernel, const Body &body) {
    switch (kernel) {
        case 3: return body(std::integral_constant<int, 3>());
        case 5: return body(std::integral_constant<int, 5>());
        case 7: return body(std::integral_constant<int, 7>());
        default: return body(std::integral_constant<int, 0>());
    }
}

// Calls body(rows and columns of a block as constants, its first row, its first column) for all taps of a kernel, of
// which K is the constant.
template <int K, typename Body> INLINE void for_tap_blocks(int64_t kernel, const Body &body) {
    constexpr int C = K ? K : 1, R = K ? std::min(K, most_taps / K) : 1;
    const auto for_rows_of = [&](auto rows, int64_t i) {
        for (int64_t j = 0; j < kernel; j += C) body(rows, std::integral_constant<int, C>(), i, j);
    };
    int64_t i = 0;
    for (; i + R <= kernel; i += R) for_rows_of(std::integral_constant<int, R>(), i);
    for (; i < kernel; ++i) for_rows_of(std::integral_constant<int, 1>(), i);
}

}  // namespace
