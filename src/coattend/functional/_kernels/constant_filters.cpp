// Convolution of every plane with a filter of its own, the same at all positions, forward and backward.
//
//     y[p](u) = sum_d filters[d, p] v[p](u + d)
//
// Libraries take ten times as long for the gradients, in bfloat16 thirty times. Vectors run over planes. A vector of
// planes of one image is copied to a buffer with zeros around the image, so that a tap is one offset for all positions:
// position (y, x) is filtered at y * stride + x, and reads from there + dy * stride + dx. The zeros to the right of a
// line are those to the left of the next one.

#include "wide_vectors.h"

#include "taps.h"

namespace {

struct ConstantShape {
    int64_t batch, height, width, planes, columns, kernel, threads;  // columns: planes of the filters, with padding
};

template <typename T> struct ConstantFilters {
    static constexpr int together = 8;  // positions, whose sums are in registers

    const ConstantShape &s;
    const int64_t half = s.kernel / 2, stride = s.width + half, length = (s.height - 1) * stride + s.width;
    const int64_t origin = half * (stride + 1);                                     // of the image in a buffer
    const int64_t size = (s.height + s.kernel - 1) * stride + s.kernel + together;  // the last sums read beyond
    const int64_t taps = s.kernel * s.kernel, columns = s.columns, image = s.height * s.width * s.planes;
    const int64_t vectors = padded(s.planes) / lanes;
    const int threads = s.batch * image < 16384 ? 1 : int(s.threads);  // they cost more than they save on small maps

    // From (positions, planes) to the buffer, whose zeros are never written.
    template <bool whole> INLINE void spread(const T *rows, int count, vec *to) const {
        for (int64_t y = 0; y < s.height; ++y)
            for (int64_t x = 0; x < s.width; ++x, rows += s.planes)
                to[origin + y * stride + x] = get<whole>(rows, count);
    }

    // filters (taps, columns), the last tap first if flipped.
    template <bool whole, int K, bool flipped>
    INLINE void filter(const vec *from, const float *filters, int count, vec *sums, T *rows) const {
        const int64_t k = K ? K : s.kernel;
        for (int64_t q = 0; q < length; q += together) {
            vec sum[together] = {};
            for (int64_t i = 0, tap = 0; i < k; ++i)
                for (int64_t j = 0; j < k; ++j, ++tap) {
                    const vec weight = load(filters + (flipped ? k * k - 1 - tap : tap) * columns);
                    const vec *line = from + q + i * stride + j;
#pragma GCC unroll 8
                    for (int c = 0; c < together; ++c) sum[c] += weight * line[c];
                }
            std::memcpy(sums + q, sum, sizeof sum);
        }
        for (int64_t y = 0; y < s.height; ++y)
            for (int64_t x = 0; x < s.width; ++x, rows += s.planes) put<whole>(rows, sums[y * stride + x], count);
    }

    // The gradients of R x C neighbouring taps, given the buffers of the filtered planes and of the gradients above.
    template <int R, int C> INLINE void some_gradients(const vec *from, const vec *up, float *gradients) const {
        vec sum[R][C] = {};
        for (int64_t y = 0; y < s.height; ++y)
            for (int64_t x = 0; x < s.width; ++x) {
                const vec above = up[origin + y * stride + x];
                const vec *line = from + y * stride + x;
#pragma GCC unroll 8
                for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
                    for (int j = 0; j < C; ++j) sum[i][j] += above * line[i * stride + j];
            }
        for (int i = 0; i < R; ++i)
            for (int j = 0; j < C; ++j) store(gradients + (i * s.kernel + j) * columns, sum[i][j]);
    }

    // Calls body(whether the vector is whole, image, first plane, number of planes) for vector i of all images.
    template <typename Body> INLINE void with_vector(int64_t i, const Body &body) const {
        const int64_t first = i % vectors * lanes, rest = s.planes - first;
        if (rest >= lanes)
            body(std::true_type(), i / vectors, first, lanes);
        else
            body(std::false_type(), i / vectors, first, int(rest));
    }

    template <int K> void forward(const T *v, const float *filters, T *y) const {
#pragma omp parallel num_threads(threads)
        {
            std::vector<vec> planes(size), sums(length + together);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < s.batch * vectors; ++i)
                with_vector(i, [&](auto is_whole, int64_t b, int64_t first, int count) {
                    constexpr bool whole = decltype(is_whole)::value;
                    spread<whole>(v + b * image + first, count, planes.data());
                    filter<whole, K, false>(planes.data(), filters + first, count, sums.data(), y + b * image + first);
                });
        }
    }

    // dfilters is (batch, taps, columns): the caller sums over the batch, so that the result does not depend on the
    // number of threads.
    template <int K> void backward(const T *dy, const T *v, const float *filters, T *dv, float *dfilters) const {
#pragma omp parallel num_threads(threads)
        {
            std::vector<vec> planes(size), up(size), sums(length + together);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < s.batch * vectors; ++i)
                with_vector(i, [&](auto is_whole, int64_t b, int64_t first, int count) {
                    constexpr bool whole = decltype(is_whole)::value;
                    spread<whole>(v + b * image + first, count, planes.data());
                    spread<whole>(dy + b * image + first, count, up.data());
                    filter<whole, K, true>(up.data(), filters + first, count, sums.data(), dv + b * image + first);
                    for_tap_blocks<K>(s.kernel, [&](auto R, auto C, int64_t i, int64_t j) {
                        some_gradients<R.value, C.value>(planes.data() + i * stride + j, up.data(),
                                                         dfilters + (b * taps + i * s.kernel + j) * columns + first);
                    });
                });
        }
    }
};

template <typename T> void constant_forward(const T *v, const float *filters, T *y, const ConstantShape &s) {
    const ConstantFilters<T> layer{s};
    with_kernel(s.kernel, [&](auto k) { layer.template forward<k.value>(v, filters, y); });
}
template <typename T>
void constant_backward(const T *dy, const T *v, const float *filters, T *dv, float *dfilters, const ConstantShape &s) {
    const ConstantFilters<T> layer{s};
    with_kernel(s.kernel, [&](auto k) { layer.template backward<k.value>(dy, v, filters, dv, dfilters); });
}

}  // namespace

extern "C" {
void coattend_constant_forward_float(const float *v, const float *filters, float *y, const ConstantShape *s) {
    constant_forward(v, filters, y, *s);
}
void coattend_constant_forward_bfloat16(const bfloat16 *v, const float *filters, bfloat16 *y, const ConstantShape *s) {
    constant_forward(v, filters, y, *s);
}
void coattend_constant_backward_float(const float *dy, const float *v, const float *filters, float *dv, float *dfilters,
                                      const ConstantShape *s) {
    constant_backward(dy, v, filters, dv, dfilters, *s);
}
void coattend_constant_backward_bfloat16(const bfloat16 *dy, const bfloat16 *v, const float *filters, bfloat16 *dv,
                                         float *dfilters, const ConstantShape *s) {
    constant_backward(dy, v, filters, dv, dfilters, *s);
}
}  // extern "C"
