// Co-attention of slices of maps in channels-last format, and the sum over the slices.
//
// The planes of the input are ordered (input pose h, channel, slice t), and there is a slice for every pose; any other
// order goes through tiles of positions.

#include "slice_rows.h"

namespace {

template <int N, typename T> void attend_slices(const T *x, const float *matrices, T *y, const RowShape &s) {
    const SliceFactors<N> a(matrices, s);
    const Chunks chunks(s.rows, s.inputs());
    const int64_t block = block_rows(s.inputs());
    const SliceSteps steps = {s.inputs(), s.outputs()};
#pragma omp parallel for schedule(static) num_threads(threads_for(s))
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
            attend_slice_rows(x + p * s.inputs(), steps, a, s, std::min(block, chunks.end(i) - p), y + p * s.outputs());
}

template <int N, typename T>
void differentiate_slices(const T *dy, const T *x, const float *matrices, T *dx, float *dmatrices, const RowShape &s) {
    const SliceFactors<N> a(matrices, s);
    const Chunks chunks(s.rows, s.inputs());
    const int64_t block = block_rows(s.inputs()), size = s.outputs() * N * N;
    const SliceSteps steps = {s.inputs(), s.outputs()};
    std::vector<float> parts(chunks.number * size);
#pragma omp parallel num_threads(threads_for(s))
    {
        std::vector<float> da(a.sums());
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks.number; ++i) {
            std::fill(da.begin(), da.end(), 0.f);
            for (int64_t p = chunks.begin(i); p < chunks.end(i); p += block)
                differentiate_slice_rows(dy + p * s.outputs(), x + p * s.inputs(), steps, a, s,
                                         std::min(block, chunks.end(i) - p), dx + p * s.inputs(), da.data(),
                                         &parts[i * size]);
            a.add_sums(da.data(), s.outputs(), &parts[i * size]);
        }
    }
    add_parts(parts, size, dmatrices);
}

// Whether they are ordered as attend_slices expects.
bool is_by_input_pose(const RowShape &s) {
    const int64_t n = s.order;
    if (s.slices != n || s.channel_step != n) return false;
    for (int64_t t = 0; t < n; ++t)
        for (int64_t g = 0; g < n; ++g)
            if (s.sources[t * n + g] % s.outputs() != t) return false;
    return true;
}

}  // namespace

#define DEFINE(T, name)                                                                                              \
    void coattend_slices_forward_##name(const T *x, const float *a, T *y, const RowShape *s) {                       \
        FOR_ORDER(is_by_input_pose(*s) ? s->order : 0, attend_slices<2>(x, a, y, *s), attend_slices<4>(x, a, y, *s), \
                  attend_slices<8>(x, a, y, *s), attend_any(x, a, y, *s))                                            \
    }                                                                                                                \
    void coattend_slices_backward_##name(const T *dy, const T *x, const float *a, T *dx, float *da,                  \
                                         const RowShape *s) {                                                        \
        FOR_ORDER(is_by_input_pose(*s) ? s->order : 0, differentiate_slices<2>(dy, x, a, dx, da, *s),                \
                  differentiate_slices<4>(dy, x, a, dx, da, *s), differentiate_slices<8>(dy, x, a, dx, da, *s),      \
                  differentiate_any(dy, x, a, dx, da, *s))                                                           \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
