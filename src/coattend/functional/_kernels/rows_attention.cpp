// Co-attention of maps in channels-last format.

#include "wide_vectors.h"

#include "pose_rows.h"

namespace {

template <int N, typename T> void attend(const T *x, const float *matrices, T *y, const RowShape &map) {
    const RowShape s = side_by_side(map);
    const Factors<N> a(matrices, map.channels, s);
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_columns(columns, [&](auto whole, int64_t v, int count) {
                constexpr bool is_whole = decltype(whole)::value;
                const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                T *to = y + p * columns + v;
                const auto write = [&](int64_t r, vec n) {
                    put<is_whole>(to + r * columns, n, count);
                    expect_to_write(to + (r + at.rows) * columns);
                };
                for_rows<N, is_whole>(x + p * columns, a, s, at, write);
            });
}

template <int N, typename T>
void differentiate(const T *dy, const T *x, const float *matrices, T *dx, float *dmatrices, const RowShape &map) {
    const RowShape s = side_by_side(map);
    const Factors<N> a(matrices, map.channels, s);
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns), size = map.channels * N * N;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::vector<float> da(N * a.step);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
                for_columns(columns, [&](auto whole, int64_t v, int count) {
                    constexpr bool is_whole = decltype(whole)::value;
                    const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                    const T *from = dy + p * columns + v;
                    const auto above = [&](int64_t r, vec) {
                        expect_to_read(from + (r + at.rows) * columns);
                        return get<is_whole>(from + r * columns, count);
                    };
                    differentiate_rows<N, is_whole>(above, x + p * columns, dx + p * columns, a, s, at, da.data(),
                                                    &parts[i * size]);
                });
            add_sums(da.data(), a, s.channels, &parts[i * size]);
        }
    }
    add_parts(parts, size, dmatrices);
}

// Whether the planes of the input are ordered as attend expects: channel by channel.
bool is_by_channel(const RowShape &s) {
    for (int64_t g = 0; g < s.order; ++g)
        if (s.sources[g] != g) return false;
    return s.channel_step == s.order;
}

}  // namespace

#define DEFINE(T, name)                                                                                                \
    void coattend_rows_forward_##name(const T *x, const float *a, T *y, const RowShape *s) {                           \
        FOR_ORDER(is_by_channel(*s) ? s->order : 0, attend<2>(x, a, y, *s), attend<4>(x, a, y, *s),                    \
                  attend<8>(x, a, y, *s), attend_any(x, a, y, *s))                                                     \
    }                                                                                                                  \
    void coattend_rows_backward_##name(const T *dy, const T *x, const float *a, T *dx, float *da, const RowShape *s) { \
        FOR_ORDER(is_by_channel(*s) ? s->order : 0, differentiate<2>(dy, x, a, dx, da, *s),                            \
                  differentiate<4>(dy, x, a, dx, da, *s), differentiate<8>(dy, x, a, dx, da, *s),                      \
                  differentiate_any(dy, x, a, dx, da, *s))                                                             \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
