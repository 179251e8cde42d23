// A group convolution with co-attention to each slice: responses of a few lines are attended to and summed in the cache,
// and are computed again for the gradients, so that the responses of all slices are never in memory.

#include "conv_tile.h"
#include "slice_rows.h"

namespace {

struct SliceConvShape {
    RowShape slices;  // of the responses
    ConvShape conv;
};

template <int N>
void convolve(const float *x, const float *bank, const float *matrices, float *y, const SliceConvShape &shape) {
    const ConvShape &s = shape.conv;
    const SliceFactors<N> a(matrices, shape.slices);
    const std::vector<float> filters = filters_of(bank, s), zeros(s.columns);
    for_tiles(s, [&](ConvTile &tile, Lines at) {
        tile.take(x, at);
        tile.convolve(filters.data(), zeros.data());
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t line = 0; line < at.lines; ++line)
                attend_slice_rows(&tile.responses[tile.out(0, m, line)], {s.columns, tile.out_pose()}, a, shape.slices,
                                  tile.across,
                                  y + ((at.image + m) * s.down() + at.first + line) * tile.across * s.columns);
    });
}

template <int N>
void differentiate(const float *dy, const float *x, const float *bank, const float *matrices, float *dx, float *dbank,
                   float *dmatrices, const SliceConvShape &shape) {
    const ConvShape &s = shape.conv;
    const SliceFactors<N> a(matrices, shape.slices);
    const std::vector<float> filters = filters_of(bank, s), zeros(s.columns);
    const int64_t lines = ConvTile::lines_at_once(s), images = ConvTile::images_at_once(s);
    const int64_t groups = (s.images + images - 1) / images;
    // Sums are taken in chunks of images that depend on the shape alone.
    const int64_t per_chunk = (groups + 31) / 32, chunks = (groups + per_chunk - 1) / per_chunk;
    const int64_t size = s.columns * N * N;
    std::vector<float> filter_parts(chunks * filters.size()), matrix_parts(chunks * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        ConvTile tile(s);
        std::vector<float> da(a.sums());
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            float *dmatrix = &matrix_parts[i * size];
            for (int64_t image = i * per_chunk * images; image < std::min((i + 1) * per_chunk * images, s.images);
                 image += images)
                for (int64_t first = 0; first < s.down(); first += lines) {
                    tile.take(x, {image, std::min(images, s.images - image), first, std::min(lines, s.down() - first)});
                    tile.convolve(filters.data(), zeros.data());
                    tile.clear_gradients();
                    const SliceSteps steps = {tile.columns, tile.out_pose()};
                    for (int64_t m = 0; m < tile.at.images; ++m)
                        for (int64_t line = 0; line < tile.at.lines; ++line) {
                            const int64_t from = tile.out(0, m, line), position = (image + m) * s.down() + first + line;
                            differentiate_slice_rows(dy + position * tile.across * tile.columns, &tile.responses[from],
                                                     steps, a, shape.slices, tile.across, &tile.gradients[from], da.data(),
                                                     dmatrix);
                        }
                    tile.add_filter_gradients(&filter_parts[i * filters.size()]);
                    tile.write_image_gradients(filters.data(), dx);
                }
            a.add_sums(da.data(), s.columns, dmatrix);
        }
    }
    add_parts(matrix_parts, size, dmatrices);
    std::vector<float> sums(filters.size());
    add_parts(filter_parts, sums.size(), sums.data());
    for_filters(s, [&](int64_t i, int64_t k) { dbank[i] = sums[k]; });
}

}  // namespace

extern "C" {
void coattend_slice_conv_forward_float(const float *x, const float *bank, const float *a, float *y,
                                       const SliceConvShape *s) {
    switch (s->conv.poses) {
        case 2: return convolve<2>(x, bank, a, y, *s);
        case 4: return convolve<4>(x, bank, a, y, *s);
        case 8: return convolve<8>(x, bank, a, y, *s);
    }
}
void coattend_slice_conv_backward_float(const float *dy, const float *x, const float *bank, const float *a, float *dx,
                                        float *dbank, float *da, const SliceConvShape *s) {
    switch (s->conv.poses) {
        case 2: return differentiate<2>(dy, x, bank, a, dx, dbank, da, *s);
        case 4: return differentiate<4>(dy, x, bank, a, dx, dbank, da, *s);
        case 8: return differentiate<8>(dy, x, bank, a, dx, dbank, da, *s);
    }
}
}  // extern "C"
