"""Measure what a file computes: for its certificate, and again when that is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend.equivariance import equivariance_error
from coattend.equivariance.error import TOLERANCE
from coattend.export.certificate import PROBES, SEED, STORED_OUTPUTS, Certificate, probe_images
from coattend.groups import FiniteGroup, get_group
from coattend.models import EquivariantNetwork
from coattend.models.options import encoded_option
from coattend.nn import PoseConv2d
from coattend.nn.observe import evaluating

SLACK = 2.0  # another processor rounds otherwise

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Line:
    """One thing that was certified: what it is, what the certificate says, what was found, whether they agree."""

    what: str
    certified: str
    found: str
    agrees: bool


def certify(original: nn.Module, run: Run, image_shape: tuple[int, int, int], content: str) -> Certificate:
    """Measure ``run``, which is what a file computes, against the original network and its group.

    ``content`` is a digest of what the file will hold besides.
    """
    images = probe_images(image_shape, PROBES, SEED)
    with evaluating(original):
        expected = original(images)
    config = original.config if isinstance(original, EquivariantNetwork) else None
    group = checked_group(original)
    certificate = Certificate(
        model=type(original).__name__ if config is None else config.model,
        options={} if config is None else {key: encoded_option(value) for key, value in config.options.items()},
        group=encoded_option(group),
        image_shape=image_shape,
        parity=_largest_difference(run(images), expected.flatten().tolist()),
        equivariance=_errors(run, images, group),
        reference=expected.flatten()[:STORED_OUTPUTS].tolist(),
        digest="",
    )
    return replace(certificate, digest=certificate.sealed_digest(content))


def compared(certificate: Certificate, run: Run, content: str) -> list[Line]:
    """Measure again what a certificate says; smaller errors than certified agree with it.

    What does not have the certified digest is something else and is not run.
    """
    digest = digest_line(certificate, content)
    if not digest.agrees:
        return [digest]
    images = certificate.probe_images()
    rounding = 1e-5 * max(1.0, max(map(abs, certificate.reference)))
    parity = _largest_difference(run(images), certificate.reference)
    lines = [digest, _line("difference to the original", certificate.parity, parity, rounding)]
    group = certificate.acting_group
    for g, error in _errors(run, images, group).items():
        certified = certificate.equivariance[g]
        lines.append(_line(f"equivariance: {group.describe(int(g))}", certified, error, TOLERANCE[torch.float32]))
    return lines


def digest_line(certificate: Certificate, content: str) -> Line:
    """Whether a file still holds what was certified."""
    expected = certificate.sealed_digest(content)
    what = "digest" if certificate.format > 1 else "digest of the weights only (older certificate)"
    return Line(what, certificate.digest[:12], expected[:12], expected == certificate.digest)


def checked_group(network: nn.Module) -> FiniteGroup:
    """The group a network is measured against: its own, for plain networks quarter turns."""
    groups = {m.group for m in network.modules() if isinstance(m, PoseConv2d) and m.group.order > 1}
    if len(groups) > 1:
        raise ValueError(
            f"a certificate is about one group, but the network has layers over {', '.join(g.name for g in groups)}."
        )
    return groups.pop() if groups else get_group("p4")


def digest_of(tensors: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """SHA-256 over names, types, shapes and values, in the order of the names."""
    total = hashlib.sha256()
    for name, array in sorted(tensors, key=lambda pair: pair[0]):
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def _errors(run: Run, images: Tensor, group: FiniteGroup) -> dict[str, float]:
    return {str(g): error for g, error in equivariance_error(as_module(run), images, group).items()}


def _line(what: str, certified: float, found: float, rounding: float) -> Line:
    return Line(what, f"{certified:.1e}", f"{found:.1e}", found <= max(SLACK * certified, rounding))


def _largest_difference(found: Tensor, expected: list[float]) -> float:
    flat = found.flatten()[: len(expected)].double()
    if len(flat) < len(expected):
        return float("inf")
    return float((flat - torch.tensor(expected, dtype=torch.float64)).abs().max())


def as_module(run: Run) -> nn.Module:
    """A function of images for tools that take modules."""
    return _AsModule(run)


class _AsModule(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)
