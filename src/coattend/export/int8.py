"""int8: the frozen network with quantised convolutions, calibrated on real images, and what that costs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coattend._files import check_target, write_whole
from coattend.equivariance import equivariance_error
from coattend.export.certificate import Certificate
from coattend.export.measurement import Run, as_module, checked_group
from coattend.export.onnx import IMAGES, onnx_model, runner, sealed
from coattend.export.shapes import image_shape_of
from coattend.models import EquivariantNetwork

if TYPE_CHECKING:
    import onnx

BATCH = 100


@dataclass(frozen=True)
class Quantised:
    """What quantisation did: test errors in percent, and the largest equivariance error on real images."""

    certificate: Certificate
    images: int
    error_before: float
    error_after: float
    equivariance_before: float
    equivariance_after: float
    bytes_before: int
    bytes_after: int


def export_int8(
    network: EquivariantNetwork,
    path: str | Path,
    *,
    calibration: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    metadata: dict[str, str] | None = None,
    overwrite: bool = False,
) -> Quantised:
    """Write ONNX whose convolutions compute with 8-bit integers; attention and pooling stay in float32.

    ``calibration``: preprocessed training images, from which the ranges of the activations are learnt;
    ``test_images``, ``test_labels``: what the loss of accuracy is measured on.
    """
    path = Path(path)
    check_target(path, overwrite)
    channels, height, width = calibration.shape[1:]
    shape = image_shape_of(network, height)
    if (channels, height, width) != shape:
        raise ValueError(f"the network takes images {shape}, the calibration images are {(channels, height, width)}.")
    before = onnx_model(network, shape)
    after = _quantised(before, calibration)
    certificate = sealed(after, network, shape, metadata or {})
    runs = [runner(proto.SerializeToString()) for proto in (before, after)]
    error_before, error_after = (_error(run, test_images, test_labels) for run in runs)
    group = checked_group(network)
    before_moving, after_moving = (
        max(equivariance_error(as_module(run), test_images[:8], group).values()) for run in runs
    )
    content = after.SerializeToString()
    write_whole(path, content)
    return Quantised(
        certificate,
        images=len(test_images),
        error_before=error_before,
        error_after=error_after,
        equivariance_before=before_moving,
        equivariance_after=after_moving,
        bytes_before=before.ByteSize(),
        bytes_after=len(content),
    )


def _quantised(proto: onnx.ModelProto, calibration: Tensor) -> onnx.ModelProto:
    import onnx
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Batches(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[Tensor] = iter(calibration.split(BATCH))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {IMAGES: batch.numpy()}

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        source.write_bytes(proto.SerializeToString())
        logging.disable(logging.WARNING)  # it advises a pass over the graph that changes nothing here
        try:
            quantize_static(
                source,
                target,
                Batches(),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["Conv"],
                nodes_to_exclude=_attention_nodes(proto),
                per_channel=True,
                reduce_range=True,  # products of 8-bit numbers overflow on processors without VNNI
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(target)


def _attention_nodes(proto: onnx.ModelProto) -> list[str]:
    """The convolutions that make logits: their results are exponents."""
    return [node.name for node in proto.graph.node if any(name.endswith(".logits.weight") for name in node.input)]


def _error(run: Run, images: Tensor, labels: Tensor) -> float:
    predicted = torch.cat([run(batch).argmax(1) for batch in images.split(BATCH)])
    return 100 * float((predicted != labels).double().mean())
