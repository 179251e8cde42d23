// A group convolution with co-attention to each slice: responses of a few lines are attended to and summed in the cache,
// and are computed again for the gradients, so that the responses of all slices are never in memory.

#include "slice_rows.h"
#include "slice_tile.h"

namespace {

// (pose, column, channel, tap) in the order of SliceTile, (pose, tap, channel, column), and back.
template <typename Body> void for_filters(const SliceConvShape &s, const Body &body) {
    const int64_t taps = s.kernel * s.kernel;
    int64_t from = 0;
    for (int64_t h = 0; h < s.poses(); ++h)
        for (int64_t column = 0; column < s.columns(); ++column)
            for (int64_t c = 0; c < s.channels; ++c)
                for (int64_t tap = 0; tap < taps; ++tap)
                    body(from++, ((h * taps + tap) * s.channels + c) * s.columns() + column);
}

template <int N>
void convolve(const float *x, const float *bank, const float *matrices, float *y, const SliceConvShape &s) {
    const SliceFactors<N> a(matrices, s.slices);
    std::vector<float> filters(N * s.filter());
    for_filters(s, [&](int64_t i, int64_t k) { filters[k] = bank[i]; });
    const int64_t lines = SliceTile::lines_at_once(s), images = SliceTile::images_at_once(s);
    const int64_t per_image = (s.down() + lines - 1) / lines, groups = (s.images + images - 1) / images;
#pragma omp parallel num_threads(threads_for(s.slices))
    {
        SliceTile tile(s);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < groups * per_image; ++i) {
            const int64_t image = i / per_image * images, first = i % per_image * lines;
            tile.take(x, {image, std::min(images, s.images - image), first, std::min(lines, s.down() - first)});
            tile.convolve(filters.data());
            const SliceSteps steps = {tile.columns, tile.out_pose()};
            for (int64_t m = 0; m < tile.at.images; ++m)
                for (int64_t line = 0; line < tile.at.lines; ++line)
                    attend_slice_rows(&tile.responses[tile.out(0, m, line)], steps, a, s.slices, tile.across,
                                      y + ((image + m) * s.down() + first + line) * tile.across * tile.columns);
        }
    }
}

template <int N>
void differentiate(const float *dy, const float *x, const float *bank, const float *matrices, float *dx, float *dbank,
                   float *dmatrices, const SliceConvShape &s) {
    const SliceFactors<N> a(matrices, s.slices);
    std::vector<float> filters(N * s.filter());
    for_filters(s, [&](int64_t i, int64_t k) { filters[k] = bank[i]; });
    const int64_t lines = SliceTile::lines_at_once(s), images = SliceTile::images_at_once(s);
    const int64_t groups = (s.images + images - 1) / images;
    // Sums are taken in chunks of images that depend on the shape alone.
    const int64_t per_chunk = (groups + 31) / 32, chunks = (groups + per_chunk - 1) / per_chunk;
    const int64_t size = s.columns() * N * N;
    std::vector<float> filter_parts(chunks * filters.size()), matrix_parts(chunks * size);
#pragma omp parallel num_threads(threads_for(s.slices))
    {
        SliceTile tile(s);
        std::vector<float> da(a.sums());
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            float *dmatrix = &matrix_parts[i * size];
            for (int64_t image = i * per_chunk * images; image < std::min((i + 1) * per_chunk * images, s.images);
                 image += images)
                for (int64_t first = 0; first < s.down(); first += lines) {
                    tile.take(x, {image, std::min(images, s.images - image), first, std::min(lines, s.down() - first)});
                    tile.convolve(filters.data());
                    tile.clear_gradients();
                    const SliceSteps steps = {tile.columns, tile.out_pose()};
                    for (int64_t m = 0; m < tile.at.images; ++m)
                        for (int64_t line = 0; line < tile.at.lines; ++line) {
                            const int64_t from = tile.out(0, m, line), position = (image + m) * s.down() + first + line;
                            differentiate_slice_rows(dy + position * tile.across * tile.columns, &tile.responses[from],
                                                     steps, a, s.slices, tile.across, &tile.gradients[from], da.data(),
                                                     dmatrix);
                        }
                    tile.add_filter_gradients(&filter_parts[i * filters.size()]);
                    if (dx) tile.write_image_gradients(filters.data(), dx);
                }
            a.add_sums(da.data(), s.columns(), dmatrix);
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
    switch (s->poses()) {
        case 2: return convolve<2>(x, bank, a, y, *s);
        case 4: return convolve<4>(x, bank, a, y, *s);
        case 8: return convolve<8>(x, bank, a, y, *s);
    }
}
void coattend_slice_conv_backward_float(const float *dy, const float *x, const float *bank, const float *a, float *dx,
                                        float *dbank, float *da, const SliceConvShape *s) {
    switch (s->poses()) {
        case 2: return differentiate<2>(dy, x, bank, a, dx, dbank, da, *s);
        case 4: return differentiate<4>(dy, x, bank, a, dx, dbank, da, *s);
        case 8: return differentiate<8>(dy, x, bank, a, dx, dbank, da, *s);
    }
}
}  // extern "C"
