"""ONNX files: the frozen network with named inputs and outputs, a dynamic batch, and a certificate."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend._files import check_target, write_whole
from coattend._words import install
from coattend.export.certificate import KEY, Certificate
from coattend.export.freeze import frozen_with_outputs
from coattend.export.graph import Builder
from coattend.export.measurement import Line, Run, certify, compared, digest_of
from coattend.export.shapes import image_shape_of

if TYPE_CHECKING:
    import onnx

IMAGES, LOGITS, MAPS = "images", "logits", "maps"


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

    Input ``images`` (batch, channels, height, width) float32, any batch; output ``logits``, or ``maps`` if it has more
    than two axes. ``masks`` adds one output
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
            output_names=[LOGITS if logits.ndim == 2 else MAPS, *builder.extra_outputs],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
        )
    assert program is not None
    return _without_remarks(program.model_proto)


def _without_remarks(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Drop what the exporter notes about itself: its source lines hold paths of this machine."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    return proto


def sealed(
    proto: onnx.ModelProto, network: nn.Module, shape: tuple[int, int, int], metadata: Mapping[str, str]
) -> Certificate:
    """Measure a model against the network it was made from, and put the certificate into it."""
    for key, value in metadata.items():
        _add_metadata(proto, key, value)
    certificate = certify(network, runner(proto.SerializeToString()), shape, onnx_digest(proto))
    _add_metadata(proto, KEY, certificate.to_json())
    return certificate


def _add_metadata(proto: onnx.ModelProto, key: str, value: str) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = key, value


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
    _require_plain(proto, path)
    digest = onnx_digest(proto) if certificate.format > 1 else _weight_digest(proto)
    return certificate, compared(certificate, runner(content), digest)


def _require_plain(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse graphs that an export never has: loops may run for ever, and other files may be read."""
    nested = [n.op_type for n in proto.graph.node if any(a.HasField("g") or a.graphs for a in n.attribute)]
    foreign = [f"{n.domain}::{n.op_type}" for n in proto.graph.node if n.domain not in ("", "ai.onnx")]
    constants = [attribute.t for node in proto.graph.node for attribute in node.attribute]
    outside = [t.name for t in (*proto.graph.initializer, *constants) if t.data_location or t.external_data]
    if nested or foreign or outside or proto.functions:
        what = (nested + foreign + outside + [f.name for f in proto.functions])[0]
        raise ValueError(
            f"{path} was not written by `coattend export`, or changed since: it holds {what}, and an export has no "
            "loops, branches, functions, foreign operators or other files."
        )


def runner(content: bytes) -> Run:
    """A model's first output as a function of images; the session starts with the first."""
    import onnxruntime  # type: ignore[import-untyped]

    @functools.cache
    def session() -> Any:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4  # what fails is raised
        return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        try:
            name, first = session().get_inputs()[0].name, session().get_outputs()[0].name
            (logits,) = session().run([first], {name: images.numpy()})
            return torch.from_numpy(logits)
        except Exception as error:  # onnxruntime's errors have no common class
            reason = str(error).partition("\n")[0][:300]
            raise ValueError(f"onnxruntime cannot run the graph ({reason}); export the network again.") from error

    return run


def onnx_digest(proto: onnx.ModelProto) -> str:
    """The digest of a whole model, graph and metadata, without its certificate."""
    whole = type(proto)()
    whole.CopyFrom(proto)
    for entry in [entry for entry in whole.metadata_props if entry.key == KEY]:
        whole.metadata_props.remove(entry)
    return hashlib.sha256(whole.SerializeToString(deterministic=True)).hexdigest()


def _weight_digest(proto: onnx.ModelProto) -> str:
    """The digest that certificates of format 1 have: of initialisers and constants."""
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
