// Maps in the default memory format: each plane, one channel in one pose, is contiguous.
//
// Co-attention is one pass over the map, forward and backward. A plane of `Shape` belongs to one image and one channel:
// `slices` times `order` rows of `pixels` numbers, row (t, g) beginning rows[t * order + g] after the plane. Each slice
// is attended to with its own matrix (source pose, target pose), then the slices are summed. Plain co-attention has one
// slice. The maximum over 2x2 windows follows at the end.

#include "tile.h"

namespace {

struct Shape {
    int64_t batch, channels, slices, order, pixels;
    int64_t batch_step, channel_step;  // between planes of the input
    const int64_t *rows;
    int64_t threads;
};

struct PoolShape {
    int64_t planes, height, width;  // height and width are even
    int64_t threads;
};

// Attends to one image and channel. Returns whether logits and matrices were ordinary; if not, repeat it carefully.
template <typename T, int N, bool careful>
INLINE bool attend_plane(const T *x, const T *matrices, T *y, const Shape &s, int64_t plane, Scratch<T, N> &scratch) {
    using Tile = Tile<T, N, careful>;
    const int n = N ? N : s.order;
    const int64_t whole = s.pixels / Tile::width * Tile::width, channel = plane % s.channels;
    const int rest = s.pixels - whole;
    const T *start = x + plane / s.channels * s.batch_step + channel * s.channel_step;
    const T *from[Tile::most];
    T *to[Tile::most];
    Matrix<T, N> &a = scratch.a;
    Tile tile;
    bool finite = true;
    for (int g = 0; g < n; ++g) to[g] = y + (plane * n + g) * s.pixels;
    for (int t = 0; t < s.slices; ++t) {
        finite &= a.take(matrices + (channel * s.slices + t) * n * n, n);
        for (int g = 0; g < n; ++g) from[g] = start + s.rows[t * n + g];
        if (t == 0)
            for (int64_t p = 0; p < whole; p += Tile::width) tile.attend(from, to, p, a, n, false);
        else
            for (int64_t p = 0; p < whole; p += Tile::width) tile.attend(from, to, p, a, n, true);
        if (rest) {
            Edge<T, N> &in = scratch.in, &out = scratch.below;
            in.clear(n), out.clear(n);
            in.take(from, whole, rest, n);
            if (t > 0) out.take(to, whole, rest, n);
            tile.attend(in.row, out.row, 0, a, n, t > 0);
            out.give(to, whole, rest, n);
        }
    }
    return finite && tile.was_ordinary();
}

template <typename T>
__attribute__((noinline)) void attend_carefully(const T *x, const T *matrices, T *y, const Shape &s, int64_t plane) {
    Room<T, 0> room;
    attend_plane<T, 0, true>(x, matrices, y, s, plane, room.get());
}

template <typename T, int N> void forward(const T *x, const T *matrices, T *y, const Shape &s) {
    ask_for_large_pages(y, s.batch * s.channels * s.order * s.pixels * sizeof(T));
#pragma omp parallel num_threads(s.threads)
    {
        Room<T, N> room;
#pragma omp for schedule(static)
        for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
            if (!attend_plane<T, N, false>(x, matrices, y, s, plane, room.get()))
                attend_carefully(x, matrices, y, s, plane);
    }
}

// As attend_plane. The caller sums dmatrices (batch, channels, slices, order, order) over the batch, so that the result
// does not depend on the number of threads.
template <typename T, int N, bool careful>
INLINE bool find_plane_gradients(const T *dy, const T *x, const T *matrices, T *dx, T *dmatrices, const Shape &s,
                                 int64_t plane, Scratch<T, N> &scratch) {
    using Tile = Tile<T, N, careful>;
    using vec = typename Tile::vec;
    const int n = N ? N : s.order;
    const int64_t whole = s.pixels / Tile::width * Tile::width, channel = plane % s.channels;
    const int rest = s.pixels - whole;
    const int64_t start = plane / s.channels * s.batch_step + channel * s.channel_step;
    const T *from[Tile::most], *up[Tile::most];
    T *down[Tile::most];
    Matrix<T, N> &a = scratch.a;
    Tile tile;
    vec *da = scratch.da;
    bool finite = true;
    for (int g = 0; g < n; ++g) up[g] = dy + (plane * n + g) * s.pixels;
    for (int t = 0; t < s.slices; ++t) {
        finite &= a.take(matrices + (channel * s.slices + t) * n * n, n);
        std::memset((void *)da, 0, n * n * sizeof(vec));
        for (int g = 0; g < n; ++g) {
            from[g] = x + start + s.rows[t * n + g];
            down[g] = dx + start + s.rows[t * n + g];
        }
        for (int64_t p = 0; p < whole; p += Tile::width) tile.find_gradients(from, up, down, p, a, da, n);
        if (rest) {
            Edge<T, N> &in = scratch.in, &above = scratch.above, &below = scratch.below;
            in.clear(n), above.clear(n), below.clear(n);
            in.take(from, whole, rest, n);
            above.take(up, whole, rest, n);
            tile.find_gradients(in.row, above.row, below.row, 0, a, da, n);
            below.give(down, whole, rest, n);
        }
        T *to = dmatrices + (plane * s.slices + t) * n * n;
        for (int i = 0; i < n * n; ++i) {
            T sum = 0;
            for (int k = 0; k < Lanes<T>::count; ++k) sum += da[i][k];
            to[i] = sum / n;
        }
    }
    return finite && tile.was_ordinary();
}

template <typename T>
__attribute__((noinline)) void find_gradients_carefully(const T *dy, const T *x, const T *matrices, T *dx, T *dmatrices,
                                                        const Shape &s, int64_t plane) {
    Room<T, 0> room;
    find_plane_gradients<T, 0, true>(dy, x, matrices, dx, dmatrices, s, plane, room.get());
}

template <typename T, int N>
void backward(const T *dy, const T *x, const T *matrices, T *dx, T *dmatrices, const Shape &s) {
    ask_for_large_pages(dx, s.batch * s.batch_step * sizeof(T));
#pragma omp parallel num_threads(s.threads)
    {
        Room<T, N> room;
#pragma omp for schedule(static)
        for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
            if (!find_plane_gradients<T, N, false>(dy, x, matrices, dx, dmatrices, s, plane, room.get()))
                find_gradients_carefully(dy, x, matrices, dx, dmatrices, s, plane);
    }
}

// The maximum over 2x2 windows, and its gradient, which equal maxima share evenly. Compilers vectorise these loops.
template <typename T> INLINE T larger(T a, T b) { return a > b || a != a ? a : b; }  // NaN if one of them is

template <typename T> void pool_forward(const T *x, T *y, const PoolShape &s) {
    const int64_t height = s.height / 2, width = s.width / 2;
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t line = 0; line < s.planes * height; ++line) {
        const T *__restrict__ upper = x + (line / height * s.height + line % height * 2) * s.width;
        const T *__restrict__ lower = upper + s.width;
        T *__restrict__ to = y + line * width;
        for (int64_t j = 0; j < width; ++j)
            to[j] = larger(larger(upper[2 * j], upper[2 * j + 1]), larger(lower[2 * j], lower[2 * j + 1]));
    }
}

template <typename T> void pool_backward(const T *dy, const T *x, T *dx, const PoolShape &s) {
    const int64_t height = s.height / 2, width = s.width / 2;
    ask_for_large_pages(dx, s.planes * s.height * s.width * sizeof(T));
#pragma omp parallel for schedule(static) num_threads(s.threads)
    for (int64_t line = 0; line < s.planes * height; ++line) {
        const int64_t start = (line / height * s.height + line % height * 2) * s.width;
        const T *__restrict__ upper = x + start, *__restrict__ lower = upper + s.width;
        const T *__restrict__ from = dy + line * width;
        T *__restrict__ to_upper = dx + start, *__restrict__ to_lower = to_upper + s.width;
        for (int64_t j = 0; j < width; ++j) {
            const T a = upper[2 * j], b = upper[2 * j + 1], c = lower[2 * j], d = lower[2 * j + 1];
            const T top = larger(larger(a, b), larger(c, d));
            const T share = from[j] / (T(a == top) + T(b == top) + T(c == top) + T(d == top));
            to_upper[2 * j] = a == top ? share : T(0);
            to_upper[2 * j + 1] = b == top ? share : T(0);
            to_lower[2 * j] = c == top ? share : T(0);
            to_lower[2 * j + 1] = d == top ? share : T(0);
        }
    }
}

}  // namespace

extern "C" {

int64_t coattend_largest_order() { return largest_order; }

void coattend_forward_float(const float *x, const float *matrices, float *y, const Shape *s) {
    switch (s->order) {
        case 2: return forward<float, 2>(x, matrices, y, *s);
        case 4: return forward<float, 4>(x, matrices, y, *s);
        case 8: return forward<float, 8>(x, matrices, y, *s);
        default: return forward<float, 0>(x, matrices, y, *s);
    }
}

void coattend_backward_float(const float *dy, const float *x, const float *matrices, float *dx, float *dmatrices,
                             const Shape *s) {
    switch (s->order) {
        case 2: return backward<float, 2>(dy, x, matrices, dx, dmatrices, *s);
        case 4: return backward<float, 4>(dy, x, matrices, dx, dmatrices, *s);
        case 8: return backward<float, 8>(dy, x, matrices, dx, dmatrices, *s);
        default: return backward<float, 0>(dy, x, matrices, dx, dmatrices, *s);
    }
}

void coattend_forward_double(const double *x, const double *matrices, double *y, const Shape *s) {
    forward<double, 0>(x, matrices, y, *s);
}

void coattend_backward_double(const double *dy, const double *x, const double *matrices, double *dx, double *dmatrices,
                              const Shape *s) {
    backward<double, 0>(dy, x, matrices, dx, dmatrices, *s);
}

void coattend_pool_forward_float(const float *x, float *y, const PoolShape *s) { pool_forward(x, y, *s); }
void coattend_pool_forward_double(const double *x, double *y, const PoolShape *s) { pool_forward(x, y, *s); }

void coattend_pool_backward_float(const float *dy, const float *x, float *dx, const PoolShape *s) {
    pool_backward(dy, x, dx, *s);
}

void coattend_pool_backward_double(const double *dy, const double *x, double *dx, const PoolShape *s) {
    pool_backward(dy, x, dx, *s);
}

}  // extern "C"
