// Self-attention over the poses of each position, forward and backward.
//
//     y[d, g] = sum_h weights[h, g] v[d, h]
//     weights[h, g] = softmax_h(sum_d q[d, g] k[d, h] / sqrt(width) + bias[h, g])
//
// The numbers of a position are together, q, k and v one after another, each (heads, width, N); a vector holds N poses.
// Weights are saved for the backward pass, (heads, N, N) per position, the attending pose innermost.

#include "tile.h"

#include <cmath>
#include <utility>
#include <vector>

namespace {

struct PoseShape {
    int64_t positions, heads, width, order, threads;
};

constexpr int64_t chunk = 256;  // positions; sums of gradients do not depend on the number of threads

template <typename T, int N> struct PoseAttention {
    typedef T vec __attribute__((vector_size(N * sizeof(T))));
    struct Cell {  // as an argument of a template, vec would lose its attribute
        vec v;
    };
    const PoseShape &s;

    INLINE static vec at(const T *from) {
        vec v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }
    INLINE static void put(T *to, vec v) { std::memcpy(to, &v, sizeof v); }
    INLINE static void transpose(const vec *from, vec *to) {
#pragma GCC unroll 16
        for (int a = 0; a < N; ++a)
#pragma GCC unroll 16
            for (int b = 0; b < N; ++b) to[b][a] = from[a][b];
    }
    // sum_h a[h] b[h], b one number for all lanes.
    INLINE static vec combined(const vec *a, const T *b) {
        vec sum = a[0] * b[0];
#pragma GCC unroll 16
        for (int h = 1; h < N; ++h) sum += a[h] * b[h];
        return sum;
    }
    // exp(w[h]) for numbers <= 0, in whole vectors of the processor.
    template <size_t... I> INLINE static void exponentiate(vec *w, std::index_sequence<I...>) {
        using wide = typename Lanes<T>::vec;
        constexpr int count = Lanes<T>::count;
#pragma GCC unroll 32
        for (int i = 0; i < N * N; i += count) {
            // Through memory, numbers of several vectors would have to be written before they can be read as one.
            wide t = {(i + I < N * N ? w[(i + I) / N % N][(i + I) % N] : T(0))...};
            t = t < wide{} + Lanes<T>::lowest ? wide{} : exponential<T>(t);
            for (int j = 0; j < count && i + j < N * N; ++j) w[(i + j) / N][(i + j) % N] = t[j];
        }
    }
    int64_t plane() const { return s.heads * s.width * N; }

    void forward(const T *qkv, const T *bias, T *weights, T *y) const {
        const T scale = T(1) / std::sqrt(T(s.width));
#pragma omp parallel for num_threads(s.threads)
        for (int64_t p = 0; p < s.positions; ++p)
            for (int64_t head = 0; head < s.heads; ++head) {
                const T *q = qkv + 3 * p * plane() + head * s.width * N, *k = q + plane(), *v = k + plane();
                vec w[N] = {};
                for (int64_t d = 0; d < s.width; ++d) {
                    const vec query = at(q + d * N);
#pragma GCC unroll 16
                    for (int h = 0; h < N; ++h) w[h] += query * k[d * N + h];
                }
                vec top = w[0] = w[0] * scale + at(bias + head * N * N);
                for (int h = 1; h < N; ++h) {
                    w[h] = w[h] * scale + at(bias + (head * N + h) * N);
                    top = (w[h] > top) | (w[h] != w[h]) ? w[h] : top;
                }
                for (int h = 0; h < N; ++h) w[h] -= top;
                exponentiate(w, std::make_index_sequence<Lanes<T>::count>());
                vec sum = w[0];
                for (int h = 1; h < N; ++h) sum += w[h];
                T *saved = weights + (p * s.heads + head) * N * N;
                const vec share = T(1) / sum;
                for (int h = 0; h < N; ++h) put(saved + h * N, w[h] *= share);
                T *to = y + p * plane() + head * s.width * N;
                for (int64_t d = 0; d < s.width; ++d) put(to + d * N, combined(w, v + d * N));
            }
    }

    // dbias: (chunks, heads, N, N).
    void backward(const T *dy, const T *qkv, const T *weights, T *dqkv, T *dbias) const {
        const T scale = T(1) / std::sqrt(T(s.width));
        const int64_t chunks = (s.positions + chunk - 1) / chunk;
#pragma omp parallel for num_threads(s.threads)
        for (int64_t part = 0; part < chunks; ++part) {
            std::vector<Cell> total(s.heads * N, Cell{});
            const int64_t end = std::min(s.positions, (part + 1) * chunk);
            for (int64_t p = part * chunk; p < end; ++p)
                for (int64_t head = 0; head < s.heads; ++head) {
                    const int64_t start = 3 * p * plane() + head * s.width * N;
                    const T *q = qkv + start, *k = q + plane(), *v = k + plane();
                    T *dq = dqkv + start, *dk = dq + plane(), *dv = dk + plane();
                    const T *up = dy + p * plane() + head * s.width * N;
                    const T *saved = weights + (p * s.heads + head) * N * N;
                    vec w[N], by_g[N] = {}, ds[N] = {}, mean = {};
                    for (int h = 0; h < N; ++h) w[h] = at(saved + h * N);
                    transpose(w, by_g);
                    for (int64_t d = 0; d < s.width; ++d) {
                        const vec u = at(up + d * N);
#pragma GCC unroll 16
                        for (int h = 0; h < N; ++h) ds[h] += u * v[d * N + h];
                        put(dv + d * N, combined(by_g, up + d * N));
                    }
                    for (int h = 0; h < N; ++h) mean += w[h] * ds[h];
                    for (int h = 0; h < N; ++h) {
                        ds[h] = w[h] * (ds[h] - mean);
                        total[head * N + h].v += ds[h];
                        ds[h] *= scale;
                    }
                    transpose(ds, by_g);
                    for (int64_t d = 0; d < s.width; ++d) {
                        put(dq + d * N, combined(ds, k + d * N));
                        put(dk + d * N, combined(by_g, q + d * N));
                    }
                }
            for (int64_t i = 0; i < s.heads * N; ++i) put(dbias + (part * s.heads * N + i) * N, total[i].v);
        }
    }
};

template <typename T, typename F> void with_order(const PoseShape &s, F function) {
    switch (s.order) {
        case 2: return function(PoseAttention<T, 2>{s});
        case 4: return function(PoseAttention<T, 4>{s});
        case 8: return function(PoseAttention<T, 8>{s});
        default: return function(PoseAttention<T, 16>{s});
    }
}

}  // namespace

extern "C" {

#define COATTEND_POSES(name, T)                                                                               \
    void coattend_poses_forward_##name(const T *qkv, const T *bias, T *weights, T *y, const PoseShape *s) {   \
        with_order<T>(*s, [&](const auto &attention) { attention.forward(qkv, bias, weights, y); });          \
    }                                                                                                         \
    void coattend_poses_backward_##name(const T *dy, const T *qkv, const T *weights, T *dqkv, T *dbias,       \
                                        const PoseShape *s) {                                                 \
        with_order<T>(*s, [&](const auto &attention) { attention.backward(dy, qkv, weights, dqkv, dbias); }); \
    }

COATTEND_POSES(float, float)
COATTEND_POSES(double, double)

}  // extern "C"
