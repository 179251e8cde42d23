"""Measurements of what a file computes: for its certificate, and again when the certificate is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend.equivariance import equivariance_error
from coattend.equivariance.error import TOLERANCE
from coattend.equivariance.exactness import remaining_groups
from coattend.equivariance.fields import ORIENTATIONS, Layout, field_of, other_layouts
from coattend.export.certificate import PROBES, SEED, STORED_OUTPUTS, Certificate
from coattend.export.input import Input, without_turns
from coattend.groups import FiniteGroup, get_group
from coattend.models import EquivariantNetwork
from coattend.models.classifier import Classifier, check_finite
from coattend.models.options import encoded_option
from coattend.nn.observe import evaluating

SLACK = 2.0  # factor between the rounding errors of different processors

Network = Callable[[Tensor], Tensor]  # what a file computes, as a function of images


@dataclass(frozen=True)
class Claim:
    """One certified quantity: its name, its value in the certificate, its measured value, and whether they agree."""

    what: str
    certified: str
    measured: str
    agrees: bool


@dataclass(frozen=True)
class CertificateCheck:
    """The result of checking a file against its certificate; ``note`` says what was not done and why."""

    path: Path
    certificate: Certificate
    claims: tuple[Claim, ...]
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every claim of the certificate agrees with the file."""
        return all(claim.agrees for claim in self.claims)


def certify(original: nn.Module, network: Network, images: Input, content: str) -> Certificate:
    """Measure what a file computes against the original network and its group.

    ``content`` is the digest of everything else in the file.
    """
    probes = images.probes(PROBES, SEED)
    with evaluating(original):
        expected = original(probes)
    check_finite(expected)
    single = without_turns(original)
    inner = single.network if isinstance(single, Classifier) else single
    config = inner.config if isinstance(inner, EquivariantNetwork) else None
    group = checked_group(original)
    layout = field_of(expected, group, other_layouts(original, None, group), "output", None).kind
    output = layout if layout in ORIENTATIONS else None
    certificate = Certificate(
        model=type(inner).__name__ if config is None else config.model,
        options={} if config is None else {key: _described(value) for key, value in config.options.items()},
        group=encoded_option(group),
        image_shape=images.shape,
        parity=_largest_difference(network(probes), expected.flatten().tolist()),
        equivariance=_errors(network, probes, group, output),
        reference=expected.flatten()[:STORED_OUTPUTS].tolist(),
        digest="",
        input=images.kind,
        output=output,
    )
    return replace(certificate, digest=certificate.sealed_digest(content))


def check(path: Path, certificate: Certificate, network: Network, content: str) -> CertificateCheck:
    """Measure again what a certificate claims; smaller errors than certified agree with it.

    A file with another digest is not what was certified, and is not run.
    """
    digest = digest_claim(certificate, content)
    if not digest.agrees:
        return CertificateCheck(path, certificate, (digest,))
    images = certificate.probe_images()
    rounding = 1e-5 * max(1.0, max(map(abs, certificate.reference)))
    parity = _largest_difference(network(images), certificate.reference)
    claims = [digest, _claim("difference to the original", certificate.parity, parity, rounding)]
    group = certificate.acting_group
    for g, error in _errors(network, images, group, certificate.output).items():
        certified = certificate.equivariance[g]
        claims.append(_claim(f"equivariance: {group.describe(int(g))}", certified, error, TOLERANCE[torch.float32]))
    return CertificateCheck(path, certificate, tuple(claims))


def digest_claim(certificate: Certificate, content: str) -> Claim:
    """Compare the digest of a file with the certified one."""
    expected = certificate.sealed_digest(content)
    what = "digest" if certificate.format > 1 else "digest of the weights only (older certificate)"
    return Claim(what, certificate.digest[:12], expected[:12], expected == certificate.digest)


def checked_group(network: nn.Module) -> FiniteGroup:
    """Return the group that a network is measured against: of its layers, else its own, else quarter turns."""
    groups = {group for group in remaining_groups(network) if group.order > 1}
    if len(groups) > 1:
        raise ValueError(
            f"a certificate is about one group, but the network has layers over {', '.join(g.name for g in groups)}."
        )
    own = getattr(network, "group", None)  # of plain layers with symmetric filters
    named = own if isinstance(own, FiniteGroup) and own.order > 1 else get_group("p4")
    return groups.pop() if groups else named


def digest_of(tensors: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Return the SHA-256 of names, types, shapes and values, in the order of the names."""
    total = hashlib.sha256()
    for name, array in sorted(tensors, key=lambda pair: pair[0]):
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def as_module(network: Network) -> nn.Module:
    """Return a function of images as a module."""
    return _Function(network)


def without_gradients(network: nn.Module) -> Network:
    """Return a module as a function of images that keeps no gradients."""

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = network(images)
        return outputs

    return run


class _Function(nn.Module):
    def __init__(self, function: Network) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _described(option: object) -> object:
    """Return an option for JSON; a class of attention that is not registered is described by its name."""
    return option.__name__ if isinstance(option, type) else encoded_option(option)


def _errors(network: Network, images: Tensor, group: FiniteGroup, output: str | None) -> dict[str, float]:
    layout = cast("Layout | None", output)
    errors = equivariance_error(as_module(network), images, group, output_layout=layout)
    return {str(g): error for g, error in errors.items()}


def _claim(what: str, certified: float, measured: float, rounding: float) -> Claim:
    return Claim(what, f"{certified:.1e}", f"{measured:.1e}", measured <= max(SLACK * certified, rounding))


def _largest_difference(outputs: Tensor, expected: list[float]) -> float:
    flat = outputs.flatten()[: len(expected)].double()
    if len(flat) < len(expected):
        return float("inf")
    return float((flat - torch.tensor(expected, dtype=torch.float64)).abs().max())
