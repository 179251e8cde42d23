// Co-attention of slices of maps in channels-last format, and the sum over the slices.
//
// The planes of the input are ordered (input pose h, channel, slice t), and there is a slice for every pose. A vector has
// all slices of some channels for one input pose, so poses are mixed between vectors, each lane with the matrix of its
// slice. Output pose g reads input pose h through slice t(g, h): `outward[h]` takes the lanes t to their g.

#include "pose_rows.h"

namespace {

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
        for (int k = 0; k < N; ++k) mask[k] = power_of_two((logit[k] - top) * L::log2_e);
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

// Whether they are ordered as attend_slices expects.
bool is_by_input_pose(const RowShape &s) {
    const int64_t n = s.order;
    if (s.slices != n || s.channel_step != n) return false;
    for (int64_t t = 0; t < n; ++t)
        for (int64_t g = 0; g < n; ++g)
            if (s.sources[t * n + g] % s.outputs() != t) return false;
    return true;
}

}  // namespace

#define DEFINE(T, name)                                                                                                \
    void coattend_slices_forward_##name(const T *x, const float *a, T *y, const RowShape *s) {                         \
        FOR_ORDER(is_by_input_pose(*s) ? s->order : 0, attend_slices<2>(x, a, y, *s), attend_slices<4>(x, a, y, *s),   \
                  attend_slices<8>(x, a, y, *s), attend_any(x, a, y, *s))                                              \
    }                                                                                                                  \
    void coattend_slices_backward_##name(const T *dy, const T *x, const float *a, T *dx, float *da,                    \
                                         const RowShape *s) {                                                          \
        FOR_ORDER(is_by_input_pose(*s) ? s->order : 0, differentiate_slices<2>(dy, x, a, dx, da, *s),                  \
                  differentiate_slices<4>(dy, x, a, dx, da, *s), differentiate_slices<8>(dy, x, a, dx, da, *s),        \
                  differentiate_any(dy, x, a, dx, da, *s))                                                             \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
