// Dropout of maps in channels-last format, and their planes in another order.

#include "rows.h"

namespace {

// The draws are in the order of the default memory format, so that a seed means the same in either format. Without
// draws `kept` is read instead of written.
struct DropShape {
    int64_t images, pixels, columns;
    int64_t dropped;  // draws below this number
    double factor;
    int64_t threads;
};

template <typename T> void drop(const T *x, const int16_t *draws, uint8_t *kept, T *y, const DropShape &s) {
    constexpr int64_t block = 32;
    const int64_t blocks = (s.pixels + block - 1) / block;
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t i = 0; i < s.images * blocks; ++i) {
        const int64_t image = i / blocks, first = i % blocks * block, end = std::min(s.pixels, first + block);
        for (int64_t c = 0; draws && c < s.columns; ++c) {
            const int16_t *from = draws + (image * s.columns + c) * s.pixels;
            uint8_t *to = kept + image * s.pixels * s.columns + c;
            for (int64_t p = first; p < end; ++p) to[p * s.columns] = from[p] >= s.dropped;
        }
        const int64_t begin = (image * s.pixels + first) * s.columns, last = (image * s.pixels + end) * s.columns;
        for (int64_t k = begin; k < last; ++k) assign(y[k], number(x[k]) * float(kept[k] * s.factor));
    }
}

// Column i of the result is column from[i] of x.
struct OrderShape {
    int64_t rows, columns;
    const int64_t *from;
    int64_t threads;
};

template <typename T> void reorder(const T *x, T *y, const OrderShape &s) {
    const Chunks chunks(s.rows, s.columns);
    const std::vector<int32_t> from(s.from, s.from + s.columns);
#pragma omp parallel for schedule(static) num_threads(s.rows *s.columns < 16384 ? 1 : s.threads)
    for (int64_t i = 0; i < chunks.number; ++i)
        for (int64_t r = chunks.begin(i); r < chunks.end(i); ++r) {
            const T *row = x + r * s.columns;
            T *to = y + r * s.columns;
            for (int64_t c = 0; c < s.columns; ++c) to[c] = row[from[c]];
        }
}

}  // namespace

#define DEFINE(T, name)                                                                                    \
    void coattend_reorder_##name(const T *x, T *y, const OrderShape *s) { reorder(x, y, *s); }             \
    void coattend_drop_##name(const T *x, const int16_t *draws, uint8_t *kept, T *y, const DropShape *s) { \
        drop(x, draws, kept, y, *s);                                                                       \
    }

extern "C" {
DEFINE(float, float)
DEFINE(bfloat16, bfloat16)
}  // extern "C"
