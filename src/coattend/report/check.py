"""``coattend check``: the equivariance of a network, element by element, and the certificate of an exported file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from coattend.equivariance import diagnose
from coattend.equivariance.diagnose import Diagnosis
from coattend.export import CertificateCheck, check_certificate
from coattend.export.formats import FORMATS, format_of
from coattend.export.input import MOST_PIXELS
from coattend.groups import FiniteGroup, get_group
from coattend.models import EquivariantNetwork, create_model, exactness_line, load_model, model_entry
from coattend.models.classifier import weights_file
from coattend.models.hub import is_hub_address
from coattend.nn.observe import estimate_norm_statistics

MODEL_FILE = ".safetensors"  # the one export format that is also measured as a network


@dataclass(frozen=True)
class CheckedNetwork:
    """The equivariance of a network on images of one size.

    ``exactness`` says whether it is exact at this size; None for a group other than the network's.
    """

    model: str
    image_size: tuple[int, int]
    group: FiniteGroup
    diagnosis: Diagnosis
    exactness: str | None


@dataclass(frozen=True)
class Check:
    """What was checked: the certificate if there is one, and the network unless the certificate is all that can be."""

    certificate: CertificateCheck | None
    network: CheckedNetwork | None

    @property
    def holds(self) -> bool:
        """Whether the certificate agrees and the network is equivariant."""
        certified = self.certificate is None or self.certificate.agrees
        return certified and (self.network is None or self.network.diagnosis.is_equivariant)


def check_network(model: str, size: int | None = None, group: str | None = None, seed: int = 0) -> Check:
    """Measure the equivariance of a network, given by a name, a run folder or a file, and check its certificate."""
    if size is not None and not 1 <= size <= MOST_PIXELS:
        raise ValueError(f"--size expects the height and width of images, 1 to {MOST_PIXELS} pixels, got {size}.")
    torch.manual_seed(seed)
    file = _file(model)
    exported = file is not None and format_of(file) not in (None, FORMATS[MODEL_FILE])
    if exported and (size is not None or group is not None):
        raise ValueError(
            f"{file} is checked at the size and over the group of its certificate; leave --size and --group out, or "
            "check the network that it was exported from."
        )
    certificate = None if file is None else check_certificate(file)
    if certificate is not None and (exported or not certificate.agrees):
        return Check(certificate, None)
    if exported:
        raise ValueError(f"{file} has no certificate; expected a file written by `coattend export`.")
    network = (create_model(model) if file is None else load_model(file)).double()
    image_size = (size, size) if size is not None else _image_size(network)
    against = get_group(group) if group else network.acting_group
    images = torch.randn(4, network.in_channels, *image_size, dtype=torch.float64)
    if file is None:
        estimate_norm_statistics(network, [images])
    diagnosis = diagnose(network, images[:2], against, tol=1e-10)
    exactness = exactness_line(network, image_size) if against == network.group else None
    return Check(certificate, CheckedNetwork(model, image_size, against, diagnosis, exactness))


def _file(model: str) -> Path | None:
    """Return the file, or that of the weights of a run folder; None for the name of a network."""
    if os.path.isdir(model) or is_hub_address(model):
        return weights_file(model)
    path = Path(model)
    if os.path.isfile(model):
        return path
    if format_of(path) is not None:
        raise ValueError(f"there is no file {model[:200]}; expected one that save_model or `coattend export` wrote.")
    return None


def _image_size(network: EquivariantNetwork) -> tuple[int, int]:
    """Return height and width of the images that the network was trained on, else of its dataset."""
    if network.image_shape is not None:
        return network.image_shape[1:]
    assert network.config is not None
    size = model_entry(network.config.model).image_size
    return size, size
