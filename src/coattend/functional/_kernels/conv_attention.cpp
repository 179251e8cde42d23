// A convolution with co-attention, a norm with known statistics and a ReLU after it, in one pass: for evaluation.
//
// The responses of a few lines are attended to and normalised while they are in the cache.

#include "conv_tile.h"
#include "norm.h"

namespace {

struct ConvAttentionShape {
    NormShape norm;  // of the responses
    ConvShape conv;
};

// Attends to some rows of responses, and normalises them.
template <int N>
void write_rows(const float *x, const Factors<N> &a, const NormShape &norm, const Affine &affine, int64_t rows,
                float *z) {
    const int64_t columns = norm.map.outputs();
    const vec lowest = vec{} + (norm.relu ? 0.f : -INFINITY);
    for (int64_t v = 0; v < columns; v += lanes) {
        const vec scale = load(&affine.scale[v]), shift = load(&affine.shift[v]);
        for_rows<N, true>(x, a, norm.map, {v, rows, lanes}, [&](int64_t r, vec n) {
            const vec h = n * scale + shift;
            store(z + r * columns + v, h < lowest ? lowest : h);
        });
    }
}

template <int N>
void convolve(const float *x, const float *bank, const float *bias, const float *matrices, const float *weight,
              const float *shift, const float *mean, const float *variance, float *z, const ConvAttentionShape &shape) {
    const ConvShape &s = shape.conv;
    const NormShape &norm = shape.norm;
    const Factors<N> a(matrices, norm.map.channels, norm.map);
    const Affine affine(norm.map, norm.map.channels, weight, shift, mean, variance, norm.eps);
    const std::vector<float> filters = filters_of(bank, s);
    for_tiles(s, [&](ConvTile &tile, Lines at) {
        tile.take(x, at);
        tile.convolve(filters.data(), bias);
        for (int64_t m = 0; m < at.images; ++m)
            for (int64_t line = 0; line < at.lines; ++line)
                write_rows(&tile.responses[tile.out(0, m, line)], a, norm, affine, tile.across,
                           z + ((at.image + m) * s.down() + at.first + line) * tile.across * s.columns);
    });
}

}  // namespace

extern "C" {
void coattend_conv_attention_float(const float *x, const float *bank, const float *bias, const float *a,
                                   const float *weight, const float *shift, const float *mean, const float *variance,
                                   float *z, const ConvAttentionShape *s) {
    switch (s->norm.map.order) {
        case 2: return convolve<2>(x, bank, bias, a, weight, shift, mean, variance, z, *s);
        case 4: return convolve<4>(x, bank, bias, a, weight, shift, mean, variance, z, *s);
        case 8: return convolve<8>(x, bank, bias, a, weight, shift, mean, variance, z, *s);
    }
}
}  // extern "C"
