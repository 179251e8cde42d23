// Maps in channels-last memory format: one row of numbers per position, with all planes (channel, pose) of it.
//
// Co-attention of orders 2, 4 and 8 works on vectors of eight neighbouring planes, that is on several channels at once:
// pose g gets the number of pose g ^ d by a permutation within the vector, for d = 0, 1, ..., order - 1. Other orders,
// infinities and NaN go through tiles of positions, see tile.h. Numbers are float or bfloat16, sums are float.
//
// Sums over positions are taken in chunks that depend on the shape alone, so that results do not depend on the number
// of threads.

#include "tile.h"

#include <cmath>
#include <vector>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

using L = Lanes<float>;
using vec = L::vec;
using bits = L::bits;
constexpr int lanes = L::count, rows_at_once = 4;

struct bfloat16 {
    uint16_t upper;  // of a float
};

typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(32)));

INLINE vec load(const float *from) {
    vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
INLINE vec load(const bfloat16 *from) {
    halves h;
    std::memcpy(&h, from, sizeof h);
    return (vec)(__builtin_convertvector(h, words) << 16);
}
INLINE void store(float *to, vec v) { std::memcpy(to, &v, sizeof v); }
// The bits of the nearest bfloat16, ties to even, in the upper halves.
INLINE words nearest(vec v) {
    const words w = (words)v, sum = w + 0x7fff + ((w >> 16) & 1);
    return v != v ? w | 0x400000 : sum;  // a NaN stays one
}
INLINE void store(bfloat16 *to, vec v) {
#ifdef __AVX512BF16__
    const auto h = _mm256_cvtneps_pbh((__m256)v);
#else
    const halves h = __builtin_convertvector(nearest(v) >> 16, halves);
#endif
    std::memcpy(to, &h, sizeof h);
}

// The last columns of a row may be fewer than the lanes of a vector.
template <bool whole, typename T> INLINE vec get(const T *from, int count) {
    if (whole) return load(from);
    T values[lanes] = {};
    std::memcpy(values, from, count * sizeof(T));
    return load(values);
}
template <bool whole, typename T> INLINE void put(T *to, vec v, int count) {
    if (whole) return store(to, v);
    T values[lanes];
    store(values, v);
    std::memcpy(to, values, count * sizeof(T));
}

INLINE float number(float value) { return value; }
INLINE float number(bfloat16 value) {
    const uint32_t word = uint32_t(value.upper) << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
}
INLINE void assign(float &to, float value) { to = value; }
INLINE void assign(bfloat16 &to, float value) {
    bfloat16 values[lanes];
    store(values, vec{} + value);
    to = values[0];
}

// The second one if either is NaN.
INLINE vec larger(vec a, vec b) {
#ifdef __AVX__
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);  // a comparison and a choice otherwise
#else
    return a > b ? a : b;
#endif
}

// Lane i gets lane i ^ d.
template <int d> INLINE vec swapped(vec v) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(v, v, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d);
#else
    return __builtin_shuffle(v, (bits){0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d});
#endif
}

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
template <int N> INLINE vec sum_of_poses(vec v) {
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

INLINE bool all(bits b) {
    typedef int64_t longs __attribute__((vector_size(32)));
    const longs w = (longs)b;
    return (w[0] & w[1] & w[2] & w[3]) == -1;
}

struct RowShape {
    int64_t rows, channels, slices, order;
    const int64_t *sources;  // the column of (slice, pose) of channel 0 in the input
    int64_t channel_step;    // columns from one channel to the next in the input
    int64_t threads;

    int64_t inputs() const { return channels * slices * order; }
    int64_t outputs() const { return channels * order; }
};

// A part of the rows whose sums are kept apart.
struct Chunks {
    int64_t number, rows, total;

    Chunks(int64_t total, int64_t columns) : total(total) {
        number = std::max<int64_t>(1, std::min<int64_t>({total, 256, total * columns / 16384}));
        rows = (total + number - 1) / number;
        number = rows ? (total + rows - 1) / rows : 0;
    }
    int64_t begin(int64_t i) const { return i * rows; }
    int64_t end(int64_t i) const { return std::min(total, (i + 1) * rows); }
};

// Threads cost more than they save on small maps.
int threads_for(const RowShape &s) { return s.rows * s.inputs() < 16384 ? 1 : int(s.threads); }

int64_t padded(int64_t columns) { return (columns + lanes - 1) / lanes * lanes; }

// Some rows at a time, whose numbers stay in the nearest cache.
constexpr int64_t most_rows = 64;
int64_t block_rows(int64_t columns) { return std::max<int64_t>(4, std::min<int64_t>(most_rows, 1024 / columns)); }

// ---------------------------------------------------------------------------------------------------------------------
// Tiles of positions: every order, every number of slices, to the letter for infinities and NaN.

// Adds what attention to one slice of one channel gives to sum (rows, order).
template <typename T> void attend_tiles(const T *x, const float *matrix, const RowShape &s, int64_t channel, int64_t t,
                                        int64_t rows, Scratch<float, 0> &scratch, float *sum) {
    const int n = s.order;
    Tile<float, 0, true> tile;
    constexpr int width = Tile<float, 0, true>::width;
    Edge<float, 0> &in = scratch.in, &out = scratch.below;
    scratch.a.take(matrix, n);
    for (int64_t p = 0; p < rows; p += width) {
        const int count = std::min<int64_t>(width, rows - p);
        in.clear(n), out.clear(n);
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < count; ++i)
                in.row[g][i] = number(x[(p + i) * s.inputs() + channel * s.channel_step + s.sources[t * n + g]]);
        tile.attend(in.row, out.row, 0, scratch.a, n, false);
        for (int i = 0; i < count; ++i)
            for (int g = 0; g < n; ++g) sum[(p + i) * n + g] += out.row[g][i];
    }
}

// Writes the gradient of the columns of one slice of one channel, and adds that of its matrix to dmatrix.
template <typename T, typename G>
void differentiate_tiles(const G *dy, int64_t dy_step, const T *x, const float *matrix, T *dx, float *dmatrix,
                         const RowShape &s, int64_t channel, int64_t t, int64_t rows, Scratch<float, 0> &scratch) {
    const int n = s.order;
    Tile<float, 0, true> tile;
    constexpr int width = Tile<float, 0, true>::width;
    Edge<float, 0> &in = scratch.in, &above = scratch.above, &below = scratch.below;
    scratch.a.take(matrix, n);
    std::memset((void *)scratch.da, 0, n * n * sizeof(vec));
    for (int64_t p = 0; p < rows; p += width) {
        const int count = std::min<int64_t>(width, rows - p);
        in.clear(n), above.clear(n), below.clear(n);
        const int64_t first = p * s.inputs() + channel * s.channel_step;
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < count; ++i) {
                in.row[g][i] = number(x[first + i * s.inputs() + s.sources[t * n + g]]);
                above.row[g][i] = number(dy[(p + i) * dy_step + channel * n + g]);
            }
        tile.find_gradients(in.row, above.row, below.row, 0, scratch.a, scratch.da, n);
        for (int g = 0; g < n; ++g)
            for (int i = 0; i < count; ++i) assign(dx[first + i * s.inputs() + s.sources[t * n + g]], below.row[g][i]);
    }
    for (int i = 0; i < n * n; ++i) {
        float sum = 0;
        for (int k = 0; k < lanes; ++k) sum += scratch.da[i][k];
        dmatrix[i] += sum / n;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Vectors of neighbouring planes: co-attention with one slice.

// Matrices as mixed() needs them, divided by the order, and transposed for the gradient.
template <int N> struct Factors {
    int64_t step;
    bool finite = true;
    std::vector<float> forward, backward;
    const float *matrices;

    Factors(const float *matrices, int64_t channels) : step(padded(channels * N)), matrices(matrices) {
        forward.assign(N * step, 0);
        backward.assign(N * step, 0);
        for (int64_t c = 0; c < channels; ++c)
            for (int g = 0; g < N; ++g)
                for (int d = 0; d < N; ++d) {
                    const float *matrix = matrices + c * N * N;
                    forward[d * step + c * N + g] = matrix[(g ^ d) * N + g] / N;
                    backward[d * step + c * N + g] = matrix[g * N + (g ^ d)] / N;
                    finite &= matrix[g * N + d] * 0 == 0;
                }
    }
};

template <> struct Factors<1> {  // no attention
    Factors(const float *, int64_t) {}
};

// Co-attention of K rows at once: the operations of one row wait for one another, those of several do not.
template <int N, int K> struct Attention {
    vec x[K], logit[K], top[K], mask[K];

    INLINE void find(const vec *factors) {
        for (int k = 0; k < K; ++k) logit[k] = mixed<N>(x[k], factors);
        for (int k = 0; k < K; ++k) top[k] = largest_of_poses<N>(logit[k]);
        for (int k = 0; k < K; ++k) mask[k] = exponential<float>(logit[k] - top[k]);
    }
};

// Calls body(K, first row) for rows K at a time, and for the last ones one at a time.
template <int K, typename Body> INLINE void several_rows(int64_t rows, const Body &body) {
    int64_t r = 0;
    for (; r + K <= rows; r += K) body(std::integral_constant<int, K>(), r);
    for (; r < rows; ++r) body(std::integral_constant<int, 1>(), r);
}

// Whether all logits were ordinary, given the sum of the squares of the largest ones: infinities and NaN stay in it.
INLINE bool were_ordinary(vec squares) {
    return all(squares <= vec{} + float(ordinary_logit) * ordinary_logit);
}

// The number that a map of T would hold.
template <typename T> INLINE vec rounded(vec v) {
    if constexpr (std::is_same<T, float>::value) return v;
#ifdef __AVX512BF16__
    return (vec)(__builtin_convertvector((halves)_mm256_cvtneps_pbh((__m256)v), words) << 16);
#else
    return (vec)(nearest(v) >> 16 << 16);
#endif
}

// Eight columns, or `count` at the end of a row, of some rows.
struct Columns {
    int64_t first, rows;
    int count;
};

// Calls body(row, attended numbers) for every row; N = 1 for no attention. Returns whether all logits were ordinary.
template <int N, bool whole, typename T, typename Body>
INLINE bool each_row(const T *x, const Factors<N> &a, const RowShape &s, Columns at, const Body &body) {
    const int64_t columns = s.outputs();
    x += at.first;
    if constexpr (N == 1) {
        for (int64_t r = 0; r < at.rows; ++r) body(r, get<whole>(x + r * columns, at.count));
        return true;
    } else {
        vec c[N], squares = vec{};
        for (int d = 0; d < N; ++d) c[d] = load(&a.forward[d * a.step + at.first]);
        several_rows<rows_at_once>(at.rows, [&](auto number, int64_t r) {
            constexpr int K = decltype(number)::value;
            Attention<N, K> attention;
            for (int k = 0; k < K; ++k) attention.x[k] = get<whole>(x + (r + k) * columns, at.count);
            attention.find(c);
            for (int k = 0; k < K; ++k) squares += attention.top[k] * attention.top[k];
            for (int k = 0; k < K; ++k) body(r + k, rounded<T>(attention.mask[k] * attention.x[k]));
        });
        return a.finite && were_ordinary(squares);
    }
}

// What each_row gives, through tiles: y (rows, lanes).
template <int N, typename T>
__attribute__((noinline)) void attend_carefully(const T *x, const Factors<N> &a, const RowShape &s, Columns at,
                                                float *y) {
    std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
    std::vector<float> sum(at.rows * N);
    for (int i = 0; i < at.count; i += N) {
        const int64_t c = (at.first + i) / N;
        std::fill(sum.begin(), sum.end(), 0.f);
        attend_tiles(x, a.matrices + c * N * N, s, c, 0, at.rows, *scratch, sum.data());
        for (int64_t r = 0; r < at.rows; ++r)
            for (int g = 0; g < N; ++g) y[r * lanes + i + g] = sum[r * N + g];
    }
    for (int64_t r = 0; r < at.rows; ++r) store(y + r * lanes, rounded<T>(load(y + r * lanes)));
}

// Calls body(row, attended numbers) for every row; first reset(), then every row once more, if a logit is not ordinary.
template <int N, bool whole, typename T, typename Body, typename Reset>
INLINE void for_rows(const T *x, const Factors<N> &a, const RowShape &s, Columns at, const Body &body,
                     const Reset &reset) {
    if (each_row<N, whole>(x, a, s, at, body)) return;
    if constexpr (N > 1) {
        std::vector<float> y(at.rows * lanes);
        reset();
        attend_carefully(x, a, s, at, y.data());
        for (int64_t r = 0; r < at.rows; ++r) body(r, load(&y[r * lanes]));
    }
}

// From the gradient with respect to what attention returns, above(row, attended numbers): dx, and the sums for the
// gradients of the matrices, da (N, step) and, from tiles, dmatrices.
template <int N, bool whole, typename T, typename Above>
INLINE bool differentiate_columns(const Above &above, const T *x, T *dx, const Factors<N> &a, const RowShape &s,
                                  Columns at, float *da) {
    vec c[N], b[N], sums[N], squares = vec{};
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
        attention.find(c);
        for (int k = 0; k < K; ++k) {
            squares += attention.top[k] * attention.top[k];
            direct[k] = attention.mask[k] * above(r + k, rounded<T>(attention.mask[k] * in[k]));
            through[k] = direct[k] * in[k];
        }
        for (int k = 0; k < K; ++k) {
            const vec ties = attention.logit[k] == attention.top[k] ? vec{} + 1 : vec{};
            total[k] = sum_of_poses<N>(through[k]) / sum_of_poses<N>(ties);
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
        differentiate_tiles(dy.data(), a.step, x, a.matrices + c * N * N, dx, dmatrices + c * N * N, s, c, 0, at.rows,
                            *scratch);
}

// Calls body(whole, first column, number of columns) for every vector of a row.
template <typename Body> INLINE void for_columns(int64_t columns, const Body &body) {
    int64_t v = 0;
    for (; v + lanes <= columns; v += lanes) body(std::true_type(), v, lanes);
    if (v < columns) body(std::false_type(), v, int(columns - v));
}

// Adds the sums da (N, step) of a chunk to the gradients of the matrices.
template <int N> void add_sums(const float *da, int64_t step, int64_t channels, float *dmatrices) {
    for (int64_t c = 0; c < channels; ++c)
        for (int g = 0; g < N; ++g)
            for (int d = 0; d < N; ++d)
                dmatrices[c * N * N + (g ^ d) * N + g] += da[d * step + c * N + g] / N;
}

// Adds parts (number, size) in order.
void add_parts(const std::vector<float> &parts, int64_t size, float *sum) {
    std::vector<double> total(size);
    for (size_t i = 0; i < parts.size(); ++i) total[i % size] += parts[i];
    for (int64_t i = 0; i < size; ++i) sum[i] = float(total[i]);
}

template <int N, typename T> void attend(const T *x, const float *matrices, T *y, const RowShape &s) {
    const Factors<N> a(matrices, s.channels);
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_columns(columns, [&](auto whole, int64_t v, int count) {
                constexpr bool is_whole = decltype(whole)::value;
                const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                T *to = y + p * columns + v;
                for_rows<N, is_whole>(
                    x + p * columns, a, s, at, [&](int64_t r, vec n) { put<is_whole>(to + r * columns, n, count); },
                    [] {});
            });
}

template <int N, typename T>
void differentiate(const T *dy, const T *x, const float *matrices, T *dx, float *dmatrices, const RowShape &s) {
    const Factors<N> a(matrices, s.channels);
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns), size = s.channels * N * N;
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
                    const auto above = [&](int64_t r, vec) { return get<is_whole>(from + r * columns, count); };
                    differentiate_rows<N, is_whole>(above, x + p * columns, dx + p * columns, a, s, at, da.data(),
                                                    &parts[i * size]);
                });
            add_sums<N>(da.data(), a.step, s.channels, &parts[i * size]);
        }
    }
    add_parts(parts, size, dmatrices);
}

// Orders for which there are no vectors.
template <typename T> void attend_any(const T *x, const float *matrices, T *y, const RowShape &s) {
    const Chunks chunks(s.rows, s.inputs());
    const int64_t n = s.order, columns = s.outputs();
#pragma omp parallel num_threads(threads_for(s))
    {
        std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
        std::vector<float> sum(chunks.rows * n);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            const int64_t p = chunks.begin(i), rows = chunks.end(i) - p;
            for (int64_t c = 0; c < s.channels; ++c) {
                std::fill(sum.begin(), sum.end(), 0.f);
                for (int64_t t = 0; t < s.slices; ++t)
                    attend_tiles(x + p * s.inputs(), matrices + (c * s.slices + t) * n * n, s, c, t, rows, *scratch,
                                 sum.data());
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t g = 0; g < n; ++g) assign(y[(p + r) * columns + c * n + g], sum[r * n + g]);
            }
        }
    }
}

template <typename T>
void differentiate_any(const T *dy, const T *x, const float *matrices, T *dx, float *dmatrices, const RowShape &s) {
    const Chunks chunks(s.rows, s.inputs());
    const int64_t n = s.order, size = s.channels * s.slices * n * n;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            const int64_t p = chunks.begin(i), rows = chunks.end(i) - p;
            for (int64_t c = 0; c < s.channels; ++c)
                for (int64_t t = 0; t < s.slices; ++t) {
                    const int64_t first = (c * s.slices + t) * n * n;
                    differentiate_tiles(dy + p * s.outputs(), s.outputs(), x + p * s.inputs(), matrices + first,
                                        dx + p * s.inputs(), &parts[i * size + first], s, c, t, rows, *scratch);
                }
        }
    }
    add_parts(parts, size, dmatrices);
}

// ---------------------------------------------------------------------------------------------------------------------
// Slices: the planes of the input are ordered (input pose h, channel, slice t), and there is a slice for every pose.
//
// A vector has all slices of some channels for one input pose, so poses are mixed between vectors, each lane with the
// matrix of its slice. Output pose g reads input pose h through slice t(g, h): `outward[h]` takes the lanes t to their g.

template <int N> struct SliceFactors {
    int64_t step;  // columns per input pose
    bool finite = true;
    std::vector<float> matrix;  // (column / lanes, h, h', lanes): from input pose h to input pose h', divided by N
    bits outward[N], inward[N];
    int pose[N][N];  // the output pose of input pose h and slice t

    SliceFactors(const float *matrices, const RowShape &s) : step(padded(s.outputs())) {
        for (int t = 0; t < N; ++t)
            for (int g = 0; g < N; ++g) pose[s.sources[t * N + g] / s.outputs()][t] = g;
        for (int h = 0; h < N; ++h)
            for (int i = 0; i < lanes; ++i) {
                const int first = i / N * N, g = pose[h][i % N];
                inward[h][i] = first + g;
                outward[h][first + g] = i;
            }
        matrix.assign(step * N * N, 0);
        for (int64_t column = 0; column < s.outputs(); ++column)
            for (int h = 0; h < N; ++h)
                for (int k = 0; k < N; ++k) {
                    const float entry = matrices[(column * N + pose[h][column % N]) * N + pose[k][column % N]];
                    at(column, h, k) = entry / N;
                    finite &= entry * 0 == 0;
                }
    }
    float &at(int64_t column, int h, int k) {
        return matrix[((column / lanes * N + h) * N + k) * lanes + column % lanes];
    }
    const float *of(int64_t v) const { return &matrix[v * N * N]; }
};

// The poses of some channels at one position, one vector for each input pose.
template <int N> struct SliceAttention {
    vec x[N], logit[N], mask[N], top;

    template <bool whole, typename T> INLINE void find(const T *from, int64_t step, const float *a, int count) {
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) x[h] = get<whole>(from + h * step, count);
#pragma GCC unroll 8
        for (int k = 0; k < N; ++k) {
            logit[k] = load(a + k * lanes) * x[0];
#pragma GCC unroll 8
            for (int h = 1; h < N; ++h) logit[k] += load(a + (h * N + k) * lanes) * x[h];
            top = k == 0 ? logit[0] : larger(logit[k], top);
        }
#pragma GCC unroll 8
        for (int k = 0; k < N; ++k) mask[k] = exponential<float>(logit[k] - top);
    }
};

template <int N, bool whole, typename T>
INLINE bool attend_slice_columns(const T *x, const SliceFactors<N> &a, const RowShape &s, int64_t v, int64_t rows,
                                 int count, T *y) {
    const float *matrix = a.of(v);
    vec squares = vec{};
    SliceAttention<N> attention;
    for (int64_t p = 0; p < rows; ++p) {
        attention.template find<whole>(x + p * s.inputs() + v, s.outputs(), matrix, count);
        squares += attention.top * attention.top;
        vec sum = vec{};
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) sum += permuted(attention.mask[h] * attention.x[h], a.outward[h]);
        put<whole>(y + p * s.outputs() + v, sum, count);
    }
    return were_ordinary(squares);
}

template <int N, bool whole, typename T>
INLINE bool differentiate_slice_columns(const T *dy, const T *x, const SliceFactors<N> &a, const RowShape &s, int64_t v,
                                        int64_t rows, int count, T *dx, float *da) {
    const float *matrix = a.of(v);
    vec squares = vec{};
    SliceAttention<N> attention;
    vec sums[N * N] = {};
    for (int64_t p = 0; p < rows; ++p) {
        attention.template find<whole>(x + p * s.inputs() + v, s.outputs(), matrix, count);
        squares += attention.top * attention.top;
        const vec above = get<whole>(dy + p * s.outputs() + v, count);
        vec direct[N], d_logit[N], total = vec{}, ties = vec{};
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) {
            direct[h] = attention.mask[h] * permuted(above, a.inward[h]);
            d_logit[h] = direct[h] * attention.x[h];
            total += d_logit[h];
            ties += attention.logit[h] == attention.top ? vec{} + 1 : vec{};
        }
        total /= ties;
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) d_logit[h] -= attention.logit[h] == attention.top ? total : total - total;
#pragma GCC unroll 8
        for (int h = 0; h < N; ++h) {
#pragma GCC unroll 8
            for (int k = 0; k < N; ++k) {
                direct[h] += load(matrix + (h * N + k) * lanes) * d_logit[k];
                sums[h * N + k] += attention.x[h] * d_logit[k];
            }
            put<whole>(dx + p * s.inputs() + h * s.outputs() + v, direct[h], count);
        }
    }
    const bool was_ordinary = were_ordinary(squares);
    if (was_ordinary)
        for (int i = 0; i < N * N; ++i) store(da + i * lanes, load(da + i * lanes) + sums[i]);
    return was_ordinary;
}

template <int N, typename T> void attend_slices(const T *x, const float *matrices, T *y, const RowShape &s) {
    const SliceFactors<N> a(matrices, s);
    const Chunks chunks(s.rows, s.inputs());
    const int64_t block = block_rows(s.inputs()), columns = s.outputs();
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block) {
            const int64_t rows = std::min(block, chunks.end(i) - p);
            const T *from = x + p * s.inputs();
            T *to = y + p * columns;
            for (int64_t v = 0; v < columns; v += lanes) {
                const int count = std::min<int64_t>(lanes, columns - v);
                const bool ordinary = count == lanes ? attend_slice_columns<N, true>(from, a, s, v, rows, count, to)
                                                     : attend_slice_columns<N, false>(from, a, s, v, rows, count, to);
                if (ordinary && a.finite) continue;
                std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
                std::vector<float> sum(rows * N);
                for (int64_t c = v / N; c * N < v + count; ++c) {
                    std::fill(sum.begin(), sum.end(), 0.f);
                    for (int64_t t = 0; t < N; ++t)
                        attend_tiles(from, matrices + (c * N + t) * N * N, s, c, t, rows, *scratch, sum.data());
                    for (int64_t r = 0; r < rows; ++r)
                        for (int g = 0; g < N; ++g) assign(to[r * columns + c * N + g], sum[r * N + g]);
                }
            }
        }
}

template <int N, typename T>
void differentiate_slices(const T *dy, const T *x, const float *matrices, T *dx, float *dmatrices, const RowShape &s) {
    const SliceFactors<N> a(matrices, s);
    const Chunks chunks(s.rows, s.inputs());
    const int64_t block = block_rows(s.inputs()), columns = s.outputs(), size = columns * N * N;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::vector<float> da(a.step * N * N);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            float *part = &parts[i * size];
            for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block) {
                const int64_t rows = std::min(block, chunks.end(i) - p);
                const T *from = x + p * s.inputs(), *above = dy + p * columns;
                T *to = dx + p * s.inputs();
                for (int64_t v = 0; v < columns; v += lanes) {
                    const int count = std::min<int64_t>(lanes, columns - v);
                    float *sums = &da[v * N * N];
                    bool ordinary = a.finite;
                    if (ordinary && count == lanes)
                        ordinary = differentiate_slice_columns<N, true>(above, from, a, s, v, rows, count, to, sums);
                    else if (ordinary)
                        ordinary = differentiate_slice_columns<N, false>(above, from, a, s, v, rows, count, to, sums);
                    if (ordinary) continue;
                    std::unique_ptr<Scratch<float, 0>> scratch(new Scratch<float, 0>);
                    for (int64_t k = v; k < v + count; ++k)
                        differentiate_tiles(above, columns, from, matrices + k * N * N, to, part + k * N * N, s, k / N,
                                            k % N, rows, *scratch);
                }
            }
            for (int64_t column = 0; column < columns; ++column)
                for (int h = 0; h < N; ++h)
                    for (int k = 0; k < N; ++k)
                        part[(column * N + a.pose[h][column % N]) * N + a.pose[k][column % N]] +=
                            da[((column / lanes * N + h) * N + k) * lanes + column % lanes] / N;
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

// Whether they are ordered as attend_slices expects.
bool is_by_input_pose(const RowShape &s) {
    const int64_t n = s.order;
    if (s.slices != n || s.channel_step != n) return false;
    for (int64_t t = 0; t < n; ++t)
        for (int64_t g = 0; g < n; ++g)
            if (s.sources[t * n + g] % s.outputs() != t) return false;
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Batch norm with statistics per channel, of the map or of what attention makes of it, and the ReLU after it.

struct NormShape {
    RowShape map;
    int64_t training, relu;
    double eps;
};

// Numbers per channel as one per column.
std::vector<float> per_column(const RowShape &s, const std::vector<float> &per_channel) {
    std::vector<float> columns(padded(s.outputs()));
    for (int64_t i = 0; i < s.outputs(); ++i) columns[i] = per_channel[i / s.order];
    return columns;
}

// The sums of two functions of the numbers over all positions: double (2, padded columns).
template <typename Body> std::vector<double> two_sums(const RowShape &s, const Body &body) {
    const Chunks chunks(s.rows, s.outputs());
    const int64_t step = padded(s.outputs()), block = block_rows(step);
    std::vector<double> parts(chunks.number * 2 * step), total(2 * step);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_columns(s.outputs(), [&](auto whole, int64_t v, int count) {
                vec sums[2] = {};
                body(whole, p, Columns{v, std::min(block, chunks.end(i) - p), count}, sums);
                for (int k = 0; k < 2; ++k)
                    for (int lane = 0; lane < lanes; ++lane) parts[(2 * i + k) * step + v + lane] += sums[k][lane];
            });
    for (size_t i = 0; i < parts.size(); ++i) total[i % (2 * step)] += parts[i];
    return total;
}

// Finds mean and variance of the attended map, and writes that to y if there is attention.
template <int N, typename T>
void find_statistics(const T *x, const Factors<N> &a, const RowShape &s, T *y, float *mean, float *variance) {
    const int64_t columns = s.outputs(), step = padded(columns), few = std::min(s.rows, block_rows(step));
    // Sums of differences from a number near the mean do not cancel.
    std::vector<float> pivot(s.channels);
    for_columns(columns, [&](auto whole, int64_t v, int count) {
        vec sum = vec{};
        const auto add = [&](int64_t, vec n) { sum += n; };
        for_rows<N, decltype(whole)::value>(x, a, s, {v, few, count}, add, [&] { sum = vec{}; });
        for (int i = 0; i < count; ++i) pivot[(v + i) / s.order] += sum[i] / (few * s.order);
    });
    const std::vector<float> pivots = per_column(s, pivot);
    const auto sums = two_sums(s, [&](auto whole, int64_t p, Columns at, vec *sums) {
        constexpr bool is_whole = decltype(whole)::value;
        const vec k = load(&pivots[at.first]);
        T *to = y + p * columns + at.first;
        vec sum = vec{}, squares = vec{};
        const auto add = [&](int64_t r, vec n) {
            if (N > 1) put<is_whole>(to + r * columns, n, at.count);
            sum += n - k;
            squares += (n - k) * (n - k);
        };
        for_rows<N, is_whole>(x + p * columns, a, s, at, add, [&] { sum = squares = vec{}; });
        sums[0] = sum, sums[1] = squares;
    });
    const double number = double(s.rows) * s.order;
    for (int64_t c = 0; c < s.channels; ++c) {
        double sum = 0, squares = 0;
        for (int64_t g = 0; g < s.order; ++g) {
            sum += sums[c * s.order + g];
            squares += sums[step + c * s.order + g];
        }
        const double shift = sum / number;
        mean[c] = float(pivot[c] + shift);
        variance[c] = float(squares / number - shift * shift);
        if (variance[c] < 0) variance[c] = 0;
    }
}

// y -> y * scale + shift, per column.
struct Affine {
    std::vector<float> scale, shift;

    Affine(const RowShape &s, const float *weight, const float *bias, const float *mean, const float *variance,
           double eps) {
        std::vector<float> a(s.channels), b(s.channels);
        for (int64_t c = 0; c < s.channels; ++c) {
            const double factor = (weight ? weight[c] : 1.0) / std::sqrt(double(variance[c]) + eps);
            a[c] = float(factor);
            b[c] = float((bias ? bias[c] : 0.0) - mean[c] * factor);
        }
        scale = per_column(s, a);
        shift = per_column(s, b);
    }
};

// z may be x.
template <int N, typename T>
void apply_norm(const T *x, const Factors<N> &a, const Affine &affine, T *z, const NormShape &shape) {
    const RowShape &s = shape.map;
    const Chunks chunks(s.rows, s.outputs());
    const int64_t columns = s.outputs(), block = block_rows(columns);
    const vec lowest = vec{} + (shape.relu ? 0.f : -INFINITY);
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            for_columns(columns, [&](auto whole, int64_t v, int count) {
                constexpr bool is_whole = decltype(whole)::value;
                const vec scale = load(&affine.scale[v]), shift = load(&affine.shift[v]);
                const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                T *to = z + p * columns + v, before[most_rows * lanes];
                const bool overwrites = N > 1 && z == x;
                for (int64_t r = 0; overwrites && r < at.rows; ++r)
                    std::memcpy(before + r * lanes, to + r * columns, count * sizeof(T));
                const auto restore = [&] {
                    for (int64_t r = 0; overwrites && r < at.rows; ++r)
                        std::memcpy(to + r * columns, before + r * lanes, count * sizeof(T));
                };
                const auto write = [&](int64_t r, vec n) {
                    const vec h = n * scale + shift;
                    put<is_whole>(to + r * columns, h < lowest ? lowest : h, count);
                };
                for_rows<N, is_whole>(x + p * columns, a, s, at, write, restore);
            });
}

template <int N, typename T>
void normalize(const T *x, const float *matrices, const float *weight, const float *bias, float *mean, float *variance,
               T *z, const NormShape &shape) {
    const RowShape &s = shape.map;
    const Factors<N> a(matrices, s.channels);
    if (shape.training) find_statistics(x, a, s, z, mean, variance);
    const Affine affine(s, weight, bias, mean, variance, shape.eps);
    if (N > 1 && shape.training)  // z holds the attended map
        apply_norm(z, Factors<1>(nullptr, 0), affine, z, shape);
    else
        apply_norm(x, a, affine, z, shape);
}

template <int N, typename T>
void differentiate_norm(const T *dz, const T *x, const float *matrices, const float *weight, const float *bias,
                        const float *mean, const float *variance, T *dx, float *dmatrices, float *dweight,
                        float *dbias, const NormShape &shape) {
    const RowShape &s = shape.map;
    const Factors<N> a(matrices, s.channels);
    const Affine affine(s, weight, bias, mean, variance, shape.eps);
    const int64_t columns = s.outputs(), step = padded(columns), block = block_rows(step);
    const std::vector<float> means = per_column(s, std::vector<float>(mean, mean + s.channels));
    const vec zero = vec{} + (shape.relu ? 0.f : -INFINITY);  // at and below it the ReLU has no gradient

    const auto sums = two_sums(s, [&](auto whole, int64_t p, Columns at, vec *sums) {
        constexpr bool is_whole = decltype(whole)::value;
        const vec scale = load(&affine.scale[at.first]), shift = load(&affine.shift[at.first]);
        const vec center = load(&means[at.first]);
        const T *from = dz + p * columns + at.first;
        vec direct = vec{}, scaled = vec{};
        const auto add = [&](int64_t r, vec n) {
            const vec up = get<is_whole>(from + r * columns, at.count);
            const vec d = n * scale + shift <= zero ? vec{} : up;
            direct += d;
            scaled += d * (n - center);
        };
        for_rows<N, is_whole>(x + p * columns, a, s, at, add, [&] { direct = scaled = vec{}; });
        sums[0] = direct, sums[1] = scaled;
    });
    // dy = scale * (d - mean of d - (y - mean) * slope)
    std::vector<float> offset(s.channels), slope(s.channels);
    const double number = double(s.rows) * s.order;
    for (int64_t c = 0; c < s.channels; ++c) {
        double direct = 0, scaled = 0;
        for (int64_t g = 0; g < s.order; ++g) {
            direct += sums[c * s.order + g];
            scaled += sums[step + c * s.order + g];
        }
        const double inverse = 1 / std::sqrt(double(variance[c]) + shape.eps);
        dbias[c] = float(direct);
        dweight[c] = float(scaled * inverse);
        offset[c] = shape.training ? float(direct / number) : 0;
        slope[c] = shape.training ? float(scaled * inverse * inverse / number) : 0;
    }
    const std::vector<float> offsets = per_column(s, offset), slopes = per_column(s, slope);

    const Chunks chunks(s.rows, columns);
    const int64_t size = N > 1 ? s.channels * N * N : 0;
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::vector<float> da(N > 1 ? N * step : 0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
                for_columns(columns, [&](auto whole, int64_t v, int count) {
                    constexpr bool is_whole = decltype(whole)::value;
                    const Columns at = {v, std::min(block, chunks.end(i) - p), count};
                    const vec scale = load(&affine.scale[v]), shift = load(&affine.shift[v]);
                    const vec center = load(&means[v]), mean_d = load(&offsets[v]), steepness = load(&slopes[v]);
                    const T *from = dz + p * columns + v;
                    const auto above = [&](int64_t r, vec n) {
                        const vec up = get<is_whole>(from + r * columns, count);
                        const vec d = n * scale + shift <= zero ? vec{} : up;
                        return scale * (d - mean_d - (n - center) * steepness);
                    };
                    T *to = dx + p * columns;
                    if constexpr (N > 1)
                        differentiate_rows<N, is_whole>(above, x + p * columns, to, a, s, at, da.data(),
                                                        &parts[i * size]);
                    else
                        each_row<1, is_whole>(x + p * columns, a, s, at, [&](int64_t r, vec n) {
                            put<is_whole>(to + r * columns + v, above(r, n), count);
                        });
                });
            if constexpr (N > 1) add_sums<N>(da.data(), step, s.channels, &parts[i * size]);
        }
    }
    if constexpr (N > 1) add_parts(parts, size, dmatrices);
}

// ---------------------------------------------------------------------------------------------------------------------
// The maximum over 2x2 windows, and its gradient, which equal maxima share evenly.

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

// ---------------------------------------------------------------------------------------------------------------------
// Dropout: the draws are in the order of the default memory format, so that a seed means the same in either format.
// Without draws `kept` is read instead of written.

struct DropShape {
    int64_t images, pixels, columns;
    int64_t dropped;  // draws below this number
    double factor;
    int64_t threads;
};

template <typename T> void drop(const T *x, const int16_t *draws, uint8_t *kept, T *y, const DropShape &s) {
    constexpr int64_t block = 32;
    const int64_t blocks = (s.pixels + block - 1) / block;
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t i = 0; i < s.images * blocks; ++i) {
        const int64_t image = i / blocks, first = i % blocks * block, end = std::min(s.pixels, first + block);
        for (int64_t c = 0; draws && c < s.columns; ++c) {
            const int16_t *from = draws + (image * s.columns + c) * s.pixels;
            uint8_t *to = kept + image * s.pixels * s.columns + c;
            for (int64_t p = first; p < end; ++p) to[p * s.columns] = from[p] >= s.dropped;
        }
        const int64_t begin = (image * s.pixels + first) * s.columns, last = (image * s.pixels + end) * s.columns;
        for (int64_t k = begin; k < last; ++k) assign(y[k], number(x[k]) * float(kept[k] * s.factor));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Planes in another order: column i of the result is column from[i] of x.

struct OrderShape {
    int64_t rows, columns;
    const int64_t *from;
    int64_t threads;
};

template <typename T> void reorder(const T *x, T *y, const OrderShape &s) {
    const Chunks chunks(s.rows, s.columns);
    const std::vector<int32_t> from(s.from, s.from + s.columns);
#pragma omp parallel for schedule(static) num_threads(s.rows * s.columns < 16384 ? 1 : s.threads)
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t r = chunks.begin(i); r < chunks.end(i); ++r) {
            const T *row = x + r * s.columns;
            T *to = y + r * s.columns;
            for (int64_t c = 0; c < s.columns; ++c) to[c] = row[from[c]];
        }
}

}  // namespace

#define FOR_ORDER(call_2, call_4, call_8, call_any) \
    switch (s->order) {                             \
        case 2: return call_2;                      \
        case 4: return call_4;                      \
        case 8: return call_8;                      \
        default: return call_any;                   \
    }

#define DEFINE(T, name)                                                                                                \
    void coattend_rows_forward_##name(const T *x, const float *a, T *y, const RowShape *s) {                           \
        if (s->slices == 1 && !is_by_channel(*s)) return attend_any(x, a, y, *s);                                      \
        if (s->slices == 1)                                                                                            \
            FOR_ORDER(attend<2>(x, a, y, *s), attend<4>(x, a, y, *s), attend<8>(x, a, y, *s), attend_any(x, a, y, *s)) \
        if (!is_by_input_pose(*s)) return attend_any(x, a, y, *s);                                                     \
        FOR_ORDER(attend_slices<2>(x, a, y, *s), attend_slices<4>(x, a, y, *s), attend_slices<8>(x, a, y, *s),         \
                  attend_any(x, a, y, *s))                                                                             \
    }                                                                                                                  \
    void coattend_rows_backward_##name(const T *dy, const T *x, const float *a, T *dx, float *da, const RowShape *s) { \
        if (s->slices == 1 && !is_by_channel(*s)) return differentiate_any(dy, x, a, dx, da, *s);                      \
        if (s->slices == 1)                                                                                            \
            FOR_ORDER(differentiate<2>(dy, x, a, dx, da, *s), differentiate<4>(dy, x, a, dx, da, *s),                  \
                      differentiate<8>(dy, x, a, dx, da, *s), differentiate_any(dy, x, a, dx, da, *s))                 \
        if (!is_by_input_pose(*s)) return differentiate_any(dy, x, a, dx, da, *s);                                     \
        FOR_ORDER(differentiate_slices<2>(dy, x, a, dx, da, *s), differentiate_slices<4>(dy, x, a, dx, da, *s),        \
                  differentiate_slices<8>(dy, x, a, dx, da, *s), differentiate_any(dy, x, a, dx, da, *s))              \
    }                                                                                                                  \
    void coattend_norm_forward_##name(const T *x, const float *a, const float *w, const float *b, float *mean,         \
                                      float *var, T *z, const NormShape *shape) {                                      \
        const RowShape *s = &shape->map;                                                                               \
        if (!a) return normalize<1>(x, a, w, b, mean, var, z, *shape);                                                 \
        FOR_ORDER(normalize<2>(x, a, w, b, mean, var, z, *shape), normalize<4>(x, a, w, b, mean, var, z, *shape),      \
                  normalize<8>(x, a, w, b, mean, var, z, *shape), void())                                              \
    }                                                                                                                  \
    void coattend_norm_backward_##name(const T *dz, const T *x, const float *a, const float *w, const float *b,        \
                                       const float *mean, const float *var, T *dx, float *da, float *dw, float *db,    \
                                       const NormShape *shape) {                                                       \
        const RowShape *s = &shape->map;                                                                               \
        if (!a) return differentiate_norm<1>(dz, x, a, w, b, mean, var, dx, da, dw, db, *shape);                       \
        FOR_ORDER(differentiate_norm<2>(dz, x, a, w, b, mean, var, dx, da, dw, db, *shape),                            \
                  differentiate_norm<4>(dz, x, a, w, b, mean, var, dx, da, dw, db, *shape),                            \
                  differentiate_norm<8>(dz, x, a, w, b, mean, var, dx, da, dw, db, *shape), void())                    \
    }                                                                                                                  \
    void coattend_rows_pool_forward_##name(const T *x, T *y, const RowPoolShape *s) { pool_rows(x, y, *s); }           \
    void coattend_rows_pool_backward_##name(const T *dy, const T *x, T *dx, const RowPoolShape *s) {                   \
        differentiate_pool_rows(dy, x, dx, *s);                                                                        \
    }                                                                                                                  \
    void coattend_reorder_##name(const T *x, T *y, const OrderShape *s) { reorder(x, y, *s); }                         \
    void coattend_drop_##name(const T *x, const int16_t *draws, uint8_t *kept, T *y, const DropShape *s) {             \
        drop(x, draws, kept, y, *s);                                                                                   \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
