// Convolution with filters that are generated at each position, forward and backward; the filters are recomputed, never
// stored, and no position is copied.
//
//     kappa[s, d, g](u) = sum_m bank[m, s, d, g] z[m, g](u) + bank[hidden, s, d, g]
//     y[c, g](u) = sum_d kappa[s(c), d, g](u) v[c, g](u + d)
//
// If a norm is given, z is max(0, scale * z + shift) instead, normalized per image and channel over poses and
// positions.
//
// Maps are (batch, height, width, channels, group): the numbers of a position are together, and vectors run over
// channels and poses. The order N of the group divides the lanes of a vector, so that a vector of poses is the same for
// all channels. Filters are generated for a few positions of a line at a time.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

#define INLINE __attribute__((always_inline)) inline

struct DynamicShape {
    int64_t batch, height, width, channels, order, hidden, slices, kernel;
    int64_t threads;
    double eps;  // of the norm
};

template <typename T> struct Wide;
template <> struct Wide<float> {
    typedef float vec __attribute__((vector_size(32)));
    static constexpr int count = 8;
};
template <> struct Wide<double> {
    typedef double vec __attribute__((vector_size(32)));
    static constexpr int count = 4;
};

template <typename T, typename vec = typename Wide<T>::vec> INLINE vec at(const T *p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <typename T> INLINE void put(T *p, typename Wide<T>::vec v) { std::memcpy(p, &v, sizeof v); }

// The first numbers of a vector; the others are zero and their memory is not touched.
template <typename T> struct Mask {
    typedef typename Wide<T>::vec vec;
    int count;
    INLINE vec at(const T *p) const {
        vec v = {};
        for (int i = 0; i < count; ++i) v[i] = p[i];
        return v;
    }
    INLINE void put(T *p, vec v) const {
        for (int i = 0; i < count; ++i) p[i] = v[i];
    }
};
#ifdef __AVX2__
template <> struct Mask<float> {
    typedef Wide<float>::vec vec;
    __m256i lanes;
    explicit Mask(int count)
        : lanes(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))) {}
    INLINE vec at(const float *p) const { return (vec)_mm256_maskload_ps(p, lanes); }
    INLINE void put(float *p, vec v) const { _mm256_maskstore_ps(p, lanes, (__m256)v); }
};
#endif

// N numbers, one per pose, repeated to fill a vector.
template <typename T, int N> INLINE typename Wide<T>::vec repeated(const T *p) {
#ifdef __AVX2__
    if constexpr (sizeof(T) == 4 && N == 1) return (typename Wide<T>::vec)_mm256_broadcast_ss((const float *)p);
    if constexpr (sizeof(T) == 4 && N == 2) return (typename Wide<T>::vec)_mm256_broadcast_sd((const double *)p);
    if constexpr (sizeof(T) == 4 && N == 4) return (typename Wide<T>::vec)_mm256_broadcast_ps((const __m128 *)p);
#endif
    typename Wide<T>::vec v;
    for (int i = 0; i < Wide<T>::count; ++i) v[i] = p[i % N];
    return v;
}

// The sum of the lanes of each pose.
template <typename T, int N> INLINE void fold(typename Wide<T>::vec v, T *p) {
    for (int g = 0; g < N; ++g) {
        T sum = v[g];
        for (int i = g + N; i < Wide<T>::count; i += N) sum += v[i];
        p[g] = sum;
    }
}

constexpr int together = 4;  // positions whose filters are generated at once

// The norm of one image, for every number of a position of z.
template <typename T> struct Norm {
    std::vector<T> mean, deviation, scale, shift;  // deviation: 1 / sqrt(variance + eps)
    explicit Norm(int64_t size) : mean(size), deviation(size), scale(size), shift(size) {}
};

template <typename T, int N> struct Dynamic {
    using vec = typename Wide<T>::vec;
    static constexpr int W = Wide<T>::count;

    const DynamicShape &s;
    const int taps, vectors, reach;    // numbers of kappa at a position, vectors of them, the last one padded
    const int64_t position, of_slice;  // numbers of v at a position, and of a slice among them
    const int64_t row_step;            // numbers of a line of v
    const Mask<T> rest;                // of a slice after its whole vectors

    explicit Dynamic(const DynamicShape &s)
        : s(s),
          taps(s.slices * s.kernel * s.kernel * N),
          vectors((taps + W - 1) / W),
          reach(s.kernel / 2),
          position(s.channels * N),
          of_slice(position / s.slices),
          row_step(s.width * position),
          rest{int(of_slice % W)} {}

    // The bank with rows padded to whole vectors.
    std::vector<T> padded(const T *bank) const {
        std::vector<T> rows((s.hidden + 1) * vectors * W, T(0));
        for (int64_t m = 0; m <= s.hidden; ++m) std::copy_n(bank + m * taps, taps, rows.data() + m * vectors * W);
        return rows;
    }

    template <int Q> INLINE void generate_for(const T *rows, const T *z, T *kappa) const {
        constexpr int B = 3;
        for (int first = 0; first < vectors; first += B) {
            const int count = std::min(B, vectors - first);
            vec sum[Q][B];
            for (int b = 0; b < B; ++b)
                for (int q = 0; q < Q; ++q)
                    sum[q][b] = b < count ? at(rows + (s.hidden * vectors + first + b) * W) : vec{};
            for (int64_t m = 0; m < s.hidden; ++m) {
                const T *row = rows + (m * vectors + first) * W;
                vec w[B];
                for (int b = 0; b < B; ++b) w[b] = b < count ? at(row + b * W) : vec{};
                for (int q = 0; q < Q; ++q) {
                    const vec context = repeated<T, N>(z + (q * s.hidden + m) * N);
                    for (int b = 0; b < B; ++b) sum[q][b] += w[b] * context;
                }
            }
            for (int q = 0; q < Q; ++q)
                for (int b = 0; b < count; ++b) put(kappa + (q * vectors + first + b) * W, sum[q][b]);
        }
    }

    // kappa (positions, vectors * W) of the context (positions, hidden, N).
    void generate(const T *rows, const T *z, int positions, T *kappa) const {
        if (positions == together) return generate_for<together>(rows, z, kappa);
        for (int q = 0; q < positions; ++q) generate_for<1>(rows, z + q * s.hidden * N, kappa + q * vectors * W);
    }

    // Sums value(number, index) over the positions of an image and the poses of each channel, line by line.
    template <typename F> void sum_per_channel(F value, T *sums) const {
        const int64_t size = s.hidden * N;
        std::vector<T> line(size), total(size);
        for (int64_t row = 0; row < s.height; ++row) {
            std::fill(line.begin(), line.end(), T(0));
            for (int64_t column = 0; column < s.width; ++column)
                for (int64_t i = 0; i < size; ++i) line[i] += value((row * s.width + column) * size + i, i);
            for (int64_t i = 0; i < size; ++i) total[i] += line[i];
        }
        for (int64_t m = 0; m < s.hidden; ++m) {
            T sum = 0;
            for (int g = 0; g < N; ++g) sum += total[m * N + g];
            std::fill_n(sums + m * N, N, sum);
        }
    }

    void find_norm(const T *z, const T *weight, const T *bias, Norm<T> &norm) const {
        const T count = T(s.height * s.width * N);
        sum_per_channel([&](int64_t number, int64_t) { return z[number]; }, norm.mean.data());
        for (T &mean : norm.mean) mean /= count;
        const T *mean = norm.mean.data();
        sum_per_channel([&](int64_t number, int64_t i) { return (z[number] - mean[i]) * (z[number] - mean[i]); },
                        norm.deviation.data());
        for (int64_t i = 0; i < s.hidden * N; ++i) {
            norm.deviation[i] = 1 / std::sqrt(norm.deviation[i] / count + T(s.eps));
            norm.scale[i] = weight[i / N] * norm.deviation[i];
            norm.shift[i] = bias[i / N] - norm.mean[i] * norm.scale[i];
        }
    }

    // max(0, scale * z + shift) of some positions.
    void activate(const T *z, int positions, const Norm<T> &norm, T *to) const {
        const int64_t size = s.hidden * N;
        const T *__restrict__ scale = norm.scale.data(), *__restrict__ shift = norm.shift.data();
        for (int q = 0; q < positions; ++q)
            for (int64_t i = 0; i < size; ++i) {
                const T value = z[q * size + i] * scale[i] + shift[i];
                to[q * size + i] = value < 0 ? T(0) : value;  // NaN stays
            }
    }

    // The part of the kernel that is inside of the image along an axis.
    INLINE void inside(int64_t i, int64_t size, int &low, int &high) const {
        low = std::max<int64_t>(0, reach - i);
        high = std::min<int64_t>(s.kernel, size + reach - i);
    }

    // Splits the numbers of a slice into blocks of whole vectors and a rest.
    template <typename F> INLINE void for_blocks(F block) const {
        int64_t start = 0;
        const int64_t whole = of_slice / W * W;
        for (; start + 8 * W <= whole; start += 8 * W) block(start, Blocks<8, true>{});
        if (start + 4 * W <= whole) block(start, Blocks<4, true>{}), start += 4 * W;
        if (start + 2 * W <= whole) block(start, Blocks<2, true>{}), start += 2 * W;
        if (start + W <= whole) block(start, Blocks<1, true>{}), start += W;
        if (start < of_slice) block(start, Blocks<1, false>{});
    }
    template <int B_, bool whole_> struct Blocks {
        static constexpr int B = B_;
        static constexpr bool whole = whole_;
    };
    template <bool whole> INLINE vec load(const T *p) const {
        if constexpr (whole)
            return at(p);
        else
            return rest.at(p);
    }
    template <bool whole> INLINE void store(T *p, vec v) const {
        if constexpr (whole)
            put(p, v);
        else
            rest.put(p, v);
    }

    void filter(const T *image, const T *kappa, T *y, int64_t row, int64_t column) const {
        int top, bottom, left, right;
        inside(row, s.height, top, bottom), inside(column, s.width, left, right);
        const T *corner = image + (row - reach) * row_step + (column - reach) * position;
        for (int64_t slice = 0; slice < s.slices; ++slice, kappa += s.kernel * s.kernel * N)
            for_blocks([&](int64_t start, auto blocks) __attribute__((always_inline)) {
                constexpr int B = decltype(blocks)::B;
                constexpr bool whole = decltype(blocks)::whole;
                start += slice * of_slice;
                vec sum[B] = {};
                for (int i = top; i < bottom; ++i)
                    for (int j = left; j < right; ++j) {
                        const T *from = corner + i * row_step + j * position + start;
                        const vec f = repeated<T, N>(kappa + (i * s.kernel + j) * N);
                        for (int b = 0; b < B; ++b) sum[b] += f * load<whole>(from + b * W);
                    }
                for (int b = 0; b < B; ++b) store<whole>(y + start + b * W, sum[b]);
            });
    }

    void forward(const T *v, const T *z, const T *bank, const T *weight, const T *bias, T *y) const {
        const std::vector<T> rows = padded(bank);
        const int64_t lines = s.batch * s.height, size = s.hidden * N;
        std::vector<Norm<T>> norms(weight ? s.batch : 0, Norm<T>(size));
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<T> kappa(together * vectors * W), active(together * size);
#pragma omp for schedule(static)
            for (int64_t image = 0; image < int64_t(norms.size()); ++image)
                find_norm(z + image * s.height * s.width * size, weight, bias, norms[image]);
#pragma omp for schedule(static)
            for (int64_t line = 0; line < lines; ++line) {
                const T *image = v + line / s.height * s.height * row_step;
                for (int64_t column = 0; column < s.width; column += together) {
                    const int positions = std::min<int64_t>(together, s.width - column);
                    const int64_t first = line * s.width + column;
                    const T *context = z + first * size;
                    if (weight) {
                        activate(context, positions, norms[line / s.height], active.data());
                        context = active.data();
                    }
                    generate(rows.data(), context, positions, kappa.data());
                    for (int q = 0; q < positions; ++q)
                        filter(image, kappa.data() + q * vectors * W, y + (first + q) * position, line % s.height,
                               column + q);
                }
            }
        }
    }

    // Adds kappa * dy to dv around a position, and finds dkappa there.
    void spread(const T *dy, const T *image, const T *kappa, T *dimage, T *dkappa, int64_t row, int64_t column) const {
        int top, bottom, left, right;
        inside(row, s.height, top, bottom), inside(column, s.width, left, right);
        const int64_t corner = (row - reach) * row_step + (column - reach) * position;
        std::fill_n(dkappa, vectors * W, T(0));
        for (int64_t slice = 0; slice < s.slices;
             ++slice, kappa += s.kernel * s.kernel * N, dkappa += s.kernel * s.kernel * N)
            for_blocks([&](int64_t start, auto blocks) __attribute__((always_inline)) {
                constexpr int B = decltype(blocks)::B;
                constexpr bool whole = decltype(blocks)::whole;
                start += slice * of_slice;
                vec above[B];
                for (int b = 0; b < B; ++b) above[b] = load<whole>(dy + start + b * W);
                for (int i = top; i < bottom; ++i)
                    for (int j = left; j < right; ++j) {
                        const int64_t there = corner + i * row_step + j * position + start;
                        const int tap = (i * s.kernel + j) * N;
                        const vec f = repeated<T, N>(kappa + tap);
                        vec sum = {};
                        for (int b = 0; b < B; ++b) {
                            sum += above[b] * load<whole>(image + there + b * W);
                            T *to = dimage + there + b * W;
                            store<whole>(to, load<whole>(to) + f * above[b]);
                        }
                        T folded[N];
                        fold<T, N>(sum, folded);
                        for (int g = 0; g < N; ++g) dkappa[tap + g] += folded[g];
                    }
            });
    }

    // dz = sum over slices and taps of bank * dkappa, for Q positions.
    template <int Q> INLINE void find_dz(const T *rows, const T *dkappa, T *dz) const {
        constexpr int M = 3;
        for (int64_t first = 0; first < s.hidden; first += M) {
            const int count = std::min<int64_t>(M, s.hidden - first);
            vec sum[Q][M] = {};
            for (int i = 0; i < vectors; ++i) {
                vec w[M];
                for (int m = 0; m < M; ++m) w[m] = m < count ? at(rows + ((first + m) * vectors + i) * W) : vec{};
                for (int q = 0; q < Q; ++q) {
                    const vec d = at(dkappa + (q * vectors + i) * W);
                    for (int m = 0; m < M; ++m) sum[q][m] += w[m] * d;
                }
            }
            for (int q = 0; q < Q; ++q)
                for (int m = 0; m < count; ++m) fold<T, N>(sum[q][m], dz + (q * s.hidden + first + m) * N);
        }
    }

    // dbank += z * dkappa, for Q positions; the context of the last row is 1.
    template <int Q> INLINE void add_dbank(const T *z, const T *dkappa, T *drows) const {
        constexpr int B = 3;
        for (int first = 0; first < vectors; first += B) {
            const int count = std::min(B, vectors - first);
            vec d[Q][B];
            for (int q = 0; q < Q; ++q)
                for (int b = 0; b < B; ++b) d[q][b] = b < count ? at(dkappa + (q * vectors + first + b) * W) : vec{};
            for (int64_t m = 0; m <= s.hidden; ++m) {
                vec sum[B] = {};
                for (int q = 0; q < Q; ++q) {
                    const vec context = m < s.hidden ? repeated<T, N>(z + (q * s.hidden + m) * N) : vec{} + 1;
                    for (int b = 0; b < B; ++b) sum[b] += context * d[q][b];
                }
                T *to = drows + (m * vectors + first) * W;
                for (int b = 0; b < count; ++b) put(to + b * W, at(to + b * W) + sum[b]);
            }
        }
    }

    // From the gradient of the normalized context, in dz, to that of the context, of scales and of shifts.
    void find_norm_gradients(const T *z, const Norm<T> &norm, T *dz, T *dweight, T *dbias) const {
        const int64_t size = s.hidden * N, positions = s.height * s.width;
        const T count = T(positions * N);
        const T *mean = norm.mean.data(), *deviation = norm.deviation.data();
        std::vector<T> sums(size), products(size);
        sum_per_channel([&](int64_t number, int64_t) { return dz[number]; }, sums.data());
        sum_per_channel([&](int64_t number, int64_t i) { return dz[number] * (z[number] - mean[i]) * deviation[i]; },
                        products.data());
        for (int64_t m = 0; m < s.hidden; ++m) dweight[m] = products[m * N], dbias[m] = sums[m * N];
        for (int64_t p = 0; p < positions; ++p)
            for (int64_t i = 0; i < size; ++i) {
                const T normalized = (z[p * size + i] - mean[i]) * deviation[i];
                dz[p * size + i] = norm.scale[i] * (dz[p * size + i] - (sums[i] + normalized * products[i]) / count);
            }
    }

    // dbank is (batch, hidden + 1, taps), dweight and dbias (batch, hidden): the caller sums over the batch, so that
    // the result does not depend on the number of threads. A thread has an image to itself, because positions add to
    // the gradients of their neighbours.
    void backward(const T *dy, const T *v, const T *z, const T *bank, const T *weight, const T *bias, T *dv, T *dz,
                  T *dbank, T *dweight, T *dbias) const {
        const std::vector<T> rows = padded(bank);
        const int64_t size = s.hidden * N, image = s.height * row_step, context = s.height * s.width * size;
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<T> kappa(together * vectors * W), dkappa(kappa.size()), drows(rows.size());
            std::vector<T> active(together * size);
            Norm<T> norm(size);
#pragma omp for schedule(static)
            for (int64_t number = 0; number < s.batch; ++number) {
                std::fill_n(dv + number * image, image, T(0));
                std::fill(drows.begin(), drows.end(), T(0));
                if (weight) find_norm(z + number * context, weight, bias, norm);
                for (int64_t row = 0; row < s.height; ++row)
                    for (int64_t column = 0; column < s.width; column += together) {
                        const int positions = std::min<int64_t>(together, s.width - column);
                        const int64_t first = row * s.width + column;
                        const T *here = z + number * context + first * size;
                        T *dhere = dz + number * context + first * size;
                        if (weight) {
                            activate(here, positions, norm, active.data());
                            here = active.data();
                        }
                        generate(rows.data(), here, positions, kappa.data());
                        for (int q = 0; q < positions; ++q)
                            spread(dy + number * image + (first + q) * position, v + number * image,
                                   kappa.data() + q * vectors * W, dv + number * image, dkappa.data() + q * vectors * W,
                                   row, column + q);
                        if (positions == together) {
                            find_dz<together>(rows.data(), dkappa.data(), dhere);
                            add_dbank<together>(here, dkappa.data(), drows.data());
                        } else
                            for (int q = 0; q < positions; ++q) {
                                find_dz<1>(rows.data(), dkappa.data() + q * vectors * W, dhere + q * s.hidden * N);
                                add_dbank<1>(here + q * s.hidden * N, dkappa.data() + q * vectors * W, drows.data());
                            }
                        for (int64_t i = 0; weight && i < positions * size; ++i)
                            dhere[i] = here[i] > 0 ? dhere[i] : T(0);
                    }
                if (weight)
                    find_norm_gradients(z + number * context, norm, dz + number * context, dweight + number * s.hidden,
                                        dbias + number * s.hidden);
                for (int64_t m = 0; m <= s.hidden; ++m)
                    std::copy_n(drows.data() + m * vectors * W, taps, dbank + (number * (s.hidden + 1) + m) * taps);
            }
        }
    }
};

template <typename T> struct Call {
    const DynamicShape &s;
    template <typename F> void with_order(F run) const {
        switch (s.order) {
            case 1: return run(Dynamic<T, 1>(s));
            case 2: return run(Dynamic<T, 2>(s));
            case 4: return run(Dynamic<T, 4>(s));
            default:
                if constexpr (Wide<T>::count == 8) return run(Dynamic<T, 8>(s));
        }
    }
};

}  // namespace

extern "C" {

void coattend_dynamic_forward_float(const float *v, const float *z, const float *bank, const float *weight,
                                    const float *bias, float *y, const DynamicShape *s) {
    Call<float>{*s}.with_order([&](const auto &dynamic) { dynamic.forward(v, z, bank, weight, bias, y); });
}

void coattend_dynamic_backward_float(const float *dy, const float *v, const float *z, const float *bank,
                                     const float *weight, const float *bias, float *dv, float *dz, float *dbank,
                                     float *dweight, float *dbias, const DynamicShape *s) {
    Call<float>{*s}.with_order(
        [&](const auto &dynamic) { dynamic.backward(dy, v, z, bank, weight, bias, dv, dz, dbank, dweight, dbias); });
}

void coattend_dynamic_forward_double(const double *v, const double *z, const double *bank, const double *weight,
                                     const double *bias, double *y, const DynamicShape *s) {
    Call<double>{*s}.with_order([&](const auto &dynamic) { dynamic.forward(v, z, bank, weight, bias, y); });
}

void coattend_dynamic_backward_double(const double *dy, const double *v, const double *z, const double *bank,
                                      const double *weight, const double *bias, double *dv, double *dz, double *dbank,
                                      double *dweight, double *dbias, const DynamicShape *s) {
    Call<double>{*s}.with_order(
        [&](const auto &dynamic) { dynamic.backward(dy, v, z, bank, weight, bias, dv, dz, dbank, dweight, dbias); });
}

}  // extern "C"
