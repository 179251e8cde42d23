"""The frozen network as an ONNX model, with metadata and a certificate."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coattend.export.certificate import KEY, Certificate
from coattend.export.freeze import frozen_with_outputs
from coattend.export.graph import Builder
from coattend.export.input import Input, describe_input, without_turns
from coattend.export.measurement import certify
from coattend.export.onnx_check import onnx_digest, require_onnx, runner
from coattend.models.classifier import Classifier
from coattend.models.turned import TurnedNetwork

if TYPE_CHECKING:
    import onnx

IMAGES, LOGITS, MAPS = "images", "logits", "maps"


def onnx_model(network: nn.Module, images: Input, *, masks: bool = False, responses: bool = False) -> onnx.ModelProto:
    """Return the frozen network as an ONNX model without metadata; outputs are named after layers of the network."""
    require_onnx()
    builder = Builder(masks, responses, eager=False, image_shape=images.shape)
    frozen = frozen_with_outputs(_with_narrow_preprocessing(network), builder)
    example = torch.zeros(2, *images.shape, dtype=torch.float32)
    with torch.no_grad():
        outputs = frozen(example)
    logits = outputs[0] if builder.extra_outputs else outputs
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"export_onnx writes networks that return one tensor, got {type(logits).__name__} from "
            f"{type(network).__name__}; pass freeze(network) to torch.onnx.export for others."
        )
    inside = ":model." if isinstance(network, TurnedNetwork) else ":"
    inside += "network." if isinstance(without_turns(network), Classifier) else ""
    extra = [name.replace(inside, ":", 1) for name in builder.extra_outputs]
    with _quiet():
        program = torch.onnx.export(
            frozen,
            (example,),
            dynamo=True,
            input_names=[IMAGES],
            output_names=[LOGITS if logits.ndim == 2 else MAPS, *extra],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )
    assert program is not None
    return _without_remarks(program.model_proto)


def _with_narrow_preprocessing(network: nn.Module) -> nn.Module:
    """Let preprocessing compute in float32, which more engines support, unless it needs float64."""
    single = without_turns(network)
    if not isinstance(single, Classifier) or single.preprocessing.needs_float64:
        return network
    narrow = copy.deepcopy(network)
    without_turns(narrow).get_submodule("preprocessing").float()
    return narrow


def _without_remarks(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Remove what the exporter notes about itself: source lines with paths of this machine."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    return proto


def seal(proto: onnx.ModelProto, network: nn.Module, images: Input, metadata: Mapping[str, str]) -> Certificate:
    """Add metadata and a certificate to a model, measured against the network that it was made from."""
    for key, value in {**describe_input(network, images), **metadata}.items():
        _add_metadata(proto, key, value)
    certificate = certify(network, runner(proto.SerializeToString()), images, onnx_digest(proto))
    _add_metadata(proto, KEY, certificate.to_json())
    return certificate


def _add_metadata(proto: onnx.ModelProto, key: str, value: str) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = key, value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and log messages of the exporter about itself."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
