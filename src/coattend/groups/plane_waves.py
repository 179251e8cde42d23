"""Filters on a grid that respond to plane waves as a function of the continuous plane does.

A rotated filter is exact if it responds to every rotated image as the filter responds to the image. On a grid this is
possible for no filter and all images, so the taps are fitted by least squares over isotropic plane waves, which is
what makes a linear map of taps the best one for images without a preferred orientation.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.groups.finite_group import Matrices
from coattend.groups.taps import tap_coordinates, taps_in_disc

Complex = NDArray[np.complex128]

SHORTEST, LONGEST, WAVELENGTHS = 3.0, 16.0, 16  # pixels; the mean over them is what is minimised
RIDGE = 2e-3  # white noise relative to a wave: the fit prefers small taps to an amplification of pixel noise


class PlaneWaves:
    """Plane waves of many lengths and directions, sampled at the taps of a filter, and the fit of taps to responses.

    The directions map onto each other under quarter turns and flips, and are so many that a mean over them is one over
    all angles up to rounding.
    """

    def __init__(self, taps: Matrices) -> None:
        reach = 2 * np.linalg.norm(taps, axis=-1).max(initial=0.0)
        directions = 4 * math.ceil((2 * math.pi / SHORTEST * reach + 32) / 4)
        lengths = SHORTEST + (LONGEST - SHORTEST) * (np.arange(WAVELENGTHS) + 0.5) / WAVELENGTHS
        self.numbers: NDArray[np.float64] = 2 * math.pi / lengths
        self.angles: NDArray[np.float64] = 2 * math.pi * (np.arange(directions) + 0.5) / directions
        unit = np.stack([np.cos(self.angles), np.sin(self.angles)], axis=-1)
        self.vectors: Matrices = (self.numbers[:, None, None] * unit).reshape(-1, 2)
        self._samples = self.sample(taps)
        covariance = (self._samples @ self._samples.conj().T).real / len(self.vectors)
        self._inverse = np.linalg.inv(covariance + RIDGE * np.eye(len(taps)))

    def sample(self, points: Matrices) -> Complex:
        """Return the value of every wave at every point, (points, waves)."""
        return np.exp(1j * (points @ self.vectors.T))

    def fit(self, responses: Complex, to_constant: NDArray[Any]) -> Complex:
        """Return the taps (taps, filters) whose responses to the waves are nearest to the given ones (filters, waves).

        The response to a constant image is met exactly: the taps of a filter sum to its entry of ``to_constant``.
        """
        fitted = self._inverse @ (self._samples.conj() @ responses.T) / len(self.vectors)
        rest = (to_constant - fitted.sum(axis=0)) / self._inverse.sum()
        taps: Complex = fitted + np.outer(self._inverse.sum(axis=1), rest)
        return taps


@functools.lru_cache(maxsize=8)
def waves_on_disc(kernel_size: int) -> PlaneWaves:
    """Return the plane waves at the taps of a kernel that are inside its disc."""
    return PlaneWaves(tap_coordinates(kernel_size)[taps_in_disc(kernel_size)])


def ring_responses(numbers: NDArray[np.float64], radius: float, width: float, orders: int) -> tuple[Complex, float]:
    """Return how a Gaussian ring times ``exp(i m phi)`` responds to waves along x and to a constant image.

    The responses are (orders, wave numbers), those of m = 0, 1, ... below ``orders``: the integral over the plane,
    divided by 2 pi. The integral over the angle is i^m J_m, m-th Fourier coefficient of ``exp(i x cos(angle))``.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    low, high = max(0.0, radius - 6 * width), radius + 6 * width
    radii = low + (high - low) * (nodes + 1) / 2
    ring = np.exp(-((radii - radius) ** 2) / (2 * width**2)) * radii * weights * (high - low) / 2
    angles = 4 * math.ceil((numbers.max() * high + orders + 32) / 4)
    waves = np.exp(1j * np.multiply.outer(np.outer(numbers, radii), np.cos(2 * math.pi * np.arange(angles) / angles)))
    around = np.fft.fft(waves, axis=-1)[..., :orders] / angles
    return np.einsum("nrm,r->mn", around, ring), float(ring.sum())
