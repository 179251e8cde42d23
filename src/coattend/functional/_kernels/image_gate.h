// The gate of images with one channel and one pose, as Gate: the mean and the maximum over channels are the same map,
// so that the two spatial filters of a turn are one, their sum; and vectors hold positions. Of what forward leaves for
// backward, maps are (2, positions) and responses (turns, positions).

#pragma once

#include "gate.h"

namespace {

template <typename T, typename X> struct ImageGate {
    using Image = Gate<T, X, 1>;
    using Both = typename Image::Both;

    const GateShape &s;
    const Image gate{s};
    const int64_t positions = gate.positions, squared = s.kernel * s.kernel;
    const GateShape row_shape = {s.batch, 1, 1, positions, 1, 1, 1, s.turns, s.kernel, s.chunks, s.threads};
    const Image row{row_shape};  // all positions as the columns of a row

    static bool suits(const GateShape &s) { return s.channels == 1 && s.order == 1; }

    // (turns, 2, k, k) -> (turns, k, k)
    std::vector<T> summed(const T *spatial) const {
        std::vector<T> filters(s.turns * squared);
        for (int64_t t = 0; t < s.turns; ++t)
            for (int64_t i = 0; i < squared; ++i)
                filters[t * squared + i] = spatial[2 * t * squared + i] + spatial[(2 * t + 1) * squared + i];
        return filters;
    }
    // The sum over the lanes of both vectors; narrow ones hold one number.
    T total(const Both &sum) const {
        T result = sum.n[0];
        for (int i = 0; i < Image::W; ++i) result += sum.w[i];
        return result;
    }

    void pool(const X *x, T *statistics) const {
        const T lowest = -std::numeric_limits<T>::infinity();
        Both sum = {}, top = {typename Image::wide{} + lowest, typename Image::narrow{} + lowest}, ties = {};
        row.over_row([&](auto kind, int64_t i) {
            const auto v = Image::get(kind, x + i), before = top.of(kind);
            sum.of(kind) += v;
            ties.of(kind) = v > before ? Image::equal(v, v) : ties.of(kind) + Image::equal(v, before);
            top.of(kind) = Image::maximum(before, v);
        });
        T largest = top.n[0], number = 0;
        for (int i = 0; i < Image::W; ++i) largest = top.w[i] > largest || top.w[i] != top.w[i] ? top.w[i] : largest;
        if (top.n[0] == largest) number += ties.n[0];
        for (int i = 0; i < Image::W; ++i)
            if (top.w[i] == largest) number += ties.w[i];
        statistics[0] = total(sum) / positions, statistics[1] = largest, statistics[2] = number;
    }

    // Images to the inside of a padded plane, and back from a filtered one, line by line.
    void spread(const T *image, T *plane) const {
        for (int64_t y = 0; y < s.height; ++y)
            std::copy_n(image + y * s.width, s.width, plane + gate.filtering.origin + y * gate.filtering.stride);
    }
    void gather(const T *plane, T *image) const {
        for (int64_t y = 0; y < s.height; ++y)
            std::copy_n(plane + y * gate.filtering.stride, s.width, image + y * s.width);
    }

    // alpha_x (positions) from responses (turns, positions).
    void gate_positions(const T *responses, T *alpha_x) const {
        row.over_row([&](auto kind, int64_t i) { Image::put(kind, alpha_x + i, top_of(kind, responses + i)); });
        Image::apply_sigmoid(alpha_x, positions);
    }
    template <typename Kind> INLINE auto top_of(Kind kind, const T *responses) const {
        auto top = Image::get(kind, responses);
        for (int64_t t = 1; t < s.turns; ++t) top = Image::maximum(top, Image::get(kind, responses + t * positions));
        return top;
    }

    void forward(const X *x, const GateWeights<T> &weights, const GateState<T> &state, X *y) const {
        const std::vector<T> filters = summed(weights.spatial);
        const auto &filtering = gate.filtering;
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<T> scratch(s.hidden), alpha_x(positions);
            std::vector<T> plane(filtering.size(1)), filtered(filtering.size(s.turns));
#pragma omp for
            for (int64_t b = 0; b < s.batch; ++b) {
                const X *image = x + b * positions;
                X *to = y + b * positions;
                const GateState<T> at = gate.of_image(state, b);
                pool(image, at.statistics);
                gate.gate_channels(weights, at, scratch.data());
                const T alpha = at.alpha[0];
                row.over_row(
                    [&](auto kind, int64_t i) { Image::put(kind, at.maps + i, alpha * Image::get(kind, image + i)); });
                std::copy_n(at.maps, positions, at.maps + positions);
                spread(at.maps, plane.data());
                Ahead ahead = gate.before(b, x, to);
                filtering.apply(plane.data(), 1, filters.data(), filtered.data(), s.turns, ahead);
                for (int64_t t = 0; t < s.turns; ++t)
                    gather(&filtered[t * filtering.plane], at.responses + t * positions);
                gate_positions(at.responses, alpha_x.data());
                row.over_row([&](auto kind, int64_t i) {
                    const auto open = T(1) - alpha * Image::get(kind, &alpha_x[i]);
                    Image::put(kind, to + i, Image::get(kind, image + i) * open);
                });
            }
        }
    }

    void backward(const X *dy, const X *x, const GateWeights<T> &weights, const GateState<T> &state, X *dx, T *dsqueeze,
                  T *dexcite, T *dspatial) const {
        std::vector<T> filters = summed(weights.spatial);
        for (int64_t t = 0; t < s.turns; ++t) std::reverse(&filters[t * squared], &filters[t * squared] + squared);
        const auto &filtering = gate.filtering;
        const int64_t taps = s.turns * squared, all = 2 * s.hidden + 2 * taps;
        std::vector<T> parts(s.chunks * all);
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<T> alpha_x(positions), dresponses(s.turns * positions), dgated(positions);
            std::vector<T> dhidden(2 * s.hidden), pooled(s.hidden), sums(taps * Image::count);
            std::vector<T> up(filtering.size(s.turns)), plane(filtering.size(1)), filtered(filtering.size(1));
#pragma omp for
            for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
                T *of_squeeze = &parts[chunk * all], *of_excite = of_squeeze + s.hidden;
                T *of_spatial = of_excite + s.hidden;
                std::fill(sums.begin(), sums.end(), T(0));
                for (int64_t b = chunk * s.batch / s.chunks; b < (chunk + 1) * s.batch / s.chunks; ++b) {
                    const X *image = x + b * positions, *above = dy + b * positions;
                    const GateState<T> at = gate.of_image(state, b);
                    const T alpha = at.alpha[0];
                    gate_positions(at.responses, alpha_x.data());
                    T dalpha = through_y(above, image, at, alpha_x.data(), dresponses.data());
                    for (int64_t t = 0; t < s.turns; ++t) spread(&dresponses[t * positions], &up[t * filtering.plane]);
                    spread(at.maps, plane.data());
                    filtering.apply(up.data(), s.turns, filters.data(), filtered.data(), 1);
                    filtering.add_filter_gradients(plane.data(), 1, up.data(), s.turns, sums.data());
                    gather(filtered.data(), dgated.data());

                    Both through = {};
                    row.over_row([&](auto kind, int64_t i) {
                        through.of(kind) += Image::get(kind, image + i) * Image::get(kind, &dgated[i]);
                    });
                    dalpha += total(through);
                    T dstatistics[2];
                    gate.channels_backward(weights, at, &dalpha, dhidden.data(), dstatistics);
                    gate.add_channel_gradients(at, &dalpha, dhidden.data(), pooled.data(), of_squeeze, of_excite);
                    const T largest = at.statistics[1];
                    X *below = dx + b * positions;
                    row.over_row([&](auto kind, int64_t i) {
                        const auto v = Image::get(kind, image + i), open = T(1) - alpha * Image::get(kind, &alpha_x[i]);
                        const auto top = Image::equal(v, v - v + largest) * dstatistics[1];
                        const auto through_gate = alpha * Image::get(kind, &dgated[i]);
                        Image::put(kind, below + i,
                                   Image::get(kind, above + i) * open + through_gate + dstatistics[0] + top);
                    });
                }
                for (int64_t t = 0; t < s.turns; ++t)
                    for (int64_t d = 0; d < squared; ++d) {
                        T sum = 0;
                        for (int i = 0; i < Image::count; ++i) sum += sums[(t * squared + d) * Image::count + i];
                        of_spatial[2 * t * squared + d] = of_spatial[(2 * t + 1) * squared + d] = sum;
                    }
            }
        }
        gate.sum_chunks(parts, s.chunks, {{dsqueeze, s.hidden}, {dexcite, s.hidden}, {dspatial, 2 * taps}});
    }

    // Returns the gradient of the gate of the channel through y, and writes that of the responses.
    T through_y(const X *dy, const X *x, const GateState<T> &at, const T *alpha_x, T *dresponses) const {
        const T alpha = at.alpha[0];
        Both dalpha = {};
        row.over_row([&](auto kind, int64_t i) {
            const auto t = Image::get(kind, dy + i) * Image::get(kind, x + i), gate_x = Image::get(kind, alpha_x + i);
            dalpha.of(kind) -= t * gate_x;
            const auto top = top_of(kind, at.responses + i);
            auto share = -alpha * t * gate_x * (T(1) - gate_x), ties = t - t;
            for (int64_t k = 0; k < s.turns; ++k)
                ties += Image::equal(Image::get(kind, at.responses + k * positions + i), top);
            share /= ties;
            for (int64_t k = 0; k < s.turns; ++k) {
                const auto is_top = Image::equal(Image::get(kind, at.responses + k * positions + i), top);
                Image::put(kind, dresponses + k * positions + i, is_top * share);
            }
        });
        return total(dalpha);
    }
};

}  // namespace
