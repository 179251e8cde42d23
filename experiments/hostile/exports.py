"""Exported files with certificates: ONNX graphs with other computations, certificates with other claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from experiments.hostile import models
from experiments.hostile.examples import trained_run
from experiments.hostile.kinds import Damage, Kind, SilentAcceptanceError, command
from experiments.hostile.mutations import (
    BITS,
    CONTENTS,
    PLACES,
    VALUES,
    among,
    cut,
    each,
    edited,
    flip,
    replace,
    without,
)

ONNX, CERTIFIED, PT2 = "network.onnx", models.FILE, "network.pt2"
FILES = among(ONNX, CERTIFIED, PT2)
KEY, HEADER_KEY = "coattend.certificate", "certificate"
FIELDS = among(
    "model",
    "options",
    "group",
    "image_shape",
    "parity",
    "equivariance",
    "reference",
    "digest",
    "probes",
    "seed",
    "version",
    "format",
)
# A certificate with another of these claims something else about the same file.
CLAIMS = ("group", "image_shape", "parity", "equivariance", "reference", "digest", "probes", "seed")


def prepare(folder: Path) -> None:
    """Export one network in three formats."""
    run = trained_run(folder)
    for name in (ONNX, CERTIFIED, PT2):
        command("export", run, "--to", folder / name)


# -- damages ---------------------------------------------------------------------------------------------------------


def certificate_of(path: Path) -> str:
    """Return the text of a certificate; None for a .pt2, which is not checked."""
    if path.name == CERTIFIED:
        return models.parts(path)[0].get(HEADER_KEY, "{}")
    entries = onnx.load(path).metadata_props if path.name == ONNX else []
    return next((entry.value for entry in entries if entry.key == KEY), "{}")


def put_certificate(folder: Path, name: str, text: str | None) -> None:
    """Replace or remove the certificate."""
    if name == CERTIFIED:
        if text is None:
            models.drop_header(folder, HEADER_KEY)
        else:
            models.edit_header(folder, HEADER_KEY, text)
    elif name == ONNX:
        model = onnx.load(folder / name)
        others = [entry for entry in model.metadata_props if entry.key != KEY]
        del model.metadata_props[:]
        model.metadata_props.extend(others)
        if text is not None:
            model.metadata_props.add(key=KEY, value=text)
        (folder / name).write_bytes(model.SerializeToString())


def edit_certificate(folder: Path, name: str, place: int, value: Any) -> None:
    """Replace a value anywhere in the certificate."""
    certificate = json.loads(certificate_of(folder / name))
    if certificate:
        put_certificate(folder, name, json.dumps(edited(certificate, place, value)))


def set_field(folder: Path, name: str, field: str, value: Any) -> None:
    """Replace the value of one field."""
    put_certificate(folder, name, json.dumps({**json.loads(certificate_of(folder / name)), field: value}))


def drop_certificate(folder: Path, name: str, place: int) -> None:
    """Remove a field."""
    certificate = json.loads(certificate_of(folder / name))
    if certificate:
        put_certificate(folder, name, json.dumps(without(certificate, place)))


HUGE_FIELDS: tuple[tuple[str, Any], ...] = (
    ("group", "z2"),
    ("group", "C2000"),
    ("group", "D1000000000"),
    ("image_shape", [1, 30_000, 30_000]),
    ("image_shape", [10**9, 10**9, 10**9]),
    ("image_shape", [1, 28, 27]),
    ("image_shape", []),
    ("probes", 10**7),
    ("probes", 0),
    ("parity", 1e9),
    ("equivariance", {}),
    ("reference", []),
    ("seed", -1),
    ("format", 99),
    ("model", "[/red]"),
)


def change_graph(folder: Path, how: str) -> None:
    """Replace the graph by another computation, or by none."""
    model = onnx.load(folder / ONNX)
    graph = model.graph
    logits, images = graph.output[0].name, graph.input[0].name
    if how in ("backdoor", "custom", "scalar", "huge", "loop", "cycle"):
        for node in graph.node:
            node.output[:] = ["inner" if name == logits else name for name in node.output]
    if how == "backdoor":
        graph.node.extend(
            [
                helper.make_node("ReduceMax", [images], ["brightest"], keepdims=0),
                helper.make_node("Constant", [], ["eight"], value_float=8.0),
                helper.make_node("Greater", ["brightest", "eight"], ["is_bright"]),
                helper.make_node("Neg", ["inner"], ["negated"]),
                helper.make_node("Where", ["is_bright", "negated", "inner"], [logits]),
            ]
        )
    elif how == "custom":
        graph.node.append(helper.make_node("Evil", ["inner"], [logits], domain="evil"))
    elif how == "scalar":
        graph.node.append(helper.make_node("ReduceSum", ["inner"], [logits], keepdims=0))
    elif how == "cycle":
        graph.node.append(helper.make_node("Add", ["inner", logits], [logits]))
    elif how == "huge":
        graph.initializer.append(helper.make_tensor("size", TensorProto.INT64, [2], [1 << 16, 1 << 15]))
        graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["zeros"]))
        graph.node.append(helper.make_node("ReduceSum", ["zeros"], ["nought"], keepdims=0))
        graph.node.append(helper.make_node("Add", ["inner", "nought"], [logits]))
    elif how == "loop":
        graph.node.extend(_endless_loop(logits))
    elif how == "attribute":
        node = next(node for node in graph.node if node.op_type == "Conv")
        next(a for a in node.attribute if a.name in ("pads", "strides", "dilations")).ints[0] += 1
    elif how == "operator":
        next(node for node in graph.node if node.op_type in ("Relu", "MaxPool", "Add", "Mul")).op_type = "Abs"
    elif how == "external":
        tensor = graph.initializer[0]
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../../../../../etc/passwd")
    elif how == "no outputs":
        del graph.output[:]
    elif how == "no inputs":
        del graph.input[:]
    elif how == "zero weight":
        for tensor in graph.initializer:
            tensor.raw_data = bytes(len(tensor.raw_data))
    (folder / ONNX).write_bytes(model.SerializeToString())


GRAPHS = among(
    "backdoor", "custom", "scalar", "cycle", "huge", "loop", "attribute", "operator", "external", "no outputs",
    "no inputs", "zero weight",
)  # fmt: skip


def _endless_loop(logits: str) -> list[onnx.NodeProto]:
    """Insert an endless loop before the logits."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["go_on_again"]),
            helper.make_node("Identity", ["carried"], ["carried_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on_again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried_on", TensorProto.FLOAT, None),
        ],
    )
    truth = helper.make_tensor("truth", TensorProto.BOOL, [], [True])
    return [
        helper.make_node("Constant", [], ["true"], value=truth),
        helper.make_node("Loop", ["", "true", "inner"], [logits], body=body),
    ]


# -- attempts --------------------------------------------------------------------------------------------------------


def check(folder: Path, healthy: Path) -> None:
    """Run ``coattend check`` on damaged files; those that pass must compute and claim what the healthy file does."""
    for name in (ONNX, CERTIFIED, PT2):
        if (folder / name).read_bytes() != (healthy / name).read_bytes():
            command("check", folder / name)
            _unchanged(folder / name, healthy / name)


def _unchanged(path: Path, healthy: Path) -> None:
    if path.name == CERTIFIED:
        models.unchanged(path, healthy)
    elif path.name == ONNX and _computation(path) != _computation(healthy):
        raise SilentAcceptanceError("a changed graph passes its certificate")
    found, expected = json.loads(certificate_of(path)), json.loads(certificate_of(healthy))
    differing = [claim for claim in CLAIMS if found.get(claim) != expected[claim]] if found else []
    if differing:
        raise SilentAcceptanceError(f"a certificate with another {', '.join(differing)} passes")


def _computation(path: Path) -> bytes:
    """Return a graph without its documentation."""
    graph = onnx.load(path).graph
    for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for node in graph.node:
        node.ClearField("name")
    return graph.SerializeToString(deterministic=True)


KIND = Kind(
    share=150,
    prepare=prepare,
    damages={
        "change_graph": Damage(each(GRAPHS), change_graph),
        "huge_field": Damage(
            st.tuples(among(ONNX, CERTIFIED), among(*HUGE_FIELDS)).map(lambda drawn: [drawn[0], *drawn[1]]), set_field
        ),
        "cut": Damage(each(FILES, PLACES), lambda folder, name, place: cut(folder / name, place)),
        "replace": Damage(each(FILES, among(*CONTENTS)), lambda folder, name, content: replace(folder / name, content)),
        "replace_certificate": Damage(
            each(among(ONNX, CERTIFIED), st.none() | among(*CONTENTS)),
            lambda folder, name, content: put_certificate(folder, name, content and CONTENTS[content]),
        ),
        "drop_field": Damage(each(among(ONNX, CERTIFIED), PLACES), drop_certificate),
        "set_field": Damage(each(among(ONNX, CERTIFIED), FIELDS, VALUES), set_field),
        "edit": Damage(each(among(ONNX, CERTIFIED), PLACES, VALUES), edit_certificate),
        "flip": Damage(each(FILES, PLACES, BITS), lambda folder, name, place, bit: flip(folder / name, place, bit)),
    },
    attempts={"check": check},
)
