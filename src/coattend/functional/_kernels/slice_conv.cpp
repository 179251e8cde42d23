// A group convolution with co-attention to each slice: responses of a few lines are attended to and summed in the
// cache, and are computed again for the gradients, so that the responses of all slices are never in memory.

#include "wide_vectors.h"

#include "conv_gradients.h"
#include "slice_rows.h"

namespace {

struct SliceConvShape {
    RowShape slices;  // of the responses
    ConvShape conv;
};

template <int N, typename T>
void convolve(const T *x, const float *bank, const float *matrices, T *y, const SliceConvShape &shape) {
    const ConvShape &s = shape.conv;
    const SliceFactors<N> a(matrices, shape.slices);
    const std::vector<T> filters = filters_of<T>(bank, s);
    const std::vector<float> zeros(s.columns);
    Tiles(s).for_each(x, [&](ConvTile<T> &tile, int64_t) {
        tile.convolve(filters.data(), zeros.data());
        tile.for_lines([&](const float *responses, int64_t position) {
            attend_slice_rows(responses, {s.columns, tile.out_pose()}, a, shape.slices, tile.across,
                              y + position * s.columns);
        });
    });
}

template <int N, typename T>
void differentiate(const T *dy, const T *x, const float *bank, const float *matrices, T *dx, float *dbank,
                   float *dmatrices, const SliceConvShape &shape) {
    const ConvShape &s = shape.conv;
    const SliceFactors<N> a(matrices, shape.slices);
    const std::vector<T> filters = filters_of<T>(bank, s);
    const std::vector<float> zeros(s.columns);
    const ImageFilters<T> image_filters(bank, s);
    const Tiles tiles(s);
    const int64_t groups = tiles.number / tiles.per_image;
    // Sums are taken in chunks of images that depend on the shape alone.
    const int64_t per_chunk = (groups + 31) / 32, chunks = (groups + per_chunk - 1) / per_chunk;
    const int64_t size = s.columns * N * N, numbers = N * s.columns * s.channels * s.taps();
    std::vector<float> filter_parts(chunks * numbers), matrix_parts(chunks * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        TileGradients<T> gradients(s);
        ConvTile<T> &tile = gradients.tile;
        std::vector<float> da(a.sums());
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            float *dmatrix = &matrix_parts[i * size];
            const int64_t last = std::min((i + 1) * per_chunk, groups) * tiles.per_image;
            for (int64_t number = i * per_chunk * tiles.per_image; number < last; ++number) {
                tile.take(x, tiles.at(number));
                tile.convolve(filters.data(), zeros.data());
                gradients.expect();
                tile.for_lines([&](const float *responses, int64_t position) {
                    differentiate_slice_rows(
                        dy + position * s.columns, responses, {s.columns, tile.out_pose()}, a, shape.slices,
                        tile.across, &gradients.of_responses[responses - tile.responses.data()], da.data(), dmatrix);
                });
                gradients.add_filter_gradients(&filter_parts[i * numbers]);
                gradients.template write_image_gradients<N>(image_filters, dx);
            }
            a.add_sums(da.data(), s.columns, dmatrix);
        }
    }
    add_parts(matrix_parts, size, dmatrices);
    std::vector<float> sums(numbers);
    add_parts(filter_parts, numbers, sums.data());
    for_filters(s, [&](int64_t i, int64_t h, int64_t column, int64_t c, int64_t tap) {
        dbank[i] = sums[((h * s.taps() + tap) * s.channels + c) * s.columns + column];
    });
}

}  // namespace

#define DEFINE(T, name)                                                                                         \
    void coattend_slice_conv_forward_##name(const T *x, const float *bank, const float *a, T *y,                \
                                            const SliceConvShape *s) {                                          \
        switch (s->conv.poses) {                                                                                \
            case 2: return convolve<2>(x, bank, a, y, *s);                                                      \
            case 4: return convolve<4>(x, bank, a, y, *s);                                                      \
            case 8: return convolve<8>(x, bank, a, y, *s);                                                      \
        }                                                                                                       \
    }                                                                                                           \
    void coattend_slice_conv_backward_##name(const T *dy, const T *x, const float *bank, const float *a, T *dx, \
                                             float *dbank, float *da, const SliceConvShape *s) {                \
        switch (s->conv.poses) {                                                                                \
            case 2: return differentiate<2>(dy, x, bank, a, dx, dbank, da, *s);                                 \
            case 4: return differentiate<4>(dy, x, bank, a, dx, dbank, da, *s);                                 \
            case 8: return differentiate<8>(dy, x, bank, a, dx, dbank, da, *s);                                 \
        }                                                                                                       \
    }

extern "C" {
// Whether the processor adds products of bfloat16 by instructions of its own.
int64_t coattend_multiplies_bfloat16() {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
