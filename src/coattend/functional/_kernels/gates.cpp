// Gates of channels and positions: gate.h, and for images with one channel image_gate.h.

#include "wide_vectors.h"

#include "image_gate.h"

namespace {

template <typename T, typename X, typename F> void with_order(const GateShape &s, F function) {
    if (ImageGate<T, X>::suits(s)) return function(ImageGate<T, X>{s});
    switch (s.order) {
        case 1: return function(Gate<T, X, 1>{s});
        case 2: return function(Gate<T, X, 2>{s});
        case 4: return function(Gate<T, X, 4>{s});
        case 8: return function(Gate<T, X, 8>{s});
        default: return function(Gate<T, X, 16>{s});
    }
}

}  // namespace

extern "C" {

#define COATTEND_GATES(name, T, X)                                                                                    \
    void coattend_gate_forward_##name(const X *x, const T *squeeze, const T *excite, const T *spatial, T *statistics, \
                                      T *hidden, T *alpha, T *maps, T *responses, X *y, const GateShape *s) {         \
        const GateWeights<T> weights = {squeeze, excite, spatial};                                                    \
        const GateState<T> state = {statistics, hidden, alpha, maps, responses};                                      \
        with_order<T, X>(*s, [&](const auto &gate) { gate.forward(x, weights, state, y); });                          \
    }                                                                                                                 \
    void coattend_gate_backward_##name(const X *dy, const X *x, const T *squeeze, const T *excite, const T *spatial,  \
                                       T *statistics, T *hidden, T *alpha, T *maps, T *responses, X *dx, T *dsqueeze, \
                                       T *dexcite, T *dspatial, const GateShape *s) {                                 \
        const GateWeights<T> weights = {squeeze, excite, spatial};                                                    \
        const GateState<T> state = {statistics, hidden, alpha, maps, responses};                                      \
        with_order<T, X>(                                                                                             \
            *s, [&](const auto &gate) { gate.backward(dy, x, weights, state, dx, dsqueeze, dexcite, dspatial); });    \
    }

COATTEND_GATES(float, float, float)
COATTEND_GATES(double, double, double)
COATTEND_GATES(bfloat16, float, bfloat16)

}  // extern "C"
