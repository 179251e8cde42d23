// Maps in channels-last memory format: one row of numbers per position, with all planes (channel, pose) of it.
//
// Numbers are float or bfloat16, sums are float. Sums over positions are taken in chunks that depend on the shape
// alone, so that results do not depend on the number of threads.

#pragma once

#include "tile.h"

#include <cmath>
#include <vector>

namespace {

using L = Lanes<float>;
using vec = L::vec;
using bits = L::bits;
constexpr int lanes = L::count;

struct bfloat16 {
    uint16_t upper;  // of a float
};

typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

INLINE vec load(const float *from) {
    vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
INLINE vec load(const bfloat16 *from) {
    halves h;
    std::memcpy(&h, from, sizeof h);
    return (vec)(__builtin_convertvector(h, words) << 16);
}
INLINE void store(float *to, vec v) { std::memcpy(to, &v, sizeof v); }
// The bits of the nearest bfloat16, ties to even, in the upper halves.
INLINE words nearest(vec v) {
    const words w = (words)v, sum = w + 0x7fff + ((w >> 16) & 1);
    return v != v ? w | 0x400000 : sum;  // a NaN stays one
}
INLINE void store(bfloat16 *to, vec v) {
#ifdef __AVX512BF16__
    const auto h = NATIVE(cvtneps_pbh)(v);
#else
    const halves h = __builtin_convertvector(nearest(v) >> 16, halves);
#endif
    std::memcpy(to, &h, sizeof h);
}

// The last columns of a row may be fewer than the lanes of a vector.
template <bool whole, typename T> INLINE vec get(const T *from, int count) {
    if (whole) return load(from);
#if VECTOR_BYTES == 64
    if constexpr (std::is_same_v<T, float>) return (vec)_mm512_maskz_loadu_ps(__mmask16((1 << count) - 1), from);
#endif
    T values[lanes] = {};
    std::memcpy(values, from, count * sizeof(T));
    return load(values);
}
template <bool whole, typename T> INLINE void put(T *to, vec v, int count) {
    if (whole) return store(to, v);
#if VECTOR_BYTES == 64
    if constexpr (std::is_same_v<T, float>) return _mm512_mask_storeu_ps(to, __mmask16((1 << count) - 1), (__m512)v);
#endif
    T values[lanes];
    store(values, v);
    std::memcpy(to, values, count * sizeof(T));
}

INLINE float number(float value) { return value; }
INLINE float number(bfloat16 value) {
    const uint32_t word = uint32_t(value.upper) << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
}
INLINE void assign(float &to, float value) { to = value; }
INLINE void assign(bfloat16 &to, float value) {
    bfloat16 values[lanes];
    store(values, vec{} + value);
    to = values[0];
}

struct RowShape {
    int64_t rows, channels, slices, order;
    const int64_t *sources;  // the column of (slice, pose) of channel 0 in the input
    int64_t channel_step;    // columns from one channel to the next in the input
    int64_t threads;

    int64_t inputs() const { return channels * slices * order; }
    int64_t outputs() const { return channels * order; }
};

// Neighbouring rows as one, if vectors fill that and not a single row; channel c of it is c % channels of a row.
RowShape side_by_side(const RowShape &s) {
    for (int64_t rows = 1; rows <= lanes; rows *= 2)
        if (rows * s.outputs() % lanes == 0 && s.rows % rows == 0) {
            RowShape wide = s;
            wide.rows /= rows;
            wide.channels *= rows;
            return wide;
        }
    return s;
}

// A part of the rows whose sums are kept apart.
struct Chunks {
    int64_t number, rows, total;

    Chunks(int64_t total, int64_t columns) : total(total) {
        number = std::max<int64_t>(1, std::min<int64_t>({total, 256, total * columns / 16384}));
        rows = (total + number - 1) / number;
        number = rows ? (total + rows - 1) / rows : 0;
    }
    int64_t begin(int64_t i) const { return i * rows; }
    int64_t end(int64_t i) const { return std::min(total, (i + 1) * rows); }
};

// Threads cost more than they save on small maps.
int threads_for(const RowShape &s) { return s.rows * s.inputs() < 16384 ? 1 : int(s.threads); }

int64_t padded(int64_t columns) { return (columns + lanes - 1) / lanes * lanes; }

// Some rows at a time, whose numbers stay in the nearest cache; a multiple of those that attention takes at once.
constexpr int rows_at_once = VECTOR_BYTES == 64 ? 6 : 4;
constexpr int64_t most_rows = 64;
int64_t block_rows(int64_t columns) {
    return std::max<int64_t>(1, std::min(most_rows, 2048 / columns) / rows_at_once) * rows_at_once;
}

// Asks for numbers that the next block needs, or writes, before the processor would wait for them: attention takes one
// vector of each row, which no processor foresees.
template <typename T> INLINE void expect_to_read(const T *from) { __builtin_prefetch(from); }
template <typename T> INLINE void expect_to_write(T *to) { __builtin_prefetch(to, 1); }

// Calls body(whole, first column, number of columns) for every vector of a row.
template <typename Body> INLINE void for_columns(int64_t columns, const Body &body) {
    int64_t v = 0;
    for (; v + lanes <= columns; v += lanes) body(std::true_type(), v, lanes);
    if (v < columns) body(std::false_type(), v, int(columns - v));
}

}  // namespace
