"""Slow loops straight from the definitions, in numpy, sharing no code with the library."""

from __future__ import annotations

import numpy as np


def turned(f: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(g.f)(u) = f(g^-1 u) on a square grid, for matrices that move taps onto taps."""
    k = f.shape[-1]
    y = np.empty_like(f)
    for row in range(k):
        for column in range(k):
            x, up = matrix.T @ np.array([column - (k - 1) / 2, (k - 1) / 2 - row])
            y[..., row, column] = f[..., round((k - 1) / 2 - up), round(x + (k - 1) / 2)]
    return y


def correlate(x: np.ndarray, f: np.ndarray, stride: int = 1, padding: int = 0, dilation: int = 1) -> np.ndarray:
    """[RH20] Eq. 2 for one plane: sum_u' x(u + u') f(u')."""
    x = np.pad(x, padding)
    k = f.shape[-1]
    reach = dilation * (k - 1) + 1
    height, width = ((s - reach) // stride + 1 for s in x.shape)
    y = np.zeros((height, width))
    for row in range(height):
        for column in range(width):
            for i in range(k):
                for j in range(k):
                    y[row, column] += x[row * stride + i * dilation, column * stride + j * dilation] * f[i, j]
    return y


def lift(x, weight, bias, product, inverse, planar, **geometry):
    """y[b, o, g] = sum_i x[b, i] * (g.W[o, i]) + bias[o]."""
    poses = range(len(product))
    return np.array(
        [
            [
                [
                    sum(correlate(x[b, i], turned(weight[o, i], planar[g]), **geometry) for i in range(x.shape[1]))
                    + bias[o]
                    for g in poses
                ]
                for o in range(len(weight))
            ]
            for b in range(len(x))
        ]
    )


def group_conv(x, weight, bias, product, inverse, planar, **geometry):
    """[RH20] Eq. 3: y[b, o, g] = sum_i sum_h x[b, i, h] * (g.W[o, i, g^-1 h]) + bias[o]."""
    poses = range(len(product))
    return np.array(
        [
            [
                [
                    sum(
                        correlate(x[b, i, h], turned(weight[o, i, product[inverse[g], h]], planar[g]), **geometry)
                        for i in range(x.shape[1])
                        for h in poses
                    )
                    + bias[o]
                    for g in poses
                ]
                for o in range(len(weight))
            ]
            for b in range(len(x))
        ]
    )


def group_conv_transpose(x, weight, bias, product, inverse, planar, stride=1, padding=0, dilation=1, output_padding=0):
    """y[b, o, h](u) = sum_i sum_g sum_v x[b, i, g](v) (g.W[i, o, g^-1 h])(u + padding - stride v) + bias[o]."""
    batch, channels, n, height, width = x.shape
    k = weight.shape[-1]
    size = [(s - 1) * stride - 2 * padding + dilation * (k - 1) + 1 + output_padding for s in (height, width)]
    y = np.zeros((batch, weight.shape[1], n, *size)) + bias[:, None, None, None]
    for o, h, i, g in np.ndindex(weight.shape[1], n, channels, n):
        taps = turned(weight[i, o, product[inverse[g], h]], planar[g])
        for row, column, p, q in np.ndindex(height, width, k, k):
            r, c = row * stride + p * dilation - padding, column * stride + q * dilation - padding
            if 0 <= r < size[0] and 0 <= c < size[1]:
                y[:, o, h, r, c] += x[:, i, g, row, column] * taps[p, q]
    return y


def project(x, weight, bias, product, inverse, planar, attention=None, **geometry):
    """y[b, o] = sum_s A_o( sum_i x[b, i, s] * (s.W[o, i]) ) + bias[o]."""
    poses = range(len(product))
    y = []
    for b in range(len(x)):
        y.append([])
        for o in range(len(weight)):
            responses = np.array(
                [
                    sum(correlate(x[b, i, s], turned(weight[o, i], planar[s]), **geometry) for i in range(x.shape[1]))
                    for s in poses
                ]
            )
            if attention is not None:
                responses = attend(responses, attention[o], product, inverse)
            y[-1].append(responses.sum(axis=0) + bias[o])
    return np.array(y)


def slice_conv(x, weight, bias, attention, product, inverse, planar, **geometry):
    """y[b, o, g] = sum_t A_{o,t}( { sum_i x[b, i, g' t] * (g'.W[o, i, t]) }_g' )(g) + bias[o]."""
    poses = range(len(product))
    y = []
    for b in range(len(x)):
        y.append([])
        for o in range(len(weight)):
            total = 0
            for t in poses:
                responses = np.array(
                    [
                        sum(
                            correlate(x[b, i, product[g, t]], turned(weight[o, i, t], planar[g]), **geometry)
                            for i in range(x.shape[1])
                        )
                        for g in poses
                    ]
                )
                total = total + attend(responses, attention[o][t], product, inverse)
            y[-1].append(total + bias[o])
    return np.array(y)


def dynamic_conv(v, z, weight, bias, planar):
    """y[c, g](u) = sum_d kappa[s(c), g^-1 d, g](u) v[c, g](u + d), kappa[s, d, g](u) = sum_m W[s, m, d] z[m, g](u) + b[s, d]."""  # noqa: E501
    slices, k = len(weight), weight.shape[-1]
    reach, height, width = k // 2, *v.shape[3:]
    y = np.zeros_like(v)
    for b, c, g, row, column in np.ndindex(v.shape):
        s = c // (v.shape[1] // slices)
        kappa = np.einsum("mij,m->ij", weight[s], z[b, :, g, row, column]) + bias[s]
        seen = turned(kappa, planar[g])  # (g.kappa)(d) = kappa(g^-1 d)
        for i in range(k):
            for j in range(k):
                p, q = row + i - reach, column + j - reach
                if 0 <= p < height and 0 <= q < width:
                    y[b, c, g, row, column] += seen[i, j] * v[b, c, g, p, q]
    return y


def self_attention(q, k, v, frequencies, planar, window=None):
    """y[g](u) = sum_w softmax_w( q[g](u)^T R(g^-1 (w - u)) k[g](w) / sqrt(d) ) v[g](w), head by head."""
    heads, pairs, _ = frequencies.shape
    d, (height, width) = 2 * pairs, v.shape[3:]
    window = window or max(height, width)
    y = np.zeros_like(v)
    for b, head, g, row, column in np.ndindex(len(v), heads, len(planar), height, width):
        channels = slice(head * d, (head + 1) * d)
        others = [
            (r, c)
            for r in range(height)
            for c in range(width)
            if r // window == row // window and c // window == column // window
        ]
        query, scores = q[b, channels, g, row, column], []
        for r, c in others:
            offset = planar[g].T @ np.array([c - column, row - r])  # x to the right, y up
            key, score = k[b, channels, g, r, c], 0.0
            for pair in range(pairs):
                phase = frequencies[head, pair] @ offset
                rotation = np.array([[np.cos(phase), -np.sin(phase)], [np.sin(phase), np.cos(phase)]])
                score += query[[pair, pair + pairs]] @ rotation @ key[[pair, pair + pairs]]
            scores.append(score / np.sqrt(d))
        weights = np.exp(scores) / np.exp(scores).sum()
        y[b, channels, g, row, column] = sum(
            w * v[b, channels, g, r, c] for w, (r, c) in zip(weights, others, strict=True)
        )
    return y


def attend(x: np.ndarray, vector: np.ndarray, product: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """[RH20] Eqs. 6-8 to the letter for responses (group, ...): a = x A, softmax(a / n), divide by the maximum."""
    n = len(x)
    a = np.zeros_like(x)
    for g in range(n):
        for h in range(n):
            a[g] += x[h] * vector[product[inverse[g], h]]
    exponentials = np.exp(a / n)
    softmax = exponentials / exponentials.sum(axis=0)
    return softmax / softmax.max(axis=0) * x


def linear(x, weight, product, inverse):
    """y[b, o, g] = sum_i sum_h x[b, i, h] W[o, i, g^-1 h]."""
    y = np.zeros((len(x), len(weight), *x.shape[2:]))
    for o in range(len(weight)):
        for g in range(len(product)):
            for i in range(x.shape[1]):
                for h in range(len(product)):
                    y[:, o, g] += x[:, i, h] * weight[o, i, product[inverse[g], h]]
    return y


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gate_mask(x, squeeze, excite, spatial, product, inverse, planar, groups=1):
    """1 - alpha_X alpha_C: gates of channels from statistics over positions, of positions from those over channels."""
    poses, inside, hidden = range(len(product)), x.shape[1] // groups, len(squeeze) // groups
    logits = np.zeros(x.shape[:3])
    for statistic in (x.mean(axis=(-2, -1)), x.max(axis=(-2, -1))):
        for part in range(groups):
            own, rows = slice(part * inside, (part + 1) * inside), slice(part * hidden, (part + 1) * hidden)
            small = np.maximum(linear(statistic[:, own], squeeze[rows], product, inverse), 0)
            logits[:, own] += linear(small, excite[own], product, inverse)
    alpha_c = sigmoid(logits)
    gated = alpha_c[..., None, None] * x
    maps = (gated.mean(axis=1), gated.max(axis=1))
    alpha_x = np.zeros((len(x), *x.shape[2:]))
    for b in range(len(x)):
        for g in poses:
            for s in range(2):
                for h in poses:
                    taps = turned(spatial[0, s, product[inverse[g], h]], planar[g])
                    alpha_x[b, g] += correlate(maps[s][b, h], taps, padding=len(taps) // 2)
    return 1 - sigmoid(alpha_x)[:, None] * alpha_c[..., None, None]


def pose_self_attention(x, weight, bias, product, inverse):
    """y[c, g] = sum_h softmax_h(q[g] . k[h] / sqrt(d) + b[g^-1 h]) v[c, h]; also the weights (b, head, g, h, ...)."""
    n, channels, heads = len(product), x.shape[1], len(bias)
    d = channels // heads
    q, k, v = (linear(x, weight[i * channels : (i + 1) * channels], product, inverse) for i in range(3))
    y, weights = np.zeros_like(x), np.zeros((len(x), heads, n, n, *x.shape[3:]))
    for head in range(heads):
        own = range(head * d, (head + 1) * d)
        for g in range(n):
            scores = np.array(
                [
                    sum(q[:, c, g] * k[:, c, h] for c in own) / np.sqrt(d) + bias[head, product[inverse[g], h]]
                    for h in range(n)
                ]
            )
            exponentials = np.exp(scores)
            for h in range(n):
                weights[:, head, g, h] = exponentials[h] / exponentials.sum(axis=0)
                for c in own:
                    y[:, c, g] += weights[:, head, g, h] * v[:, c, h]
    return y, weights
