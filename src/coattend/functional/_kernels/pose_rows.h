// Co-attention in rows, with and without slices.
//
// Co-attention of orders 2, 4 and 8 works on vectors of neighbouring planes, that is on several channels at once:
// pose g gets the number of pose g ^ d by a permutation within the vector, for d = 0, 1, ..., order - 1. Other orders,
// infinities and NaN go through tiles of positions, see pose_tiles.h.

#pragma once

#include "pose_tiles.h"

namespace {

// Lane i gets lane from[i].
INLINE vec permuted(vec v, bits from) {
#if defined(__clang__)
    vec result;
    for (int i = 0; i < lanes; ++i) result[i] = v[from[i]];
    return result;
#else
    return __builtin_shuffle(v, from);
#endif
}

// Lane i gets lane i ^ d.
template <int d, typename V, int... i> INLINE V swapped_lanes(V v, std::integer_sequence<int, i...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(v, v, (i ^ d)...);
#else
    return __builtin_shuffle(v, (bits){(i ^ d)...});
#endif
}
template <int d, typename V> INLINE V swapped(V v) {
    return swapped_lanes<d>(v, std::make_integer_sequence<int, lanes>());
}

// The sum over d of c[d] times v of pose g ^ d.
template <int N> INLINE vec mixed(vec v, const vec *c) {
    vec sum = c[0] * v + c[1] * swapped<1>(v);
    if constexpr (N > 2) sum += c[2] * swapped<2>(v) + c[3] * swapped<3>(v);
    if constexpr (N > 4) {
        sum += c[4] * swapped<4>(v) + c[5] * swapped<5>(v);
        sum += c[6] * swapped<6>(v) + c[7] * swapped<7>(v);
    }
    return sum;
}
template <int N, typename V> INLINE V sum_of_poses(V v) {
    v += swapped<1>(v);
    if constexpr (N > 2) v += swapped<2>(v);
    if constexpr (N > 4) v += swapped<4>(v);
    return v;
}
template <int N> INLINE vec largest_of_poses(vec v) {
    v = larger(v, swapped<1>(v));
    if constexpr (N > 2) v = larger(v, swapped<2>(v));
    if constexpr (N > 4) v = larger(v, swapped<4>(v));
    return v;
}

// Matrices as mixed() needs them, divided by the order: for logits of base 2, and transposed for the gradient.
template <int N> struct Factors {
    int64_t step, distinct;  // channels; those of further rows have the same matrices
    bool finite = true;
    std::vector<float> forward, backward;
    const float *matrices;

    Factors(const float *matrices, int64_t distinct, const RowShape &s)
        : step(padded(s.outputs())), distinct(distinct), matrices(matrices) {
        forward.assign(N * step, 0);
        backward.assign(N * step, 0);
        for (int64_t c = 0; c < s.channels; ++c)
            for (int g = 0; g < N; ++g)
                for (int d = 0; d < N; ++d) {
                    const float *matrix = of(c);
                    forward[d * step + c * N + g] = float(L::log2_e) / N * matrix[(g ^ d) * N + g];
                    backward[d * step + c * N + g] = matrix[g * N + (g ^ d)] / N;
                    finite &= matrix[g * N + d] * 0 == 0;
                }
    }
    const float *of(int64_t channel) const { return matrices + at(channel); }
    int64_t at(int64_t channel) const { return channel % distinct * N * N; }
};

template <> struct Factors<1> {  // no attention
    Factors() {}
    Factors(const float *, int64_t, const RowShape &) {}
};

// Co-attention of K rows at once: the operations of one row wait for one another, those of several do not.
template <int N, int K> struct Attention {
    vec x[K], logit[K], top[K], mask[K];

    INLINE void find(const vec *factors) {
        for (int k = 0; k < K; ++k) logit[k] = mixed<N>(x[k], factors);
        for (int k = 0; k < K; ++k) top[k] = largest_of_poses<N>(logit[k]);
        for (int k = 0; k < K; ++k) mask[k] = power_of_two(logit[k] - top[k]);
    }
};

// Calls body(K, first row) for rows K at a time, and for the last ones one at a time.
template <int K, typename Body> INLINE void several_rows(int64_t rows, const Body &body) {
    int64_t r = 0;
    for (; r + K <= rows; r += K) body(std::integral_constant<int, K>(), r);
    for (; r < rows; ++r) body(std::integral_constant<int, 1>(), r);
}

// Whether all logits were ordinary, given the sum of the squares of the largest ones: infinities and NaN stay in it.
INLINE bool were_ordinary(vec squares) { return all(squares <= vec{} + float(ordinary_logit) * ordinary_logit); }

// A vector of columns, or `count` at the end of a row, of some rows.
struct Columns {
    int64_t first, rows;
    int count;
};

// Calls body(row, attended numbers) for row after row until a logit is not ordinary, and returns the number of rows
// that it was called for; N = 1 for no attention.
template <int N, bool whole, typename T, typename Body>
INLINE int64_t attend_ordinary(const T *x, const Factors<N> &a, const RowShape &s, Columns at, const Body &body) {
    const int64_t columns = s.outputs();
    int64_t r = 0;
    x += at.first;
    if constexpr (N == 1) {
        for (; r < at.rows; ++r) body(r, get<whole>(x + r * columns, at.count));
    } else {
        vec c[N];
        for (int d = 0; d < N; ++d) c[d] = load(&a.forward[d * a.step + at.first]);
        const auto attend_some = [&](auto number) {
            constexpr int K = decltype(number)::value;
            Attention<N, K> attention;
            vec squares = vec{};
            for (int k = 0; k < K; ++k) attention.x[k] = get<whole>(x + (r + k) * columns, at.count);
            for (int k = 0; k < K; ++k) expect_to_read(x + (r + k + at.rows) * columns);
            attention.find(c);
            for (int k = 0; k < K; ++k) squares += attention.top[k] * attention.top[k];
            if (!were_ordinary(squares)) return false;
            for (int k = 0; k < K; ++k) body(r + k, attention.mask[k] * attention.x[k]);
            r += K;
            return true;
        };
        bool is_ordinary = a.finite;
        while (is_ordinary && r + rows_at_once <= at.rows)
            is_ordinary = attend_some(std::integral_constant<int, rows_at_once>());
        while (is_ordinary && r < at.rows) is_ordinary = attend_some(std::integral_constant<int, 1>());
    }
    return r;
}

// What attend_ordinary gives, through tiles: y (rows, lanes).
template <int N, typename T>
__attribute__((noinline)) void attend_carefully(const T *x, const Factors<N> &a, const RowShape &s, Columns at,
                                                float *y) {
    std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
    std::vector<float> sum(at.rows * N);
    for (int i = 0; i < at.count; i += N) {
        const int64_t c = (at.first + i) / N;
        std::fill(sum.begin(), sum.end(), 0.f);
        attend_tiles(x, a.of(c), s, c, 0, at.rows, *scratch, sum.data());
        for (int64_t r = 0; r < at.rows; ++r)
            for (int g = 0; g < N; ++g) y[r * lanes + i + g] = sum[r * N + g];
    }
}

// Calls body(row, attended numbers) for every row once, in turn: body may overwrite the row.
template <int N, bool whole, typename T, typename Body>
INLINE void for_rows(const T *x, const Factors<N> &a, const RowShape &s, Columns at, const Body &body) {
    const int64_t done = attend_ordinary<N, whole>(x, a, s, at, body);
    if constexpr (N > 1) {
        if (done == at.rows) return;
        const Columns rest = {at.first, at.rows - done, at.count};
        std::vector<float> y(rest.rows * lanes);
        attend_carefully(x + done * s.outputs(), a, s, rest, y.data());
        for (int64_t r = 0; r < rest.rows; ++r) body(done + r, load(&y[r * lanes]));
    }
}

// From the gradient with respect to what attention returns, above(row, attended numbers): dx, and the sums for the
// gradients of the matrices, da (N, step) and, from tiles, dmatrices.
template <int N, bool whole, typename T, typename Above>
INLINE bool differentiate_columns(const Above &above, const T *x, T *dx, const Factors<N> &a, const RowShape &s,
                                  Columns at, float *da) {
    vec c[N], b[N], sums[N], squares = vec{};
    const vec shares = {1, 1.f / 2, 1.f / 3, 1.f / 4, 1.f / 5, 1.f / 6, 1.f / 7, 1.f / 8};  // of 1 to 8 poses
    for (int d = 0; d < N; ++d) {
        c[d] = load(&a.forward[d * a.step + at.first]);
        b[d] = load(&a.backward[d * a.step + at.first]);
        sums[d] = vec{};
    }
    several_rows<rows_at_once>(at.rows, [&](auto number, int64_t r) {
        constexpr int K = decltype(number)::value;
        const int64_t columns = s.outputs();
        Attention<N, K> attention;
        vec *in = attention.x, direct[K], through[K], total[K], d_logit[K];
        for (int k = 0; k < K; ++k) in[k] = get<whole>(x + (r + k) * columns + at.first, at.count);
        for (int k = 0; k < K; ++k) {
            expect_to_read(x + (r + k + at.rows) * columns + at.first);
            expect_to_write(dx + (r + k + at.rows) * columns + at.first);
        }
        attention.find(c);
        for (int k = 0; k < K; ++k) {
            squares += attention.top[k] * attention.top[k];
            direct[k] = attention.mask[k] * above(r + k, attention.mask[k] * in[k]);
            through[k] = direct[k] * in[k];
        }
        for (int k = 0; k < K; ++k) {
            const bits ties = attention.logit[k] == attention.top[k];  // -1 each
            total[k] = sum_of_poses<N>(through[k]) * permuted(shares, -1 - sum_of_poses<N>(ties));
        }
        for (int k = 0; k < K; ++k) {
            const vec nothing = total[k] - total[k];  // NaN if the total is not finite, as 0 times the total
            d_logit[k] = through[k] - (attention.logit[k] == attention.top[k] ? total[k] : nothing);
        }
        for (int k = 0; k < K; ++k)
            put<whole>(dx + (r + k) * columns + at.first, direct[k] + mixed<N>(d_logit[k], b), at.count);
        for (int k = 0; k < K; ++k) {
            sums[0] += in[k] * d_logit[k];
            sums[1] += swapped<1>(in[k]) * d_logit[k];
            if constexpr (N > 2) {
                sums[2] += swapped<2>(in[k]) * d_logit[k];
                sums[3] += swapped<3>(in[k]) * d_logit[k];
            }
            if constexpr (N > 4) {
                sums[4] += swapped<4>(in[k]) * d_logit[k];
                sums[5] += swapped<5>(in[k]) * d_logit[k];
                sums[6] += swapped<6>(in[k]) * d_logit[k];
                sums[7] += swapped<7>(in[k]) * d_logit[k];
            }
        }
    });
    if (!were_ordinary(squares)) return false;
    for (int d = 0; d < N; ++d) {
        float *to = da + d * a.step + at.first;
        store(to, load(to) + sums[d]);
    }
    return true;
}

template <int N, bool whole, typename T, typename Above>
INLINE void differentiate_rows(const Above &above, const T *x, T *dx, const Factors<N> &a, const RowShape &s,
                               Columns at, float *da, float *dmatrices) {
    if (a.finite && differentiate_columns<N, whole>(above, x, dx, a, s, at, da)) return;
    std::vector<float> y(at.rows * lanes), dy(at.rows * padded(s.outputs()));
    attend_carefully(x, a, s, at, y.data());
    for (int64_t r = 0; r < at.rows; ++r) store(&dy[r * a.step + at.first], above(r, load(&y[r * lanes])));
    std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
    for (int64_t c = at.first / N; c * N < at.first + at.count; ++c)
        differentiate_tiles(dy.data(), a.step, x, a.of(c), dx, dmatrices + a.at(c), s, c, 0, at.rows, *scratch);
}

// Adds the sums da (N, step) of a chunk to the gradients of the matrices.
template <int N> void add_sums(const float *da, const Factors<N> &a, int64_t channels, float *dmatrices) {
    for (int64_t c = 0; c < channels; ++c)
        for (int g = 0; g < N; ++g)
            for (int d = 0; d < N; ++d) dmatrices[a.at(c) + (g ^ d) * N + g] += da[d * a.step + c * N + g] / N;
}

}  // namespace

#define FOR_ORDER(order, call_2, call_4, call_8, call_any) \
    switch (order) {                                       \
        case 2: return call_2;                             \
        case 4: return call_4;                             \
        case 8: return call_8;                             \
        default: return call_any;                          \
    }
