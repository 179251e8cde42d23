// The gradient of a convolution with respect to images of one channel.
//
// Each row of the gradient of the result, the numbers of all planes at a position, is multiplied by the filters, which
// gives what the position adds to each tap of its window. Libraries compute blocks of 16 channels, of which 15 do not exist.

#include "wide_vectors.h"

#include "rows.h"

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

}  // namespace

extern "C" {
void coattend_image_gradient_float(const float *dy, const float *filters, float *dx, const ImageShape *s) {
    image_gradient(dy, filters, dx, *s);
}
void coattend_image_gradient_bfloat16(const bfloat16 *dy, const float *filters, float *dx, const ImageShape *s) {
    image_gradient(dy, filters, dx, *s);
}
}  // extern "C"
