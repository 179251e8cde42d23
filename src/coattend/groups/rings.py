"""Steerable filters: Gaussian rings times angular orders, which turn by a change of phase."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coattend.groups.axioms import whole_number
from coattend.groups.finite_group import Matrices
from coattend.groups.plane_waves import Complex, ring_responses, waves_on_disc
from coattend.groups.taps import tap_coordinates, taps_in_disc

LARGEST_ORDER = 32
DEFAULT_WIDTH = 0.3  # of 0.3 to 0.6, the width whose filters turn best (docs/conventions.md)


@dataclass(frozen=True)
class Rings:
    """A basis of filters, ``exp(-(r - r_j)^2 / (2 width^2)) exp(i m phi)`` for |m| up to ``orders[j]`` on ring j.

    A filter is the real part of a sum of these functions with complex coefficients, so that ring j has
    ``2 * orders[j] + 1`` real ones. The radii are 0, 1, 2, ... pixels for an odd kernel and 0.5, 1.5, ... for an even
    one.

    - orders: the largest angular order of each ring, from the center outwards
    - width: the standard deviation of a ring, in pixels
    - sampled: take the functions at the taps, as e2cnn and escnn do, instead of taps that respond to plane waves as the
      functions do; sampled filters turn less well

    >>> Rings(orders=(0, 2, 2)).size
    11
    """

    orders: tuple[int, ...]
    width: float = DEFAULT_WIDTH
    sampled: bool = False

    def __post_init__(self) -> None:
        orders = tuple(self.orders) if isinstance(self.orders, (tuple, list)) else (self.orders,)
        numbers = tuple(n for n in map(whole_number, orders) if n is not None and 0 <= n <= LARGEST_ORDER)
        if not orders or len(numbers) < len(orders):
            raise ValueError(
                f"Rings expects the orders of one ring or more, whole numbers from 0 to {LARGEST_ORDER}, got "
                f"{self.orders!r}; for example (0, 2, 2)."
            )
        is_number = isinstance(self.width, (int, float)) and not isinstance(self.width, bool)
        if not is_number or not 0.1 <= self.width <= 4:
            raise ValueError(f"Rings expects a width from 0.1 to 4 pixels, got {self.width!r}.")
        object.__setattr__(self, "orders", numbers)
        object.__setattr__(self, "width", float(self.width))

    @property
    def size(self) -> int:
        """The number of real coefficients of a filter."""
        return sum(2 * order + 1 for order in self.orders)

    @property
    def functions(self) -> int:
        """The number of complex functions, each of norm 1: the mean squared norm of a filter of normal coefficients."""
        return sum(order + 1 for order in self.orders)

    def radii(self, kernel_size: int) -> tuple[float, ...]:
        """Return the radius of each ring in a kernel."""
        return tuple(j + (0.0 if kernel_size % 2 else 0.5) for j in range(len(self.orders)))

    def matrix(self, kernel_size: int, move: Matrices) -> Matrices:
        """Return the filters of the basis after a move of the plane, an orthogonal matrix: (taps, size).

        Columns are the real part and, for m > 0, the imaginary part of each function.
        """
        functions, orders = _functions(self, kernel_size)
        # A rotation by a changes phi to phi - a, a reflection to a - phi.
        phase = np.exp(1j * orders * math.atan2(move[1, 0], move[0, 0]))
        moved = functions * phase.conj() if np.linalg.det(move) > 0 else functions.conj() * phase
        columns = np.stack([moved.real, moved.imag], axis=-1).reshape(len(moved), -1)
        return columns[:, np.stack([np.ones_like(orders), orders], axis=-1).ravel() > 0]

    def __str__(self) -> str:
        width = "" if self.width == DEFAULT_WIDTH else f"-width-{self.width!r}"
        return f"{'-'.join(map(str, self.orders))}{width}{'-sampled' if self.sampled else ''}"

    @classmethod
    def parse(cls, text: str) -> Rings:
        """Return rings from their text, the inverse of ``str``: ``0-2-2``, ``0-2-2-width-0.5``, ``0-2-sampled``."""
        match = re.fullmatch(r"(\d+(?:-\d+)*)(?:-width-(\d+(?:\.\d+)?))?(-sampled)?", text)
        if match is None:
            raise ValueError(f"expected the orders of rings, such as 0-2-2 or 0-2-2-width-0.5, got {text!r}.")
        orders, width, sampled = match.groups()
        return cls(tuple(map(int, orders.split("-"))), float(width or DEFAULT_WIDTH), sampled is not None)


def default_rings(kernel_size: int) -> Rings:
    """Return the rings of ``filters="steerable"``: order 0 in the center and 2 on the rings around it."""
    if kernel_size == 2:
        return Rings((1,))
    return Rings((0,) + (2,) * ((kernel_size - 1) // 2))


@functools.lru_cache(maxsize=64)
def _functions(rings: Rings, kernel_size: int) -> tuple[Complex, NDArray[np.int64]]:
    """Return the functions of a basis at the taps of a kernel, (taps, functions), each of norm 1, and their orders."""
    if rings.radii(kernel_size)[-1] > kernel_size / 2:
        raise ValueError(
            f"{len(rings.orders)} rings do not fit a kernel of {kernel_size} x {kernel_size}, which has room for "
            f"{(kernel_size + 1) // 2}; leave out the outer ones."
        )
    functions = (_sampled if rings.sampled else _fitted)(rings, kernel_size)
    orders = np.concatenate([np.arange(order + 1) for order in rings.orders])
    norms = np.linalg.norm(functions, axis=0)
    if norms.min() < 1e-9 * norms.max():
        raise ValueError(
            f"a kernel of {kernel_size} x {kernel_size} is too small for order {orders[norms.argmin()]} of "
            f"Rings(orders={rings.orders}); choose lower orders."
        )
    functions = functions / norms
    functions.setflags(write=False)
    return functions, orders


def _sampled(rings: Rings, kernel_size: int) -> Complex:
    taps = tap_coordinates(kernel_size)
    radius, angle = np.hypot(*taps.T), np.arctan2(taps[:, 1], taps[:, 0])
    columns = [
        np.exp(-((radius - r) ** 2) / (2 * rings.width**2)) * np.exp(1j * m * angle) * ((radius > 0) | (m == 0))
        for r, order in zip(rings.radii(kernel_size), rings.orders, strict=True)
        for m in range(order + 1)
    ]
    return np.stack(columns, axis=-1)


def _fitted(rings: Rings, kernel_size: int) -> Complex:
    inside = taps_in_disc(kernel_size)
    waves = waves_on_disc(kernel_size)
    functions = []
    for radius, order in zip(rings.radii(kernel_size), rings.orders, strict=True):
        along_x, to_constant = ring_responses(waves.numbers, radius, rings.width, order + 1)
        orders = np.arange(order + 1)
        responses = along_x[:, :, None] * np.exp(1j * np.multiply.outer(orders, waves.angles))[:, None, :]
        taps = np.zeros((len(inside), order + 1), dtype=np.complex128)
        taps[inside] = waves.fit(responses.reshape(order + 1, -1), np.where(orders == 0, to_constant, 0.0))
        functions.append(taps)
    return np.concatenate(functions, axis=1)
