"""ONNX files: the frozen network with named inputs and outputs, batches of any size, and a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from coattend._files import check_target, write_whole
from coattend.data import load_data
from coattend.export.certificate import Certificate
from coattend.export.formats import register_format
from coattend.export.input import input_of
from coattend.export.int8 import Quantization, export_int8
from coattend.export.onnx_check import check_onnx
from coattend.export.onnx_model import onnx_model, seal
from coattend.models.classifier import Classifier
from coattend.nn import PoseAttention

CALIBRATION, TEST = 500, 2000  # images


def export_onnx(
    network: nn.Module,
    path: str | Path,
    *,
    size: int | None = None,
    masks: bool = False,
    responses: bool = False,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Certificate:
    """Write a network in evaluation mode as ONNX, in one file that needs neither torch nor this library.

    Input ``images`` (batch, channels, height, width) in float32, any batch size: pixels from 0 to 255 for a
    ``Classifier``, whose preprocessing is part of the graph, normalized images for a network alone. Output ``logits``,
    or ``maps`` if it has more than two axes. The metadata of the file says all this, and names the classes.

    - size: height and width of the images, by default those that the network was trained on, else of its dataset
    - masks: add an output ``mask:<layer>`` (batch, channels, group, height, width) per attention layer, named and
      shaped as in :func:`coattend.attention_masks`
    - responses: add an output ``response:<layer>`` with the input of each attention layer and the output of each
      convolution; then norms are not folded into the convolutions
    - metadata: further texts for the metadata of the file
    """
    path = Path(path)
    check_target(path, overwrite)
    images = input_of(network, size)
    if masks and not any(isinstance(module, PoseAttention) for module in network.modules()):
        raise ValueError("masks (--masks) are those of attention layers, and this network has none; leave them out.")
    proto = onnx_model(network, images, masks=masks, responses=responses)
    certificate = seal(proto, network, images, metadata or {})
    write_whole(path, proto.SerializeToString())
    return certificate


@register_format(
    ".onnx",
    "onnxruntime, browsers, phones",
    options=("size", "masks", "responses", "int8", "data"),
    check=check_onnx,
)
def write_onnx(
    network: nn.Module,
    path: Path,
    *,
    size: int | None = None,
    masks: bool = False,
    responses: bool = False,
    int8: bool = False,
    data: str | None = None,
    overwrite: bool = False,
) -> Certificate | Quantization:
    """Write ONNX in float32, or in int8, calibrated and tested on a dataset, by default that of the training."""
    if data is not None and not int8:
        raise ValueError("--data names the images that --int8 is calibrated and tested on; add --int8 or leave it out.")
    if not int8:
        return export_onnx(network, path, size=size, masks=masks, responses=responses, overwrite=overwrite)
    if masks or responses or size:
        raise ValueError("--int8 cannot be combined with --masks, --responses or --size.")
    if not isinstance(network, Classifier):
        raise ValueError(
            "--int8 is calibrated on images, but the file holds a network without its preprocessing; expected a file "
            "written by `coattend train`."
        )
    if network.task.name != "classification":
        raise ValueError(f"--int8 reports the test error of classifiers, and this network is for {network.task.name}.")
    data = data or network.dataset
    if data is None:
        raise ValueError("--int8 is calibrated on images; name a dataset with --data.")
    images = load_data(data, size=network.image_shape[1], fit=network.fit)
    test = images.test.head(TEST).in_memory()
    return export_int8(
        network,
        path,
        calibration=images.train.head(CALIBRATION).in_memory().images,
        test_images=test.images,
        test_labels=test.labels,
        overwrite=overwrite,
    )
