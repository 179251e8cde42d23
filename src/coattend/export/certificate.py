"""What was measured of a network when its file was written, and how to measure it again from the file alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend.equivariance import equivariance_error
from coattend.equivariance.error import TOLERANCE
from coattend.groups import FiniteGroup, get_group
from coattend.models import EquivariantNetwork
from coattend.models.options import decoded_group, encoded_option
from coattend.nn import PoseConv2d, evaluating
from coattend.version import __version__

FORMAT = 1
KEY = "coattend.certificate"  # in ONNX metadata; "certificate" in a safetensors header
PROBES = 4  # images of normal random numbers
SEED = 0
STORED_OUTPUTS = 1000  # of the original, for parity to be measured again
SLACK = 2.0  # another processor rounds otherwise

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Certificate:
    """Which network it is, and what was measured: parity with the original, equivariance, and a digest.

    ``parity`` is the largest absolute difference to the outputs of the original network, ``reference``, on ``probes``
    images of normal random numbers drawn by numpy's default generator with ``seed``; ``equivariance`` the relative
    error of every element of the group on the same images.
    """

    model: str
    options: dict[str, Any]
    group: Any
    image_shape: tuple[int, int, int]
    parity: float
    equivariance: dict[str, float]
    reference: list[float]
    digest: str
    probes: int = PROBES
    seed: int = SEED
    version: str = __version__
    torch: str = torch.__version__
    format: int = FORMAT

    def to_json(self) -> str:
        """As text for a file's header."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, where: str) -> Certificate:
        """From a file's header."""
        fields = json.loads(text)
        if fields.get("format", 0) > FORMAT:
            raise ValueError(
                f"{where} has a certificate of format {fields['format']}, this is coattend {__version__} and reads up "
                f"to format {FORMAT}; upgrade the library."
            )
        return Certificate(**{**fields, "image_shape": tuple(fields["image_shape"])})

    @property
    def acting_group(self) -> FiniteGroup:
        """The group whose elements were measured."""
        return decoded_group(self.group)

    def probe_images(self) -> Tensor:
        """The images that everything was measured on."""
        return probe_images(self.image_shape, self.probes, self.seed)


@dataclass(frozen=True)
class Line:
    """One thing that was certified: what it is, what the certificate says, what was found, whether they agree."""

    what: str
    certified: str
    found: str
    agrees: bool


def certify(original: nn.Module, run: Run, image_shape: tuple[int, int, int], digest: str) -> Certificate:
    """Measure ``run``, which is what a file computes, against the original network and its group."""
    images = probe_images(image_shape, PROBES, SEED)
    with evaluating(original):
        expected = original(images)
    config = original.config if isinstance(original, EquivariantNetwork) and original.config else {}
    group = checked_group(original)
    return Certificate(
        model=config.get("model", type(original).__name__),
        options={key: encoded_option(value) for key, value in config.get("options", {}).items()},
        group=encoded_option(group),
        image_shape=image_shape,
        parity=_largest_difference(run(images), expected.flatten().tolist()),
        equivariance=_errors(run, images, group),
        reference=expected.flatten()[:STORED_OUTPUTS].tolist(),
        digest=digest,
    )


def compared(certificate: Certificate, run: Run, digest: str) -> list[Line]:
    """Measure again what a certificate says; smaller errors than certified agree with it."""
    images = certificate.probe_images()
    rounding = 1e-5 * max(1.0, max(map(abs, certificate.reference)))
    parity = _largest_difference(run(images)[:STORED_OUTPUTS], certificate.reference)
    lines = [
        Line("digest of the weights", certificate.digest[:12], digest[:12], digest == certificate.digest),
        _line("difference to the original", certificate.parity, parity, rounding),
    ]
    group = certificate.acting_group
    for g, error in _errors(run, images, group).items():
        certified = certificate.equivariance[g]
        lines.append(_line(f"equivariance: {group.describe(int(g))}", certified, error, TOLERANCE[torch.float32]))
    return lines


def checked_group(network: nn.Module) -> FiniteGroup:
    """The group a network is measured against: its own, for plain networks quarter turns."""
    groups = {m.group for m in network.modules() if isinstance(m, PoseConv2d) and m.group.order > 1}
    if len(groups) > 1:
        raise ValueError(
            f"a certificate is about one group, but the network has layers over {', '.join(g.name for g in groups)}."
        )
    return groups.pop() if groups else get_group("p4")


def probe_images(shape: tuple[int, int, int], count: int, seed: int) -> Tensor:
    """Images of normal random numbers that anybody with numpy can draw again."""
    drawn = np.random.default_rng(seed).standard_normal((count, *shape))
    return torch.from_numpy(drawn.astype(np.float32))


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
