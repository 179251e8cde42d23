// Gates of channels and positions, forward and backward.
//
//     y[c, g](u) = x[c, g](u) (1 - alpha_x[g](u) alpha_c[c, g])
//
// Maps are (batch, positions, channels, group): the numbers of a position are together, and a vector holds the N poses
// of one channel. The small functions between the passes, from statistics to gates, are torch's.
//
// Equal maxima share their gradient evenly, as in torch.amax.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#define INLINE __attribute__((always_inline)) inline

struct GateShape {
    int64_t batch, positions, channels, order, threads;
};

template <typename T, int N> struct Gates {
    typedef T vec __attribute__((vector_size(N * sizeof(T))));
    struct Cell {  // as an argument of a template, vec would lose its attribute
        vec v;
    };
    const GateShape &s;

    INLINE static vec at(const T *from) {
        vec v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }
    INLINE static void put(T *to, vec v) { std::memcpy(to, &v, sizeof v); }
    // 1 where numbers are equal, else 0.
    INLINE static vec equal(vec a, vec b) { return a == b ? vec{} + T(1) : vec{}; }

    template <typename F> void each_image(F function) const {
#pragma omp parallel for num_threads(s.threads)
        for (int64_t b = 0; b < s.batch; ++b) function(b);
    }
    int64_t row() const { return s.channels * N; }
    int64_t image() const { return s.positions * row(); }

    // statistics: mean, maximum and the number of equal maxima over positions, (batch, 3, channels, group).
    void pool(const T *x, T *statistics) const {
        each_image([&](int64_t b) {
            const T *from = x + b * image();
            std::vector<Cell> sum(s.channels), top(s.channels), ties(s.channels);
            for (int64_t c = 0; c < s.channels; ++c) {
                sum[c].v = top[c].v = at(from + c * N);
                ties[c].v = vec{} + T(1);
            }
            for (int64_t p = 1; p < s.positions; ++p) {
                from += row();
                for (int64_t c = 0; c < s.channels; ++c) {
                    const vec v = at(from + c * N), before = top[c].v;
                    sum[c].v += v;
                    ties[c].v = v > before ? vec{} + T(1) : ties[c].v + equal(v, before);
                    top[c].v = (v > before) | (v != v) ? v : before;
                }
            }
            T *to = statistics + 3 * b * row();
            for (int64_t c = 0; c < s.channels; ++c) {
                put(to + c * N, sum[c].v / T(s.positions));
                put(to + row() + c * N, top[c].v);
                put(to + 2 * row() + c * N, ties[c].v);
            }
        });
    }

    // maps: mean and maximum over the channels of alpha x, (batch, positions, 2, group).
    void reduce(const T *x, const T *alpha, T *maps) const {
        each_image([&](int64_t b) {
            const T *from = x + b * image(), *a = alpha + b * row();
            T *to = maps + 2 * b * s.positions * N;
            for (int64_t p = 0; p < s.positions; ++p, from += row(), to += 2 * N) {
                vec first = at(a) * at(from), sum = first, top = first;
                for (int64_t c = 1; c < s.channels; ++c) {
                    const vec v = at(a + c * N) * at(from + c * N);
                    sum += v;
                    top = (v > top) | (v != v) ? v : top;
                }
                put(to, sum / T(s.channels));
                put(to + N, top);
            }
        });
    }

    void apply(const T *x, const T *alpha, const T *alpha_x, T *y) const {
        each_image([&](int64_t b) {
            const T *from = x + b * image(), *a = alpha + b * row(), *ax = alpha_x + b * s.positions * N;
            T *to = y + b * image();
            for (int64_t p = 0; p < s.positions; ++p, from += row(), to += row(), ax += N) {
                const vec w = at(ax);
                for (int64_t c = 0; c < s.channels; ++c)
                    put(to + c * N, at(from + c * N) * (T(1) - w * at(a + c * N)));
            }
        });
    }

    // The gradients of both gates through y.
    void gates_backward(const T *dy, const T *x, const T *alpha, const T *alpha_x, T *dalpha, T *dalpha_x) const {
        each_image([&](int64_t b) {
            const T *from = x + b * image(), *up = dy + b * image(), *a = alpha + b * row();
            const T *ax = alpha_x + b * s.positions * N;
            T *to = dalpha_x + b * s.positions * N;
            std::vector<Cell> da(s.channels, Cell{});
            for (int64_t p = 0; p < s.positions; ++p, from += row(), up += row(), ax += N, to += N) {
                const vec w = at(ax);
                vec dw = {};
                for (int64_t c = 0; c < s.channels; ++c) {
                    const vec t = at(up + c * N) * at(from + c * N);
                    dw -= t * at(a + c * N);
                    da[c].v -= t * w;
                }
                put(to, dw);
            }
            for (int64_t c = 0; c < s.channels; ++c) put(dalpha + b * row() + c * N, da[c].v);
        });
    }

    // Adds the gradient of the gate of channels through the maps.
    void reduce_backward(const T *x, const T *alpha, const T *maps, const T *dmaps, T *dalpha) const {
        each_image([&](int64_t b) {
            const T *from = x + b * image(), *a = alpha + b * row();
            const T *m = maps + 2 * b * s.positions * N, *dm = dmaps + 2 * b * s.positions * N;
            std::vector<Cell> da(s.channels, Cell{});
            for (int64_t p = 0; p < s.positions; ++p, from += row(), m += 2 * N, dm += 2 * N) {
                const vec top = at(m + N), of_mean = at(dm) / T(s.channels);
                const vec of_top = at(dm + N) / ties(from, a, top);
                for (int64_t c = 0; c < s.channels; ++c) {
                    const vec v = at(from + c * N);
                    da[c].v += v * (of_mean + equal(at(a + c * N) * v, top) * of_top);
                }
            }
            for (int64_t c = 0; c < s.channels; ++c) {
                T *to = dalpha + b * row() + c * N;
                put(to, at(to) + da[c].v);
            }
        });
    }

    // The gradient of x through y, the maps and the statistics; dstatistics of mean and maximum, (batch, 2, ...).
    void backward(const T *dy, const T *x, const T *alpha, const T *alpha_x, const T *maps, const T *dmaps,
                  const T *statistics, const T *dstatistics, T *dx) const {
        each_image([&](int64_t b) {
            const T *from = x + b * image(), *up = dy + b * image(), *a = alpha + b * row();
            const T *ax = alpha_x + b * s.positions * N;
            const T *m = maps + 2 * b * s.positions * N, *dm = dmaps + 2 * b * s.positions * N;
            const T *largest = statistics + (3 * b + 1) * row(), *number = largest + row();
            const T *dmean = dstatistics + 2 * b * row(), *dtop = dmean + row();
            T *to = dx + b * image();
            std::vector<Cell> shift(s.channels), share(s.channels);
            for (int64_t c = 0; c < s.channels; ++c) {
                shift[c].v = at(dmean + c * N) / T(s.positions);
                share[c].v = at(dtop + c * N) / at(number + c * N);
            }
            for (int64_t p = 0; p < s.positions; ++p) {
                const vec w = at(ax), top = at(m + N), of_mean = at(dm) / T(s.channels);
                const vec of_top = at(dm + N) / ties(from, a, top);
                for (int64_t c = 0; c < s.channels; ++c) {
                    const vec v = at(from + c * N), gate = at(a + c * N);
                    const vec through_maps = gate * (of_mean + equal(gate * v, top) * of_top);
                    const vec through_statistics = shift[c].v + equal(v, at(largest + c * N)) * share[c].v;
                    put(to + c * N, at(up + c * N) * (T(1) - w * gate) + through_maps + through_statistics);
                }
                from += row(), up += row(), to += row(), ax += N, m += 2 * N, dm += 2 * N;
            }
        });
    }

    INLINE vec ties(const T *from, const T *a, vec top) const {
        vec number = {};
        for (int64_t c = 0; c < s.channels; ++c) number += equal(at(a + c * N) * at(from + c * N), top);
        return number;
    }
};

template <typename T, typename F> void with_order(const GateShape &s, F function) {
    switch (s.order) {
        case 1: return function(Gates<T, 1>{s});
        case 2: return function(Gates<T, 2>{s});
        case 4: return function(Gates<T, 4>{s});
        case 8: return function(Gates<T, 8>{s});
        default: return function(Gates<T, 16>{s});
    }
}

}  // namespace

extern "C" {

#define COATTEND_GATES(name, T)                                                                                      \
    void coattend_gate_pool_##name(const T *x, T *statistics, const GateShape *s) {                                  \
        with_order<T>(*s, [&](const auto &gates) { gates.pool(x, statistics); });                                    \
    }                                                                                                                \
    void coattend_gate_reduce_##name(const T *x, const T *alpha, T *maps, const GateShape *s) {                      \
        with_order<T>(*s, [&](const auto &gates) { gates.reduce(x, alpha, maps); });                                 \
    }                                                                                                                \
    void coattend_gate_apply_##name(const T *x, const T *alpha, const T *alpha_x, T *y, const GateShape *s) {        \
        with_order<T>(*s, [&](const auto &gates) { gates.apply(x, alpha, alpha_x, y); });                            \
    }                                                                                                                \
    void coattend_gate_gates_backward_##name(const T *dy, const T *x, const T *alpha, const T *alpha_x, T *dalpha,   \
                                             T *dalpha_x, const GateShape *s) {                                      \
        with_order<T>(*s, [&](const auto &g) { g.gates_backward(dy, x, alpha, alpha_x, dalpha, dalpha_x); });        \
    }                                                                                                                \
    void coattend_gate_reduce_backward_##name(const T *x, const T *alpha, const T *maps, const T *dmaps, T *dalpha,  \
                                              const GateShape *s) {                                                  \
        with_order<T>(*s, [&](const auto &gates) { gates.reduce_backward(x, alpha, maps, dmaps, dalpha); });         \
    }                                                                                                                \
    void coattend_gate_backward_##name(const T *dy, const T *x, const T *alpha, const T *alpha_x, const T *maps,     \
                                       const T *dmaps, const T *statistics, const T *dstatistics, T *dx,             \
                                       const GateShape *s) {                                                         \
        with_order<T>(*s, [&](const auto &gates) {                                                                   \
            gates.backward(dy, x, alpha, alpha_x, maps, dmaps, statistics, dstatistics, dx);                         \
        });                                                                                                          \
    }

COATTEND_GATES(float, float)
COATTEND_GATES(double, double)

}  // extern "C"
