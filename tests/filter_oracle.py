"""Turned filters from the definitions, with scipy's Bessel functions and a bordered system, sharing no code."""

from __future__ import annotations

import functools

import numpy as np
from scipy import integrate, special

NUMBERS = 2 * np.pi / (3 + 13 * (np.arange(16) + 0.5) / 16)  # of waves of 3 to 16 pixels
NOISE = 2e-3


def taps(k: int) -> np.ndarray:
    """The taps of a kernel, x to the right and y up, row by row."""
    return np.array([(column - (k - 1) / 2, (k - 1) / 2 - row) for row in range(k) for column in range(k)])


def disc(k: int) -> np.ndarray:
    return np.array([np.hypot(*p) <= k / 2 for p in taps(k)])


def covariance(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Of isotropic waves at two sets of points: the mean of J0(kappa |p - q|)."""
    distance = np.linalg.norm(p[:, None] - q[None], axis=-1)
    return np.mean([special.j0(kappa * distance) for kappa in NUMBERS], axis=0)


def kriging(k: int, right: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Minimise the mean squared error over the taps in the disc, with given sums of the taps."""
    inside = taps(k)[disc(k)]
    n = len(inside)
    system = np.ones((n + 1, n + 1))
    system[:n, :n] = covariance(inside, inside) + NOISE * np.eye(n)
    system[n, n] = 0
    solution = np.zeros((k * k, right.shape[1]), dtype=right.dtype)
    solution[disc(k)] = np.linalg.solve(system, np.vstack([right, sums]))[:n]
    return solution


def free_turn(k: int, matrix: np.ndarray) -> np.ndarray:
    """Map the taps of a filter onto those of the turned filter."""
    inside = disc(k)
    points = taps(k)[inside]
    table = np.zeros((k * k, k * k))
    table[:, inside] = kriging(k, covariance(points, points @ matrix.T), np.ones(inside.sum()))
    return table


def radii(k: int, rings: int) -> list[float]:
    return [j + (0 if k % 2 else 0.5) for j in range(rings)]


@functools.cache
def hankel(m: int, kappa: float, radius: float, width: float) -> float:
    """The integral of ring(s) J_m(kappa s) s ds."""

    def integrand(s: float) -> float:
        return np.exp(-((s - radius) ** 2) / (2 * width**2)) * special.jv(m, kappa * s) * s

    return integrate.quad(integrand, max(0, radius - 6 * width), radius + 6 * width, epsabs=1e-13, epsrel=1e-13)[0]


def ring_turn(k: int, orders: tuple[int, ...], width: float, matrix: np.ndarray) -> np.ndarray:
    """Map coefficients onto the taps of the turned filter: fitted functions of the turned plane, at unturned taps."""
    points = taps(k)[disc(k)]
    r, phi = np.hypot(*points.T), np.arctan2(*points.T[::-1])
    columns = []
    for radius, largest in zip(radii(k, len(orders)), orders, strict=True):
        for m in range(largest + 1):
            right = sum(hankel(m, kappa, radius, width) * special.jv(m, kappa * r) for kappa in NUMBERS) / len(NUMBERS)
            total = hankel(0, 0.0, radius, width) if m == 0 else 0.0
            base = kriging(k, (right * np.exp(1j * m * phi))[:, None], np.array([total]))[:, 0]
            moved = matrix.T @ points.T  # g^-1 u
            turned = kriging(k, (right * np.exp(1j * m * np.arctan2(moved[1], moved[0])))[:, None], np.array([total]))
            function = turned[:, 0] / np.linalg.norm(base)
            columns += [function.real] if m == 0 else [function.real, function.imag]
    return np.stack(columns, axis=-1)
