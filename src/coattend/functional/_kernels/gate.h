// Gates of channels and positions, forward and backward, image by image or for a vector's length of small images at
// once, so that the passes after the first read from the cache.
//
//     y[c, g](u) = x[c, g](u) (1 - alpha_x[g](u) alpha_c[c, g])
//
// Maps are (batch, positions, channels, group): a row holds the numbers of a position. They are float, double or
// bfloat16; everything else is float or double. Equal maxima share their gradient evenly, as in torch.amax.

#pragma once

#include "batch_filtering.h"
#include "numbers.h"

#include <initializer_list>
#include <limits>
#include <utility>

namespace {

struct GateShape {
    int64_t batch, height, width, channels, order, hidden, groups, turns, kernel, chunks, threads;
};

// Weights: squeeze (hidden, inside), excite (channels * order, hidden / groups),
// spatial (turns * order, 2 * order, k, k).
template <typename T> struct GateWeights {
    const T *squeeze, *excite, *spatial;
};

template <typename T> struct GateGradients {
    T *squeeze, *excite, *spatial;
};

// What forward leaves for backward, by image: statistics (3, channels * order), the mean, the maximum and the number of
// equal maxima over positions; hidden (2, hidden); alpha (channels * order); maps (positions, 2, order), the mean and
// the maximum over channels; responses (positions, turns, order) of the spatial filters.
template <typename T> struct GateState {
    T *statistics, *hidden, *alpha, *maps, *responses;
};

template <typename T, typename X, int N> struct Gate {
    static constexpr int count = Lanes<T>::count, row_count = 32 / sizeof(T), W = N > row_count ? N : row_count;
    using narrow = typename Numbers<T, N>::vec;  // the poses of a channel
    using wide = typename Numbers<T, W>::vec;    // those of as many channels as fit
    struct Narrow {
        using vec = narrow;
    };
    struct Wide {
        using vec = wide;
    };

    const GateShape &s;
    const int64_t row = s.channels * N, positions = s.height * s.width, inside = row / s.groups;
    const int64_t squeezed = s.hidden / s.groups;
    const Filtering<T> filtering{s.height, s.width, s.kernel};

    // A result in wide and narrow vectors, of which a row has both unless its length is a multiple of W.
    struct Both {
        wide w;
        narrow n;
        INLINE wide &of(Wide) { return w; }
        INLINE narrow &of(Narrow) { return n; }
    };

    template <size_t... I> INLINE static wide repeated(narrow v, std::index_sequence<I...>) {
        if constexpr (N == 1) {
            return wide{} + v[0];
        } else {
            return picked<int(I % N)...>(v);
        }
    }
    INLINE static Both repeated(narrow v) { return {repeated(v, std::make_index_sequence<W>()), v}; }
    template <int from, size_t... I> INLINE static narrow part(wide v, std::index_sequence<I...>) {
        if constexpr (N == 1) {
            return narrow{} + v[from];
        } else {
            return picked<int(from + I)...>(v);
        }
    }
    template <typename F, int from = 0> INLINE static narrow with_parts(narrow n, wide w, const F &function) {
        n = function(n, part<from>(w, std::make_index_sequence<N>()));
        if constexpr (from + N < W) n = with_parts<F, from + N>(n, w, function);
        return n;
    }
    template <typename F> INLINE narrow combined(Both both, const F &function) const {
        return row < W ? both.n : with_parts(both.n, both.w, function);
    }

    template <typename Y> INLINE static wide get(Wide, const Y *from) { return load_as<T, W>(from); }
    template <typename Y> INLINE static narrow get(Narrow, const Y *from) { return load_as<T, N>(from); }
    template <typename Y> INLINE static void put(Wide, Y *to, wide v) { store_as<W>(to, v); }
    template <typename Y> INLINE static void put(Narrow, Y *to, narrow v) { store_as<N>(to, v); }

    template <typename V> INLINE static V equal(V a, V b) { return a == b ? V{} + T(1) : V{}; }
    template <typename V> INLINE static V maximum(V a, V b) { return (b > a) | (b != b) ? b : a; }

    // Calls body(the kind of a vector, its first column) for all vectors of a row.
    template <typename F> INLINE void over_row(const F &body) const {
        const int64_t columns = row;  // the compiler would read it again after every store
        int64_t v = 0;
        for (; v + W <= columns; v += W) body(Wide{}, v);
        for (; v < columns; v += N) body(Narrow{}, v);
    }

    // Here and in `reduce` the maximum may lose a NaN: the mean keeps it, which makes the same numbers NaN.
    void pool(const X *x, T *statistics) const {
        T *sum = statistics, *top = sum + row, *ties = top + row;
        for (int64_t i = 0; i < row; ++i) sum[i] = ties[i] = 0, top[i] = -std::numeric_limits<T>::infinity();
        for (int64_t p = 0; p < positions; ++p, x += row)
            over_row([&](auto kind, int64_t i) {
                const auto v = get(kind, x + i), before = get(kind, top + i), number = get(kind, ties + i);
                put(kind, sum + i, get(kind, sum + i) + v);
                put(kind, ties + i, v > before ? typename decltype(kind)::vec{} + T(1) : number + equal(v, before));
                put(kind, top + i, larger_of(before, v));
            });
        for (int64_t i = 0; i < row; ++i) sum[i] /= positions;
    }

    // to = matrix from, by groups of channels.
    static void multiply(const T *matrix, const T *from, T *to, int64_t groups, int64_t outs, int64_t ins) {
        for (int64_t g = 0; g < groups; ++g, from += ins)
            for (int64_t o = 0; o < outs; ++o, matrix += ins) {
                T sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t i = 0; i < ins; ++i) sum += matrix[i] * from[i];
                *to++ = sum;
            }
    }
    // from = the transposed matrix times to.
    static void multiply_back(const T *matrix, const T *to, T *from, int64_t groups, int64_t outs, int64_t ins) {
        for (int64_t g = 0; g < groups; ++g, from += ins) {
            std::fill(from, from + ins, T(0));
            for (int64_t o = 0; o < outs; ++o, matrix += ins) {
                const T value = *to++;
                for (int64_t i = 0; i < ins; ++i) from[i] += matrix[i] * value;
            }
        }
    }

    static T sigmoid(T value) {
        typename Lanes<T>::vec v = {};
        return sigmoid_of(v + value)[0];
    }
    template <typename V> INLINE static V sigmoid_of(V v) {
        const V e = exponential<T>(v > 0 ? -v : v);
        return (v > 0 ? V{} + T(1) : e) / (1 + e);
    }

    void pool_hidden(const GateState<T> &at, T *pooled) const {
        for (int64_t i = 0; i < s.hidden; ++i) {
            const T mean = at.hidden[i], top = at.hidden[s.hidden + i];
            pooled[i] = (mean < 0 ? 0 : mean) + (top < 0 ? 0 : top);
        }
    }

    void gate_channels(const GateWeights<T> &weights, GateState<T> at, T *scratch) const {
        multiply(weights.squeeze, at.statistics, at.hidden, s.groups, squeezed, inside);
        multiply(weights.squeeze, at.statistics + row, at.hidden + s.hidden, s.groups, squeezed, inside);
        pool_hidden(at, scratch);
        multiply(weights.excite, scratch, at.alpha, s.groups, inside, squeezed);
        for (int64_t i = 0; i < row; ++i) at.alpha[i] = sigmoid(at.alpha[i]);
    }

    void reduce(const X *x, const T *alpha, T *maps) const {
        for (int64_t p = 0; p < positions; ++p, x += row, maps += 2 * N) {
            Both sum = {}, top = repeated(narrow{} - std::numeric_limits<T>::infinity());
            over_row([&](auto kind, int64_t i) {
                const auto v = get(kind, alpha + i) * get(kind, x + i);
                sum.of(kind) += v;
                top.of(kind) = larger_of(top.of(kind), v);
            });
            store_as<N>(maps, combined(sum, [](narrow a, narrow b) { return a + b; }) / T(s.channels));
            store_as<N>(maps + N, combined(top, [](narrow a, narrow b) { return larger_of(a, b); }));
        }
    }

    // alpha_x (positions, order): the sigmoid of the maximum over the turned filters.
    void gate_positions(const T *responses, T *alpha_x) const {
        for (int64_t p = 0; p < positions; ++p) store_as<N>(alpha_x + p * N, top_of(responses + p * s.turns * N));
        apply_sigmoid(alpha_x, positions * N);
    }
    static void apply_sigmoid(T *values, int64_t number) {
        int64_t i = 0;
        for (; i + count <= number; i += count) store_as<count>(values + i, sigmoid_of(load_as<T, count>(values + i)));
        for (; i < number; ++i) values[i] = sigmoid(values[i]);
    }
    INLINE narrow top_of(const T *responses) const {
        narrow top = load_as<T, N>(responses);
        for (int64_t t = 1; t < s.turns; ++t) top = maximum(top, load_as<T, N>(responses + t * N));
        return top;
    }

    void apply(const X *x, const T *alpha, const T *alpha_x, X *y) const {
        for (int64_t p = 0; p < positions; ++p, x += row, y += row, alpha_x += N) {
            Both w = repeated(load_as<T, N>(alpha_x));
            over_row([&](auto kind, int64_t i) {
                put(kind, y + i, get(kind, x + i) * (T(1) - w.of(kind) * get(kind, alpha + i)));
            });
        }
    }

    // Whether as many images as a vector has numbers fit into the cache, with their gradients.
    bool is_small() const {
        constexpr int images = BatchFiltering<T>::images;
        return s.batch >= images && positions * row * images * int64_t(sizeof(X)) <= 1 << 19;
    }

    void forward(const X *x, const GateWeights<T> &weights, const GateState<T> &state, X *y) const {
        if (is_small()) return forward(BatchFiltering<T>{s.height, s.width, s.kernel}, x, weights, state, y);
        forward(filtering, x, weights, state, y);
    }

    template <typename F>
    void forward(const F &filtering, const X *x, const GateWeights<T> &weights, const GateState<T> &state, X *y) const {
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<T> scratch(s.hidden), alpha_x(positions * N);
            std::vector<T> planes(filtering.size(2 * N)), filtered(filtering.size(s.turns * N));
#pragma omp for
            for (int64_t first = 0; first < s.batch; first += F::images) {
                const int images = std::min<int64_t>(F::images, s.batch - first);
                for (int i = 0; i < images; ++i) {
                    const GateState<T> at = of_image(state, first + i);
                    const X *image = x + (first + i) * positions * row;
                    pool(image, at.statistics);
                    gate_channels(weights, at, scratch.data());
                    reduce(image, at.alpha, at.maps);
                    filtering.template spread<2 * N>(at.maps, 2 * N, planes.data(), i);
                }
                const Ahead ahead = before(first, x, y + first * positions * row);
                filtering.apply(planes.data(), 2 * N, weights.spatial, filtered.data(), s.turns * N, ahead);
                for (int i = 0; i < images; ++i) {
                    const GateState<T> at = of_image(state, first + i);
                    const int64_t start = (first + i) * positions * row;
                    filtering.gather(filtered.data(), s.turns * N, at.responses, i);
                    gate_positions(at.responses, alpha_x.data());
                    apply(x + start, at.alpha, alpha_x.data(), y + start);
                }
            }
        }
    }

    // The gradients of the gate of channels and of the responses through y.
    void gates_backward(const X *dy, const X *x, GateState<T> at, const T *alpha_x, T *dalpha, T *dresponses) const {
        std::fill(dalpha, dalpha + row, T(0));
        for (int64_t p = 0; p < positions; ++p, x += row, dy += row) {
            const narrow gate = load_as<T, N>(alpha_x + p * N);
            Both w = repeated(gate), dw = {};
            over_row([&](auto kind, int64_t i) {
                const auto t = get(kind, dy + i) * get(kind, x + i);
                dw.of(kind) += t * get(kind, at.alpha + i);
                put(kind, dalpha + i, get(kind, dalpha + i) - t * w.of(kind));
            });
            const narrow sum = combined(dw, [](narrow a, narrow b) { return a + b; });
            const narrow top = top_of(at.responses);
            narrow share = -sum * gate * (T(1) - gate), ties = {};
            for (int64_t t = 0; t < s.turns; ++t) ties += equal(load_as<T, N>(at.responses + t * N), top);
            share /= ties;
            for (int64_t t = 0; t < s.turns; ++t)
                store_as<N>(dresponses + t * N, equal(load_as<T, N>(at.responses + t * N), top) * share);
            at.responses += s.turns * N, dresponses += s.turns * N;
        }
    }

    // Adds the gradient of the gate of channels through the maps, and makes dmaps the gradients of each gated number,
    // through the mean, and of each that is equal to the maximum.
    void reduce_backward(const X *x, GateState<T> at, T *dmaps, T *dalpha) const {
        for (int64_t p = 0; p < positions; ++p, x += row, at.maps += 2 * N, dmaps += 2 * N) {
            Both top = repeated(load_as<T, N>(at.maps + N)), ties = {};
            over_row([&](auto kind, int64_t i) {
                ties.of(kind) += equal(get(kind, at.alpha + i) * get(kind, x + i), top.of(kind));
            });
            const narrow number = combined(ties, [](narrow a, narrow b) { return a + b; });
            store_as<N>(dmaps, load_as<T, N>(dmaps) / T(s.channels));
            store_as<N>(dmaps + N, load_as<T, N>(dmaps + N) / number);
            Both of_mean = repeated(load_as<T, N>(dmaps)), of_top = repeated(load_as<T, N>(dmaps + N));
            over_row([&](auto kind, int64_t i) {
                const auto v = get(kind, x + i);
                const auto is_top = equal(get(kind, at.alpha + i) * v, top.of(kind));
                put(kind, dalpha + i, get(kind, dalpha + i) + v * (of_mean.of(kind) + is_top * of_top.of(kind)));
            });
        }
    }

    // dalpha becomes that of the logits; dstatistics (2, channels * order) are divided among the positions.
    void channels_backward(const GateWeights<T> &weights, GateState<T> at, T *dalpha, T *dhidden,
                           T *dstatistics) const {
        for (int64_t i = 0; i < row; ++i) dalpha[i] *= at.alpha[i] * (1 - at.alpha[i]);
        multiply_back(weights.excite, dalpha, dhidden, s.groups, inside, squeezed);
        for (int64_t i = 0; i < s.hidden; ++i) {
            const T value = dhidden[i];
            dhidden[i] = at.hidden[i] > 0 ? value : 0;
            dhidden[s.hidden + i] = at.hidden[s.hidden + i] > 0 ? value : 0;
        }
        multiply_back(weights.squeeze, dhidden, dstatistics, s.groups, squeezed, inside);
        multiply_back(weights.squeeze, dhidden + s.hidden, dstatistics + row, s.groups, squeezed, inside);
        for (int64_t i = 0; i < row; ++i) {
            dstatistics[i] /= positions;
            dstatistics[row + i] /= at.statistics[2 * row + i];
        }
    }

    void map_backward(const X *dy, const X *x, GateState<T> at, const T *alpha_x, const T *dmaps, const T *dstatistics,
                      X *dx) const {
        const T *largest = at.statistics + row, *shift = dstatistics, *share = shift + row;
        for (int64_t p = 0; p < positions; ++p, x += row, dy += row, dx += row) {
            Both w = repeated(load_as<T, N>(alpha_x + p * N)), top = repeated(load_as<T, N>(at.maps + N));
            Both of_mean = repeated(load_as<T, N>(dmaps)), of_top = repeated(load_as<T, N>(dmaps + N));
            over_row([&](auto kind, int64_t i) {
                const auto v = get(kind, x + i), gate = get(kind, at.alpha + i);
                const auto through_maps = gate * (of_mean.of(kind) + equal(gate * v, top.of(kind)) * of_top.of(kind));
                const auto through_top = equal(v, get(kind, largest + i)) * get(kind, share + i);
                put(kind, dx + i,
                    get(kind, dy + i) * (T(1) - w.of(kind) * gate) + through_maps + get(kind, shift + i) + through_top);
            });
            at.maps += 2 * N, dmaps += 2 * N;
        }
    }

    // The spatial filters turned by half a turn, for the way back: (2 * order, turns * order, k, k).
    std::vector<T> reversed(const T *spatial) const {
        const int64_t outs = s.turns * N, taps = s.kernel * s.kernel;
        std::vector<T> filters(outs * 2 * N * taps);
        for (int64_t o = 0; o < outs; ++o)
            for (int64_t i = 0; i < 2 * N; ++i, spatial += taps)
                std::reverse_copy(spatial, spatial + taps, &filters[(i * outs + o) * taps]);
        return filters;
    }

    // Adds the gradients of the matrices, by groups of channels: to (groups * outs, ins) from up and down.
    static void add_matrix_gradient(const T *up, const T *down, T *to, int64_t groups, int64_t outs, int64_t ins) {
        for (int64_t g = 0; g < groups; ++g, down += ins)
            for (int64_t o = 0; o < outs; ++o, ++up, to += ins)
                for (int64_t i = 0; i < ins; ++i) to[i] += *up * down[i];
    }

    // Sums parts (chunks, numbers of all results together) into each of the results.
    static void sum_chunks(const std::vector<T> &parts, int64_t chunks,
                           std::initializer_list<std::pair<T *, int64_t>> results) {
        const int64_t all = int64_t(parts.size()) / chunks;
        const T *part = parts.data();
        for (const auto &[to, numbers] : results) {
            std::fill(to, to + numbers, T(0));
            for (int64_t chunk = 0; chunk < chunks; ++chunk)
                for (int64_t i = 0; i < numbers; ++i) to[i] += part[chunk * all + i];
            part += numbers;
        }
    }

    // Adds the gradients of the matrices of channels, by groups of them.
    void add_channel_gradients(const GateState<T> &at, const T *dalpha, const T *dhidden, T *pooled, T *dsqueeze,
                               T *dexcite) const {
        pool_hidden(at, pooled);
        add_matrix_gradient(dalpha, pooled, dexcite, s.groups, inside, squeezed);
        for (int i = 0; i < 2; ++i)  // of the mean and of the maximum
            add_matrix_gradient(dhidden + i * s.hidden, at.statistics + i * row, dsqueeze, s.groups, squeezed, inside);
    }

    // The gradients of all weights, in the order of GateWeights. Sums are taken by chunks of images, of which there are
    // as many whatever the number of threads.
    void backward(const X *dy, const X *x, const GateWeights<T> &weights, const GateState<T> &state, X *dx, T *dsqueeze,
                  T *dexcite, T *dspatial) const {
        const GateGradients<T> gradients = {dsqueeze, dexcite, dspatial};
        constexpr int together = BatchFiltering<T>::images;
        if (is_small()) {
            const BatchFiltering<T> filtering{s.height, s.width, s.kernel};
            return backward(filtering, (s.batch + together - 1) / together, dy, x, weights, state, dx, gradients);
        }
        backward(filtering, s.chunks, dy, x, weights, state, dx, gradients);
    }

    template <typename F>
    void backward(const F &filtering, int64_t chunks, const X *dy, const X *x, const GateWeights<T> &weights,
                  const GateState<T> &state, X *dx, const GateGradients<T> &gradients) const {
        const int64_t outs = s.turns * N, taps = outs * 2 * N * s.kernel * s.kernel;
        const int64_t squeezing = s.hidden * inside, exciting = row * squeezed, all = squeezing + exciting + taps;
        const std::vector<T> turned = reversed(weights.spatial);
        std::vector<T> parts(chunks * all);
#pragma omp parallel num_threads(s.threads)
        {
            std::vector<T> alpha_x(F::images * positions * N), dalpha(F::images * row);
            std::vector<T> dresponses(positions * outs), dmaps(positions * 2 * N);
            std::vector<T> dhidden(2 * s.hidden), pooled(s.hidden), dstatistics(2 * row);
            std::vector<T> sums(taps * count);
            std::vector<T> up(filtering.size(outs)), planes(filtering.size(2 * N)), filtered(filtering.size(2 * N));
#pragma omp for
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                T *of_squeeze = &parts[chunk * all], *of_excite = of_squeeze + squeezing;
                T *of_spatial = of_excite + exciting;
                std::fill(sums.begin(), sums.end(), T(0));
                const int64_t end = (chunk + 1) * s.batch / chunks;
                for (int64_t first = chunk * s.batch / chunks; first < end; first += F::images) {
                    const int images = std::min<int64_t>(F::images, end - first);
                    if (images < F::images) {  // the other lanes add nothing to the gradients of filters
                        std::fill(up.begin(), up.end(), T(0));
                        std::fill(planes.begin(), planes.end(), T(0));
                    }
                    for (int i = 0; i < images; ++i) {
                        const GateState<T> at = of_image(state, first + i);
                        const int64_t start = (first + i) * positions * row;
                        T *open = &alpha_x[i * positions * N];
                        gate_positions(at.responses, open);
                        gates_backward(dy + start, x + start, at, open, &dalpha[i * row], dresponses.data());
                        filtering.spread(dresponses.data(), outs, up.data(), i);
                        filtering.template spread<2 * N>(at.maps, 2 * N, planes.data(), i);
                    }
                    filtering.apply(up.data(), outs, turned.data(), filtered.data(), 2 * N);
                    filtering.add_filter_gradients(planes.data(), 2 * N, up.data(), outs, sums.data());
                    for (int i = 0; i < images; ++i) {
                        const GateState<T> at = of_image(state, first + i);
                        const int64_t start = (first + i) * positions * row;
                        T *through_alpha = &dalpha[i * row];
                        filtering.template gather<2 * N>(filtered.data(), 2 * N, dmaps.data(), i);
                        reduce_backward(x + start, at, dmaps.data(), through_alpha);
                        channels_backward(weights, at, through_alpha, dhidden.data(), dstatistics.data());
                        add_channel_gradients(at, through_alpha, dhidden.data(), pooled.data(), of_squeeze, of_excite);
                        map_backward(dy + start, x + start, at, &alpha_x[i * positions * N], dmaps.data(),
                                     dstatistics.data(), dx + start);
                    }
                }
                for (int64_t t = 0; t < taps; ++t)
                    for (int i = 0; i < count; ++i) of_spatial[t] += sums[t * count + i];
            }
        }
        sum_chunks(parts, chunks,
                   {{gradients.squeeze, squeezing}, {gradients.excite, exciting}, {gradients.spatial, taps}});
    }

    // What is fetched while the filters of an image are computed: the next image, and the memory for the result.
    Ahead before(int64_t b, const X *x, X *to) const {
        const int64_t size = positions * row;
        return {(const char *)(x + std::min(b + 1, s.batch - 1) * size), (char *)to, size * int64_t(sizeof(X))};
    }

    GateState<T> of_image(const GateState<T> &state, int64_t b) const {
        return {state.statistics + b * 3 * row, state.hidden + b * 2 * s.hidden, state.alpha + b * row,
                state.maps + b * positions * 2 * N, state.responses + b * positions * s.turns * N};
    }
};

}  // namespace
