"""What was measured of a network when its file was written: the certificate in an exported file."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coattend.groups import FiniteGroup
from coattend.models.options import decoded_group
from coattend.version import __version__

FORMAT = 2  # 1: the digest is one of the weights alone
KEY = "coattend.certificate"  # in ONNX metadata; "certificate" in a safetensors header
PROBES = 4  # images of normal random numbers
SEED = 0
STORED_OUTPUTS = 1000  # of the original, for parity to be measured again
MOST_NUMBERS = 2**24  # in all images together


@dataclass(frozen=True, repr=False)
class Certificate:
    """Which network it is, and what was measured: parity with the original, equivariance, and a digest.

    ``parity`` is the largest absolute difference to the outputs of the original network, ``reference``, on ``probes``
    images of normal random numbers drawn by numpy's default generator with ``seed``; ``equivariance`` the relative
    error of every element of the group on the same images; ``digest`` is made of the file's content and of all other
    fields.
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

    def __repr__(self) -> str:
        """Print what matters; the outputs of the original alone are a thousand numbers."""
        shape = " x ".join(map(str, self.image_shape))
        return (
            f"Certificate({self.model} over {self.acting_group.name}, images {shape}, largest difference "
            f"{self.parity:.1e}, largest equivariance error {max(self.equivariance.values()):.1e}, digest "
            f"{self.digest[:12]})"
        )

    def to_json(self) -> str:
        """As text for a file's header."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, where: str) -> Certificate:
        """From a file's header, which may hold anything."""
        try:
            fields = json.loads(text)
            version = fields.get("format", 0)
            if _is_whole(version, 1, 10**6) and version > FORMAT:
                raise ValueError(
                    f"{where} has a certificate of format {version}, this is coattend {__version__} and reads up to "
                    f"format {FORMAT}; upgrade the library."
                )
            certificate = Certificate(**{**fields, "image_shape": tuple(fields["image_shape"])})
            wrong = certificate.wrong_field()
        except (AttributeError, TypeError, KeyError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"the certificate in {where} is damaged ({error}); export the network again.") from error
        if wrong is not None:
            raise ValueError(f"the certificate in {where} is damaged: {wrong}; export the network again.")
        return certificate

    def wrong_field(self) -> str | None:
        """What of a certificate that was read cannot be, in words; None if all of it can."""
        for name in ("model", "digest", "version", "torch"):
            if not isinstance(getattr(self, name), str):
                return f"{name} is not text"
        try:
            elements = {str(g) for g in self.acting_group.elements}
        except (ValueError, TypeError, KeyError) as error:
            return f"its group is none ({str(error)[:100].rstrip('.')})"
        shape = self.image_shape
        checks = {
            "format": _is_whole(self.format, 1, FORMAT),
            "options": isinstance(self.options, dict),
            "image_shape": len(shape) == 3 and all(_is_whole(n, 1, MOST_NUMBERS) for n in shape),
            "probes": _is_whole(self.probes, 1, 1000),
            "seed": _is_whole(self.seed, 0, 2**32),
            "digest": bool(re.fullmatch("[0-9a-f]{64}", self.digest)),
            "parity": _is_error(self.parity),
            "reference": isinstance(self.reference, list) and 0 < len(self.reference) <= STORED_OUTPUTS,
            "equivariance": isinstance(self.equivariance, dict) and set(self.equivariance) == elements,
        }
        for name, holds in checks.items():
            if not holds:
                return f"{name} is {str(getattr(self, name))[:60]!r}"
        if self.probes * math.prod(shape) > MOST_NUMBERS:
            return f"{self.probes} images {shape} are too large"
        if not all(map(_is_error, self.equivariance.values())):
            return "an equivariance error is not a number"
        if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in self.reference):
            return "an output of the original is not a number"
        return None

    def sealed_digest(self, content: str) -> str:
        """The digest that the certificate must carry in a file with this content, given by a digest of its own."""
        if self.format == 1:
            return content
        fields = {key: value for key, value in asdict(self).items() if key != "digest"}
        return hashlib.sha256(f"{json.dumps(fields, sort_keys=True)}\n{content}".encode()).hexdigest()

    @property
    def acting_group(self) -> FiniteGroup:
        """The group whose elements were measured."""
        return decoded_group(self.group)

    def probe_images(self) -> Tensor:
        """The images that everything was measured on."""
        return probe_images(self.image_shape, self.probes, self.seed)


def probe_images(shape: tuple[int, int, int], count: int, seed: int) -> Tensor:
    """Images of normal random numbers that anybody with numpy can draw again."""
    drawn = np.random.default_rng(seed).standard_normal((count, *shape))
    return torch.from_numpy(drawn.astype(np.float32))


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_error(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
