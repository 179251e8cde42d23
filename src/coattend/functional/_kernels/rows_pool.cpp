// The maximum over 2x2 windows of maps in channels-last format, and its gradient, which equal maxima share evenly.

#include "rows.h"

namespace {

struct RowPoolShape {
    int64_t images, height, width, columns;  // height and width are even
    int64_t threads;
};

INLINE vec larger_or_nan(vec a, vec b) { return (a > b) | (a != a) ? a : b; }

// Calls body(first input row, output row) for every window; the other rows are 1, width and width + 1 further.
template <typename Body> void for_windows(const RowPoolShape &s, const Body &body) {
    const int64_t height = s.height / 2, width = s.width / 2;
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t line = 0; line < s.images * height; ++line)
        for (int64_t j = 0; j < width; ++j)
            body((line / height * s.height + line % height * 2) * s.width + 2 * j, line * width + j);
}

template <typename T> void pool_rows(const T *x, T *y, const RowPoolShape &s) {
    for_windows(s, [&](int64_t from, int64_t to) {
        for_columns(s.columns, [&](auto whole, int64_t v, int count) {
            constexpr bool is_whole = decltype(whole)::value;
            const auto at = [&](int64_t row) { return get<is_whole>(x + row * s.columns + v, count); };
            const vec upper = larger_or_nan(at(from), at(from + 1));
            const vec lower = larger_or_nan(at(from + s.width), at(from + s.width + 1));
            put<is_whole>(y + to * s.columns + v, larger_or_nan(upper, lower), count);
        });
    });
}

template <typename T> void differentiate_pool_rows(const T *dy, const T *x, T *dx, const RowPoolShape &s) {
    for_windows(s, [&](int64_t from, int64_t to) {
        const int64_t rows[4] = {from, from + 1, from + s.width, from + s.width + 1};
        for_columns(s.columns, [&](auto whole, int64_t v, int count) {
            constexpr bool is_whole = decltype(whole)::value;
            vec in[4], ties = vec{};
            for (int i = 0; i < 4; ++i) in[i] = get<is_whole>(x + rows[i] * s.columns + v, count);
            const vec top = larger_or_nan(larger_or_nan(in[0], in[1]), larger_or_nan(in[2], in[3]));
            for (int i = 0; i < 4; ++i) ties += in[i] == top ? vec{} + 1 : vec{};
            const vec share = get<is_whole>(dy + to * s.columns + v, count) / ties;
            for (int i = 0; i < 4; ++i)
                put<is_whole>(dx + rows[i] * s.columns + v, in[i] == top ? share : vec{}, count);
        });
    });
}

}  // namespace

#define DEFINE(T, name)                                                                                      \
    void coattend_rows_pool_forward_##name(const T *x, T *y, const RowPoolShape *s) { pool_rows(x, y, *s); } \
    void coattend_rows_pool_backward_##name(const T *dy, const T *x, T *dx, const RowPoolShape *s) {         \
        differentiate_pool_rows(dy, x, dx, *s);                                                              \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
