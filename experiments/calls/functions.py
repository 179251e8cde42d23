"""Pure functions, their operators, groups, and the measures of equivariance."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import coattend
import coattend.equivariance
import coattend.groups
from experiments.calls.call import (
    MIXED,
    NOTHING,
    NUMBERS_AS_THEY_ARE,
    QUANTISED,
    Call,
    with_wrong_arguments,
    with_wrong_tensors,
    wrong,
)

ca: Any = coattend  # called wrongly on purpose: its types would be in the way
F: Any = coattend.functional
FA: Any = coattend.functional.attention
FB: Any = coattend.functional.filter_bank
OPS: Any = torch.ops.coattend
groups: Any = coattend.groups

NAN = float("nan")
P4, P4M, C8 = ca.get_group("p4"), ca.get_group("p4m"), ca.get_group("C8")
MAP = torch.randn(2, 3, 4, 8, 8)
IMAGE = torch.randn(2, 3, 8, 8)
VECTORS, MATRICES = torch.randn(3, 4), torch.randn(3, 4, 4)
PLANES, SLICE_MATRICES = torch.randn(2, 24, 5, 5), torch.randn(6, 4, 4)
FILTERS = torch.randn(2, 3, 4, 3, 3)


def _attention() -> Iterator[Call]:
    mixed = {"float64": MIXED}
    yield from with_wrong_tensors("co_attention", lambda x: F.co_attention(x, VECTORS, P4), MAP, mixed)
    yield from with_wrong_tensors("co_attention's weights", lambda w: F.co_attention(MAP, w, P4), VECTORS, mixed)
    yield from with_wrong_tensors("co_attention_mask", lambda x: F.co_attention_mask(x, VECTORS, P4), MAP, mixed)
    yield from with_wrong_tensors("attend", lambda x: FA.attend(x, MATRICES), MAP, mixed)
    yield from with_wrong_tensors("attend's matrix", lambda m: FA.attend(MAP, m), MATRICES, mixed)
    yield from with_wrong_tensors("attention_mask", lambda x: FA.attention_mask(x, MATRICES), MAP, mixed)
    for group in (None, "p4", 4, P4M):
        yield wrong(f"co_attention over {group}", F.co_attention, MAP, VECTORS, group)
    yield wrong("attend beyond its matrix", FA.attend, torch.ones(1, 3000, 64, 1, 1), torch.zeros(3000, 64, 1))
    yield wrong("attention_index(None)", FA.attention_index, None)
    rows: dict[str, Any] = {
        "none": None,
        "empty": [],
        "floats": [0.5] * 8,
        "negative": [-(10**6)] * 8,
        "too large": [10**6] * 8,
        "repeated": [0] * 8,
        "short": [0, 1, 2],
        "text": "01234567",
    }
    for what, spoilt in rows.items():
        yield wrong(f"attend_slices with rows {what}", FA.attend_slices, PLANES, SLICE_MATRICES, spoilt, 8)
    for step in (-(10**7), 10**7, -1, None, 0.5):
        yield wrong(f"attend_slices with step {step}", FA.attend_slices, PLANES, SLICE_MATRICES, list(range(8)), step)
    eight = list(range(8))
    yield from with_wrong_tensors(
        "attend_slices", lambda x: FA.attend_slices(x, SLICE_MATRICES, eight, 8), PLANES, mixed
    )


def _operators() -> Iterator[Call]:
    short = torch.randn(1)
    yield wrong("torch.ops co_attention, short matrix", OPS.co_attention, MAP, torch.randn(3, 4, 1))
    yield wrong("torch.ops co_attention, other channels", OPS.co_attention, MAP, torch.randn(2, 4, 4))
    yield wrong("torch.ops co_attention, 4-d", OPS.co_attention, IMAGE, MATRICES)
    yield wrong("torch.ops co_attention, types", OPS.co_attention, MAP.double(), MATRICES, fine=MIXED)
    yield wrong("torch.ops co_attention, devices", OPS.co_attention, MAP, MATRICES.to("meta"))
    yield wrong("torch.ops co_attention, None", OPS.co_attention, None, MATRICES)
    yield wrong("torch.ops co_attention_backward, short", OPS.co_attention_backward, short, MAP, MATRICES)
    yield wrong("torch.ops max_pool_backward, short", OPS.max_pool_backward, short, MAP)
    yield wrong("torch.ops max_pool, odd", OPS.max_pool, torch.randn(1, 1, 5, 5))
    yield wrong("torch.ops max_pool, 1-d", OPS.max_pool, short)
    yield wrong(
        "torch.ops slice_attention_backward, short",
        OPS.slice_attention_backward,
        short,
        PLANES,
        SLICE_MATRICES,
        list(range(8)),
        8,
    )
    far = [10**6] * 8
    yield wrong("torch.ops slice_attention, rows beyond", OPS.slice_attention, PLANES, SLICE_MATRICES, far, 8)
    yield from with_wrong_tensors(
        "max_pool_2x2",
        F.max_pool_2x2,
        MAP,
        {
            **dict.fromkeys(
                ("axis less", "axis more", "twice the channels", "three poses", "float64"), "any leading axes"
            ),
            **dict.fromkeys(("int64", "uint8"), NUMBERS_AS_THEY_ARE),
            "no channels": NOTHING,
            "quantised": QUANTISED,
        },
    )


def _filters() -> Iterator[Call]:
    turns = groups.filter_turns(P4, 3)
    relative = torch.tensor(P4.relative)
    for what, weight in {
        "None": None,
        "rank 1": torch.randn(3),
        "size 5": torch.randn(2, 2, 5, 5),
        "numpy": np.zeros((2, 2, 3, 3)),
        "not square": torch.randn(2, 2, 3, 5),
    }.items():
        yield wrong(f"turn_filters({what})", FB.turn_filters, weight, turns)
    right = torch.randn(2, 2, 3, 3)
    for what, spoilt in {"None": None, "float": turns.float(), "out of range": turns + 100, "text": "x"}.items():
        yield wrong(f"turn_filters with turns {what}", FB.turn_filters, right, spoilt)
    for what, weight in {"None": None, "4-d": FILTERS[0], "size 5": torch.randn(2, 3, 4, 5, 5)}.items():
        yield wrong(f"group_filters({what})", FB.group_filters, weight, turns, relative)
    for what, spoilt in {"float": relative.float(), "of p4m": torch.tensor(P4M.relative), "None": None}.items():
        yield wrong(f"group_filters with relative {what}", FB.group_filters, FILTERS, turns, spoilt)
    for what, arguments in {
        "group None": (None, 3),
        "kernel None": (C8, None),
        "kernel 0": (P4, 0),
        "kernel -1": (P4, -1),
        "kernel huge": (C8, 9_000_000),
        "kernel text": (P4, "3"),
    }.items():
        yield wrong(f"filter_turns({what})", groups.filter_turns, *arguments)
    for poses in ((0.5,), (9,), (), None, (0, 0)):
        yield wrong(f"pose_blocks({poses})", coattend.functional.pose_blocks.pose_blocks, P4, poses)
    yield wrong("pose_blocks of None", coattend.functional.pose_blocks.pose_blocks, None, (0, 1))
    for p in (NAN, -0.5, 2.0, None, "x"):
        yield wrong(f"dropout(p={p})", F.dropout, MAP, p, training=True)


def _convolutions() -> Iterator[Call]:
    weight = torch.randn(2, 3, 3, 3)
    vectors = torch.randn(8, 4)
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "lifting_conv2d": (F.lifting_conv2d, {"x": IMAGE, "weight": weight, "bias": None, "group": P4}),
        "group_conv2d": (F.group_conv2d, {"x": MAP, "weight": FILTERS, "bias": None, "group": P4}),
        "projection_conv2d": (F.projection_conv2d, {"x": MAP, "weight": weight, "bias": None, "group": P4}),
        "slice_attentive_conv2d": (
            F.slice_attentive_conv2d,
            {"x": MAP, "weight": FILTERS, "bias": None, "group": P4, "attention": vectors},
        ),
    }
    spoilt: dict[str, tuple[Any, ...]] = {
        "bias": (torch.zeros(3), 0.5, "x"),
        "group": (None, "p4", 4, P4M),
        "stride": (0, -1, None, 1.5, (1, 2), "x"),
        "padding": (-1, None, (0, 1), "full"),
        "dilation": (0, 100, None),
        "groups": (0, 2, None),
        "padding_mode": (None, "wrap"),
        "filters": ("nearest", None, "steerable", (0, 2)),
        "kernel_size": (0, 5, 1.5, "x"),
    }
    for name, (function, right) in calls.items():
        for what in ("x", "weight"):
            called = functools.partial(_with, function, right, what)
            yield from with_wrong_tensors(f"{name}'s {what}", called, right[what], {})
        for what, values in spoilt.items():
            for value in values:
                if what == "group" and value is P4M and name == "lifting_conv2d":
                    continue  # an image has no poses that could differ
                yield wrong(f"{name}({what}={value})", _with, function, right, what, value)


def _with(function: Any, right: dict[str, Any], name: str, value: Any) -> Any:
    return function(**{**right, name: value})


def _groups() -> Iterator[Call]:
    for order in (0, -1, 1.5, None, "4", NAN, 10**9, True):
        yield wrong(f"cyclic({order})", ca.cyclic, order)
        yield wrong(f"dihedral({order})", ca.dihedral, order)
    for name in (None, "", "x", "C", "C-1", "C0", "D1e9", "C99999999999", 4, "p5", "c4 "):
        yield wrong(f"get_group({name!r})", ca.get_group, name)
    tables: dict[str, Any] = {
        "None": None,
        "ragged": [[0, 1], [1]],
        "text": "x",
        "floats": [[0.5]],
        "empty": [],
        "not square": [[0, 1]],
        "no identity": [[1, 1], [1, 1]],
        "not associative": [[0, 1, 2], [1, 0, 0], [2, 0, 0]],
        "out of range": [[0, 5], [5, 0]],
        "nested": [[[0]]],
    }
    for what, table in tables.items():
        yield wrong(f"FiniteGroup({what})", ca.FiniteGroup, table)
    yield wrong("FiniteGroup, planar of another size", ca.FiniteGroup, [[0]], np.zeros((3, 2, 2)))
    yield wrong("FiniteGroup, planar text", ca.FiniteGroup, [[0]], "x")
    for other in (None, 4):
        yield wrong(f"direct_product({other})", ca.direct_product, P4, other)
    for element in (9, -9, None, 0.5, "x"):
        yield wrong(f"describe({element})", P4.describe, element)
        yield wrong(f"transform_image by {element}", groups.transform_image, IMAGE, P4, element)
        yield wrong(f"transform_map by {element}", groups.transform_map, MAP, P4, element)
    for elements in ([1.5], [9], None, "x", [None]):
        yield wrong(f"generate({elements})", P4.generate, elements)
    for group in (None, "p5", 4):
        yield wrong(f"transform_image over {group}", groups.transform_image, IMAGE, group, 1)
        yield wrong(f"transform_map over {group}", groups.transform_map, MAP, group, 1)
    any_axes = dict.fromkeys(("axis less", "axis more", "twice the channels", "no channels"), "any leading axes turn")
    moved = dict.fromkeys(("int64", "uint8", "bool", "complex", "float64"), "moving pixels does no arithmetic")
    fine = {**any_axes, **moved, "quantised": QUANTISED}
    yield from with_wrong_tensors("transform_image", lambda x: groups.transform_image(x, P4, 1), IMAGE, fine)
    fine = {**any_axes, "float64": "interpolated in its own type"}
    yield from with_wrong_tensors("transform_image over C8", lambda x: groups.transform_image(x, C8, 1), IMAGE, fine)


def _measures() -> Iterator[Call]:
    conv = torch.nn.Conv2d(3, 3, 3)
    for what, function in {
        "equivariance_error": ca.equivariance_error,
        "assert_equivariant": ca.assert_equivariant,
        "diagnose": ca.diagnose,
    }.items():
        spoilt: dict[str, tuple[Any, Any, Any]] = {
            "no module": (None, IMAGE, "p4"),
            "a number": (3, IMAGE, "p4"),
            "no images": (conv, None, "p4"),
            "numpy": (conv, IMAGE.numpy(), "p4"),
            "no group": (conv, IMAGE, None),
            "unknown group": (conv, IMAGE, "x"),
            "bare table": (conv, IMAGE, ca.FiniteGroup([[0, 1], [1, 0]])),
            "empty batch": (conv, IMAGE[:0], "p4"),
            "zeros": (conv, torch.zeros(2, 3, 8, 8), "p4"),
        }
        for name, arguments in spoilt.items():
            fine = "an error of nothing is 0; the two that judge refuse" if what == "equivariance_error" else ""
            yield wrong(f"{what} of {name}", function, *arguments, fine=fine if name == "zeros" else "")
        yield from with_wrong_arguments(what, function, {"module": conv, "x": IMAGE, "group": "p4"}, {})
    for tolerance in (NAN, -1.0, "x"):
        yield wrong(
            f"assert_equivariant(tol={tolerance})", ca.assert_equivariant, torch.nn.ReLU(), IMAGE, "p4", tol=tolerance
        )
    yield wrong("safe_sizes(None)", coattend.equivariance.safe_sizes, None, IMAGE)


PARTS = {
    "functional": [*_attention(), *_filters(), *_convolutions()],
    "operators": list(_operators()),
    "groups": list(_groups()),
    "equivariance": list(_measures()),
}
