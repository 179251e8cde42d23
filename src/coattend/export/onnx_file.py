"""ONNX files: the frozen network with named inputs and outputs, a dynamic batch, and a certificate."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend.export.builder import Builder
from coattend.export.certificate import KEY, Certificate, Line, Run, certify, compared, digest_of
from coattend.export.freezing import frozen_with_outputs
from coattend.export.shapes import image_shape_of
from coattend.export.target import check_target
from coattend.extras import install
from coattend.models.files import write_whole

if TYPE_CHECKING:
    import onnx

IMAGES, LOGITS = "images", "logits"


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

    Input ``images`` (batch, channels, height, width) float32, any batch; output ``logits``. ``masks`` adds one output
    ``mask:<layer>`` (batch, channels, group, height, width) per co-attention, named and shaped as in
    :func:`coattend.attention_masks`. ``responses`` adds ``response:<layer>``: what goes into each attention, and what
    comes out of each convolution; then norms stay apart from the convolutions. ``size`` is the height and width of the
    images, by default those of the network's data set. ``metadata`` goes into the file beside the certificate, which is
    returned.
    """
    path = Path(path)
    check_target(path, overwrite)
    shape = image_shape_of(network, size)
    proto = onnx_model(network, shape, masks=masks, responses=responses)
    certificate = sealed(proto, network, shape, metadata or {})
    write_whole(path, proto.SerializeToString())
    return certificate


def onnx_model(
    network: nn.Module, image_shape: tuple[int, int, int], *, masks: bool = False, responses: bool = False
) -> onnx.ModelProto:
    """The frozen network as an ONNX model without a certificate."""
    _needed()
    builder = Builder(masks, responses, eager=False)
    frozen = frozen_with_outputs(network, builder)
    example = torch.zeros(2, *image_shape, dtype=torch.float32)
    with torch.no_grad():
        outputs = frozen(example)
    logits = outputs[0] if builder.extra_outputs else outputs
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"export_onnx writes networks that return one tensor, got {type(logits).__name__} from "
            f"{type(network).__name__}; pass freeze(network) to torch.onnx.export for others."
        )
    with _quiet():
        program = torch.onnx.export(
            frozen,
            (example,),
            dynamo=True,
            input_names=[IMAGES],
            output_names=[LOGITS, *builder.extra_outputs],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
        )
    assert program is not None
    return program.model_proto


def sealed(
    proto: onnx.ModelProto, network: nn.Module, shape: tuple[int, int, int], metadata: Mapping[str, str]
) -> Certificate:
    """Measure a model against the network it was made from, and put the certificate into it."""
    certificate = certify(network, runner(proto.SerializeToString()), shape, onnx_digest(proto))
    for key, value in {**metadata, KEY: certificate.to_json()}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    return certificate


def check_onnx(path: str | Path) -> tuple[Certificate, list[Line]]:
    """Recompute the certificate of an ONNX file with onnxruntime; no code of the network is involved."""
    onnx = _needed()
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected an .onnx file written by `coattend export`.")
    content = path.read_bytes()
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError has no public name
        raise ValueError(f"{path} is not a whole ONNX file ({error}); copy or export it again.") from error
    certificates = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    if not certificates:
        raise ValueError(f"{path} has no certificate; expected a file written by `coattend export`.")
    certificate = Certificate.from_json(certificates[0], str(path))
    return certificate, compared(certificate, runner(content), onnx_digest(proto))


def runner(content: bytes) -> Run:
    """A model's first output as a function of images."""
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name, first = session.get_inputs()[0].name, session.get_outputs()[0].name

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run([first], {name: images.numpy()})
        return torch.from_numpy(logits)

    return run


def onnx_digest(proto: onnx.ModelProto) -> str:
    """The digest of all numbers in a model: initialisers and constants."""
    from onnx import numpy_helper

    found: list[tuple[str, NDArray[Any]]] = [(t.name, numpy_helper.to_array(t)) for t in proto.graph.initializer]
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                found.append((node.output[0], numpy_helper.to_array(attribute.t)))
    return digest_of(found)


def _needed() -> Any:
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f"ONNX needs {error.name}; {install('onnx')}.") from error
    return onnx


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's progress and its remarks about its own insides are not for our users."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
