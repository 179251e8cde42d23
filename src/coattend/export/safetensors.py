"""Model files with a certificate: the file that save_model or training wrote, and what was measured of its network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from coattend._files import check_target, write_whole
from coattend.export.certificate import Certificate
from coattend.export.formats import load_network, register_format
from coattend.export.input import NORMALIZED, input_of
from coattend.export.measurement import CertificateCheck, certify, check, checked_group, digest_of, without_gradients
from coattend.models import load_model, read_model_file
from coattend.models.classifier import Classifier, weights_file
from coattend.models.serialization import model_file_content

KEY = "certificate"  # in the header


def check_safetensors(path: Path) -> CertificateCheck | None:
    """Measure again what the certificate in the header of a model file claims; None if it has none."""
    if not path.is_file():
        return None
    metadata, weights, extra = read_model_file(path)
    if KEY not in metadata:
        return None
    certificate = Certificate.from_json(metadata[KEY], str(path))
    network = load_model(path).eval() if certificate.input == NORMALIZED else load_network(path)
    if checked_group(network) != certificate.acting_group:
        raise ValueError(
            f"the certificate in {path} is about {certificate.acting_group.name}, the network over "
            f"{checked_group(network).name}; it was not made for this file, export the network again."
        )
    return check(path, certificate, without_gradients(network), tensor_digest({**weights, **extra}))


def export_safetensors(source: str | Path, path: str | Path, *, overwrite: bool = False) -> Certificate:
    """Copy a file written by save_model or training, with a certificate in its header; load_model reads both."""
    weights = weights_file(source)
    return write_safetensors(load_network(weights), path, source=weights, overwrite=overwrite)


@register_format(".safetensors", "the same file, with a certificate", options=("source",), check=check_safetensors)
def write_safetensors(
    network: nn.Module, path: str | Path, *, source: str | Path, overwrite: bool = False
) -> Certificate:
    """Write the network with the metadata and extra tensors of its source, and with a certificate."""
    path = Path(path)
    check_target(path, overwrite)
    metadata, _, extra = read_model_file(source)
    inner = network.network if isinstance(network, Classifier) else network
    digest = tensor_digest({**inner.state_dict(), **extra})
    certificate = certify(network, without_gradients(network), input_of(network), digest)
    write_whole(path, model_file_content(inner, {**metadata, KEY: certificate.to_json()}, extra))
    return certificate


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of tensors by name."""
    return digest_of((name, tensor.detach().cpu().numpy()) for name, tensor in tensors.items())
