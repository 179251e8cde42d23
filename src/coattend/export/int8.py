"""int8: the frozen network with quantized convolutions, calibrated on real images, and the cost of that."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coattend._files import check_target, write_whole
from coattend.equivariance import equivariance_error
from coattend.export.certificate import Certificate
from coattend.export.input import input_of
from coattend.export.measurement import Network, as_module, checked_group
from coattend.export.onnx_check import runner
from coattend.export.onnx_model import IMAGES, onnx_model, seal

if TYPE_CHECKING:
    import onnx

BATCH = 100


@dataclass(frozen=True)
class Quantization:
    """What quantization changed: test errors in percent, the largest equivariance error on real images, and bytes."""

    certificate: Certificate
    images: int
    error_before: float
    error_after: float
    equivariance_before: float
    equivariance_after: float
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        """Return what was measured, in sentences for the user."""
        return (
            f"{self.certificate}\n"
            f"test error {self.error_before:.2f}% in float32, {self.error_after:.2f}% in int8, {self.images:,} images\n"
            f"equivariance error on real images {self.equivariance_before:.1e} in float32, "
            f"{self.equivariance_after:.1e} in int8; {self.bytes_before:,} bytes before, {self.bytes_after:,} after"
        )


def export_int8(
    network: nn.Module,
    path: str | Path,
    *,
    calibration: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    metadata: dict[str, str] | None = None,
    overwrite: bool = False,
) -> Quantization:
    """Write ONNX whose convolutions compute with 8-bit integers; preprocessing, attention and pooling stay in float.

    - calibration: images of the training, from which the ranges of the activations are computed: pixels for a
      ``Classifier``, preprocessed images for a network alone
    - test_images, test_labels: what the loss of accuracy is measured on
    """
    path = Path(path)
    check_target(path, overwrite)
    channels, height, width = calibration.shape[1:]
    images = input_of(network, height)
    if (channels, height, width) != images.shape:
        raise ValueError(
            f"the network takes images {images.shape}, the calibration images are {(channels, height, width)}."
        )
    calibration, test_images = calibration.float(), test_images.float()
    before = onnx_model(network, images)
    after = _quantized(before, calibration)
    certificate = seal(after, network, images, metadata or {})
    networks = [runner(proto.SerializeToString()) for proto in (before, after)]
    error_before, error_after = (_error(run, test_images, test_labels) for run in networks)
    group = checked_group(network)
    moved_before, moved_after = (
        max(equivariance_error(as_module(run), test_images[:8], group).values()) for run in networks
    )
    content = after.SerializeToString()
    write_whole(path, content)
    return Quantization(
        certificate,
        images=len(test_images),
        error_before=error_before,
        error_after=error_after,
        equivariance_before=moved_before,
        equivariance_after=moved_after,
        bytes_before=before.ByteSize(),
        bytes_after=len(content),
    )


def _quantized(proto: onnx.ModelProto, calibration: Tensor) -> onnx.ModelProto:
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
        with _without_advice():
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
        return onnx.load(target)


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the advice to preprocess the graph first, which changes nothing here; it goes to the root logger."""

    def is_other(record: logging.LogRecord) -> bool:
        return "pre-processing before quantization" not in record.getMessage()

    logging.getLogger().addFilter(is_other)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_other)


def _attention_nodes(proto: onnx.ModelProto) -> list[str]:
    """Return the convolutions that compute logits of attention: their results are exponents."""
    return [node.name for node in proto.graph.node if any(name.endswith(".logits.weight") for name in node.input)]


def _error(run: Network, images: Tensor, labels: Tensor) -> float:
    predicted = torch.cat([run(batch).argmax(1) for batch in images.split(BATCH)])
    return 100 * float((predicted != labels).double().mean())
