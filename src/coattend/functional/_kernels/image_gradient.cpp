// The gradients of a convolution of images of one channel, with respect to the images and to the filters.
//
// Each row of the gradient of the result, the numbers of all planes at a position, is multiplied by the filters, which
// gives what the position adds to each tap of its window; multiplied by each number of the window, it is what the
// position adds to the gradient of that tap. Libraries compute blocks of 16 channels, of which 15 do not exist.

#include "wide_vectors.h"

#include "taps.h"

namespace {

struct ImageShape {
    int64_t batch, height, width, planes, kernel, stride, padding, dilation, threads;
    int64_t taps;  // of a filter, with zeros up to whole vectors

    // The image with its padding, which gets a gradient too, and is then left out.
    int64_t line() const { return width + 2 * padding; }
    int64_t lines() const { return height + 2 * padding; }
    int64_t across(int64_t size) const { return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1; }
};

// K rows times filters (planes, taps): the first vector of taps of each row.
template <int K, typename X> INLINE void products(const X *rows, const float *filters, const ImageShape &s, vec *sum) {
    for (int k = 0; k < K; ++k) sum[k] = vec{};
    for (int64_t c = 0; c < s.planes; ++c, filters += s.taps) {
        const vec weights = load(filters);
        for (int k = 0; k < K; ++k) sum[k] += weights * number(rows[k * s.planes + c]);
    }
}

// Adds the products of a position (taps) to its window.
INLINE void add_window(const float *taps, const ImageShape &s, float *window) {
    for (int64_t i = 0; i < s.kernel; ++i, window += s.dilation * s.line())
        for (int64_t j = 0; j < s.kernel; ++j) window[j * s.dilation] += *taps++;
}

template <typename X> void image_gradient(const X *dy, const float *filters, float *dx, const ImageShape &s) {
    constexpr int K = 8;
    const int64_t across = s.across(s.width), down = s.across(s.height), taps = s.taps;
#pragma omp parallel num_threads(s.threads)
    {
        std::vector<float> image(s.line() * s.lines()), found(K * taps);
#pragma omp for
        for (int64_t b = 0; b < s.batch; ++b) {
            std::fill(image.begin(), image.end(), 0.f);
            for (int64_t y = 0; y < down; ++y)
                for (int64_t x = 0; x < across;) {
                    const X *rows = dy + ((b * down + y) * across + x) * s.planes;
                    const int64_t some = across - x < K ? 1 : K;
                    for (int64_t t = 0; t < taps; t += lanes) {
                        vec sum[K];
                        if (some == K)
                            products<K>(rows, filters + t, s, sum);
                        else
                            products<1>(rows, filters + t, s, sum);
                        for (int64_t k = 0; k < some; ++k) store(&found[k * taps + t], sum[k]);
                    }
                    for (int64_t k = 0; k < some; ++k, ++x)
                        add_window(&found[k * taps], s, &image[(y * s.line() + x) * s.stride]);
                }
            for (int64_t y = 0; y < s.height; ++y)
                std::memcpy(dx + (b * s.height + y) * s.width, &image[(y + s.padding) * s.line() + s.padding],
                            s.width * sizeof(float));
        }
    }
}

// Sums for a vector of planes, `taps` vectors: R x C taps at a time stay in registers over a line.
template <typename X> struct FilterGradients {
    const ImageShape &s;
    const int64_t across = s.across(s.width), down = s.across(s.height), vectors = padded(s.planes) / lanes;

    // The first plane of a vector. The last vector overlaps the one before, and its first sums are left out.
    int64_t first(int64_t v) const { return std::max<int64_t>(0, std::min(v * lanes, s.planes - lanes)); }

    template <bool whole, int R, int C> INLINE void some_taps(const X *rows, const float *window, vec *sums) const {
        vec sum[R][C];
        for (int i = 0; i < R; ++i) std::memcpy(sum[i], sums + i * s.kernel, sizeof sum[i]);
        for (int64_t x = 0; x < across; ++x, rows += s.planes, window += s.stride) {
            const vec above = get<whole>(rows, int(s.planes));
#pragma GCC unroll 8
            for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
                for (int j = 0; j < C; ++j) sum[i][j] += above * window[(i * s.line() + j) * s.dilation];
        }
        for (int i = 0; i < R; ++i) std::memcpy(sums + i * s.kernel, sum[i], sizeof sum[i]);
    }

    template <bool whole> INLINE void line(const X *rows, const float *window, vec *sums) const {
        vec of_bias = sums[s.kernel * s.kernel];
        for (int64_t x = 0; x < across; ++x) of_bias += get<whole>(rows + x * s.planes, int(s.planes));
        sums[s.kernel * s.kernel] = of_bias;
        with_kernel(s.kernel, [&](auto k) {
            for_tap_blocks<k.value>(s.kernel, [&](auto R, auto C, int64_t i, int64_t j) {
                some_taps<whole, R.value, C.value>(rows, window + (i * s.line() + j) * s.dilation,
                                                   sums + i * s.kernel + j);
            });
        });
    }

    // results (batch, taps + 1, planes): the caller sums over the batch, so that they do not depend on the number of
    // threads. The last of each image is the gradient of the bias.
    void run(const X *dy, const float *images, float *results) const {
        const int64_t sums = s.kernel * s.kernel + 1;
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<float> image(s.line() * s.lines());
            std::vector<vec> found(vectors * sums);
#pragma omp for
            for (int64_t b = 0; b < s.batch; ++b) {
                std::fill(found.begin(), found.end(), vec{});
                for (int64_t y = 0; y < s.height; ++y)
                    std::memcpy(&image[(y + s.padding) * s.line() + s.padding], images + (b * s.height + y) * s.width,
                                s.width * sizeof(float));
                for (int64_t y = 0; y < down; ++y)
                    for (int64_t v = 0; v < vectors; ++v) {
                        const X *rows = dy + (b * down + y) * across * s.planes + first(v);
                        const float *window = &image[y * s.stride * s.line()];
                        if (s.planes < lanes)
                            line<false>(rows, window, &found[v * sums]);
                        else
                            line<true>(rows, window, &found[v * sums]);
                    }
                for (int64_t v = 0; v < vectors; ++v)
                    for (int64_t i = 0; i < sums; ++i)
                        for (int64_t c = v * lanes; c < std::min((v + 1) * lanes, s.planes); ++c)
                            results[(b * sums + i) * s.planes + c] = found[v * sums + i][c - first(v)];
            }
        }
    }
};

}  // namespace

extern "C" {
void coattend_image_filters_float(const float *dy, const float *images, float *results, const ImageShape *s) {
    FilterGradients<float>{*s}.run(dy, images, results);
}
void coattend_image_filters_bfloat16(const bfloat16 *dy, const float *images, float *results, const ImageShape *s) {
    FilterGradients<bfloat16>{*s}.run(dy, images, results);
}
void coattend_image_gradient_float(const float *dy, const float *filters, float *dx, const ImageShape *s) {
    image_gradient(dy, filters, dx, *s);
}
void coattend_image_gradient_bfloat16(const bfloat16 *dy, const float *filters, float *dx, const ImageShape *s) {
    image_gradient(dy, filters, dx, *s);
}
}  // extern "C"
