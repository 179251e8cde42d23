"""The certificate in an exported file: what was measured of the network when the file was written."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from coattend.equivariance.fields import ORIENTATIONS
from coattend.export.input import KINDS, NORMALIZED, Input
from coattend.groups import FiniteGroup
from coattend.models.options import decoded_group
from coattend.version import __version__

FORMAT = 4  # 1: the digest is that of the weights alone; 2: without the field "input"; 3: without "output"
LATER = {2: ("input", "output"), 3: ("output",)}  # fields that a format does not have
KEY = "coattend.certificate"  # in ONNX metadata; "certificate" in a safetensors header
PROBES = 4  # random images
SEED = 0
STORED_OUTPUTS = 1000  # outputs of the original that are kept to measure parity again
MOST_NUMBERS = 2**24  # in all images together


@dataclass(frozen=True, repr=False)
class Certificate:
    """The identity of a network and what was measured of it: parity with the original, equivariance, and a digest.

    - parity: the largest absolute difference to the outputs of the original network, ``reference``, on ``probes``
      random images drawn with ``seed`` (see :meth:`Input.probes`)
    - equivariance: the relative error of every element of the group on the same images
    - digest: SHA-256 of the file's content and of all other fields
    - input: whether the images are ``"pixels"`` from 0 to 255 or ``"normalized"``
    - output: ``"vector"`` or ``"axis"`` if the outputs are such fields, else None, if their axes tell how they move
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
    input: str = NORMALIZED
    output: str | None = None

    def __repr__(self) -> str:
        """Leave out the outputs of the original, which are up to a thousand numbers."""
        shape = " x ".join(map(str, self.image_shape))
        return (
            f"Certificate({self.model} over {self.acting_group.name}, images {shape}, largest difference "
            f"{self.parity:.1e}, largest equivariance error {max(self.equivariance.values()):.1e}, digest "
            f"{self.digest[:12]})"
        )

    def __str__(self) -> str:
        """Return what was measured, in sentences for the user."""
        worst = max(self.equivariance.values())
        return (
            f"{self.model} for {self.images}\n"
            f"largest difference to the original {self.parity:.1e} on {self.probes} random images\n"
            f"equivariance error {worst:.1e} over {self.acting_group.name}, digest {self.digest[:12]}"
        )

    def to_json(self) -> str:
        """Return the certificate as text for the header of a file."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, where: str) -> Certificate:
        """Read a certificate from the header of a file, which may contain anything."""
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
        """Return which field has an impossible value, in words; None if none has."""
        for name in ("model", "digest", "version", "torch"):
            if not isinstance(getattr(self, name), str):
                return f"{name} is not text"
        try:
            elements = {str(g) for g in self.acting_group.elements}
        except (ValueError, TypeError, KeyError) as error:
            return f"its group is not a group ({str(error)[:100].rstrip('.')})"
        shape = self.image_shape
        checks = {
            "format": _is_whole(self.format, 1, FORMAT),
            "input": self.input in (KINDS if self.format > 2 else (NORMALIZED,)),
            "output": self.output in (None, *(ORIENTATIONS if self.format > 3 else ())),
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
        """Return the digest of this certificate together with the content of a file, given by its own digest."""
        if self.format == 1:
            return content
        absent = ("digest", *LATER.get(self.format, ()))
        fields = {key: value for key, value in asdict(self).items() if key not in absent}
        return hashlib.sha256(f"{json.dumps(fields, sort_keys=True)}\n{content}".encode()).hexdigest()

    @property
    def acting_group(self) -> FiniteGroup:
        """The group whose elements were measured."""
        return decoded_group(self.group)

    @property
    def images(self) -> Input:
        """The images that the network takes."""
        return Input(self.input, self.image_shape)

    def probe_images(self) -> Tensor:
        """Return the images on which everything was measured."""
        return self.images.probes(self.probes, self.seed)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_error(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
