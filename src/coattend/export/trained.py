"""``coattend export``: a run folder or a model file into the format that the new file's name asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from coattend._files import check_target
from coattend.data import load_data
from coattend.export.certificate import Certificate
from coattend.export.formats import export_frozen, export_pt2, export_safetensors
from coattend.export.int8 import export_int8
from coattend.export.onnx import export_onnx
from coattend.models import EquivariantNetwork, load_model, read_model_file
from coattend.models.classifier import load_trained, recipe_of, weights_file
from coattend.nn import PoseAttention

SUFFIXES = (".onnx", ".pt2", ".pt", ".safetensors")
CALIBRATION, TEST = 500, 2000  # images


def export_file(
    source: str,
    to: Path,
    *,
    size: int | None = None,
    masks: bool = False,
    responses: bool = False,
    int8: bool = False,
    data: str | None = None,
    overwrite: bool = False,
) -> Iterator[str]:
    """Export, and tell what was measured, as lines for a person."""
    if to.suffix not in SUFFIXES:
        raise ValueError(f"--to expects a file that ends in {', '.join(SUFFIXES)}, got {to.name!r}.")
    for option, given in (("--masks", masks), ("--responses", responses), ("--int8", int8)):
        if given and to.suffix != ".onnx":
            raise ValueError(f"{option} is for .onnx only, got {to.name!r}.")
    if data is not None and not int8:
        raise ValueError("--data names the images that --int8 is calibrated and tested on; add --int8 or leave it out.")
    if int8 and (masks or responses or size):
        raise ValueError("--int8 goes without --masks, --responses and --size.")
    check_target(to, overwrite)
    weights = weights_file(source)
    network = load_model(weights).float().eval()
    if masks and not any(isinstance(module, PoseAttention) for module in network.modules()):
        raise ValueError("--masks adds the masks of attention, and this network has none; leave it out.")
    if int8:
        yield from _int8(weights, network, to, data, overwrite)
        return
    if to.suffix == ".onnx":
        certificate = export_onnx(
            network, to, size=size, masks=masks, responses=responses, metadata=_metadata(weights), overwrite=overwrite
        )
    elif to.suffix == ".safetensors":
        if size is not None:
            raise ValueError("--size is for exports that fix it; a .safetensors file does not.")
        certificate = export_safetensors(weights, to, overwrite=overwrite)
    else:
        certificate = (export_pt2 if to.suffix == ".pt2" else export_frozen)(
            network, to, size=size, overwrite=overwrite
        )
    yield from _summary(to, certificate)


def _summary(to: Path, certificate: Certificate) -> Iterator[str]:
    worst = max(certificate.equivariance.values())
    shape = " x ".join(map(str, certificate.image_shape))
    yield f"{to}: {certificate.model} for images {shape}, {to.stat().st_size:,} bytes"
    yield f"largest difference to the original {certificate.parity:.1e} on {certificate.probes} random images"
    yield f"equivariance error {worst:.1e} over {certificate.acting_group.name}, digest {certificate.digest[:12]}"


def _int8(
    weights: Path, network: EquivariantNetwork, to: Path, data_name: str | None, overwrite: bool
) -> Iterator[str]:
    trained = load_trained(weights)
    data = load_data(data_name or recipe_of(weights)["data"], size=trained.image_shape[1], fit=trained.fit)
    prepared: list[Tensor] = [
        trained.preprocessing(images) for images in (data.train.images[:CALIBRATION], data.test.images[:TEST])
    ]
    found = export_int8(
        network,
        to,
        calibration=prepared[0],
        test_images=prepared[1],
        test_labels=data.test.labels[:TEST],
        metadata=_metadata(weights),
        overwrite=overwrite,
    )
    yield from _summary(to, found.certificate)
    yield f"calibrated on {len(prepared[0]):,} images of {data.name} ({data.provenance}), tested on {found.images:,}"
    yield f"test error {found.error_before:.2f}% in float32, {found.error_after:.2f}% in int8"
    yield (
        f"equivariance error on real images {found.equivariance_before:.1e} in float32, "
        f"{found.equivariance_after:.1e} in int8; {found.bytes_before:,} bytes before, {found.bytes_after:,} after"
    )


def _metadata(weights: Path) -> dict[str, str]:
    """What a user needs besides the network: preprocessing with what it learnt, names of the classes, provenance."""
    metadata, _, extra = read_model_file(weights)
    kept = {f"coattend.{key}": metadata[key] for key in ("preprocessing", "classes", "provenance") if key in metadata}
    learnt = {name: tensor.flatten().tolist() for name, tensor in extra.items() if tensor.numel() <= 16}
    return {**kept, "coattend.learnt": json.dumps(learnt)} if learnt else kept
