"""Layers: built with wrong arguments, called with wrong tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import coattend
from coattend.nn import observe as observe_module
from experiments.calls.call import (
    MIXED,
    NOTHING,
    NUMBERS_AS_THEY_ARE,
    QUANTISED,
    SHAPES_ONLY,
    Call,
    with_wrong_arguments,
    with_wrong_tensors,
    wrong,
)

nn: Any = coattend.nn  # called wrongly on purpose: its types would be in the way
observe: Any = observe_module

NAN = float("nan")
IMAGE = torch.randn(2, 3, 9, 9)
MAP = torch.randn(2, 3, 4, 8, 8)
HUGE = 10**12
CHANNELS = (None, 0, -1, 1.5, "3", HUGE)
GROUPS = (None, "x", "", "C0", "C1000000", 4)
GEOMETRY: dict[str, tuple[Any, ...]] = {
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "kernel_size": (None, 0, -1, 1.5, (3, 5), "3"),
    "stride": (0, -1, None, (1, 2), "x"),
    "padding": (-1, None, (1, 2), "x", 0.5),
    "dilation": (0, None, (1, 2)),
    "groups": (0, 2, None, "x"),
    "padding_mode": ("x", None, 1),
}
RELATIVE: dict[str, tuple[Any, ...]] = {"relative": ((0.0, 1.0), NAN, (9,), (), (-1,), 5, "x", (True,), (0, 0))}
NUMBER = {"num_channels": CHANNELS, "eps": (None, -1, NAN, "x")}
FEATURES = {"num_features": CHANNELS, "eps": (None, -1, NAN, "x"), "momentum": ("x", NAN)}
WINDOW: dict[str, tuple[Any, ...]] = {
    "kernel_size": (None, 0, -1, 1.5, (2, 3), "2"),
    "stride": (0, -1, 1.5, "x"),
    "padding": (-1, None, "x", 5),
}
ANY_WIDTH = "no parameters: it takes any number of channels"
ANY_POSES = "no group: it takes any number of poses"
ANY_TYPE = "no parameters: it works in its input's type"


def _constructors() -> Iterator[Call]:
    filters = {"in_channels": 3, "out_channels": 2, "kernel_size": 3}
    for conv in (nn.LiftingConv2d, nn.ProjectionConv2d):
        yield from with_wrong_arguments(conv.__name__, conv, {**filters, "group": "p4"}, {**GEOMETRY, "group": GROUPS})
    for conv in (nn.GroupConv2d, nn.SliceCoAttentiveConv2d):
        spoilt = {**RELATIVE, "group": GROUPS, "in_channels": CHANNELS, "structure": ("x", None)}
        if conv is nn.GroupConv2d:
            spoilt.pop("structure")
        yield from with_wrong_arguments(conv.__name__, conv, {**filters, "group": "p4"}, spoilt)
    for conv in (nn.CycleConv2d, nn.IsotonicConv2d, nn.DecycleConv2d):
        yield from with_wrong_arguments(conv.__name__, conv, filters, {"out_channels": (None, 0), "stride": (0,)})
    spoilt = {"channels": CHANNELS, "group": GROUPS, "structure": ("x", None, 1), "init_std": (-1, NAN, "x")}
    yield from with_wrong_arguments("CoAttention", nn.CoAttention, {"channels": 3, "group": "p4"}, spoilt)
    for norm in (nn.GroupBatchNorm2d, nn.GroupInstanceNorm2d):
        yield from with_wrong_arguments(norm.__name__, norm, {"num_features": 3}, FEATURES)
    yield from with_wrong_arguments("GroupLayerNorm2d", nn.GroupLayerNorm2d, {"num_channels": 3}, NUMBER)
    spoilt = {"num_groups": (0, -1, 3, 2.0, None), **NUMBER}
    yield from with_wrong_arguments(
        "GroupGroupNorm2d", nn.GroupGroupNorm2d, {"num_groups": 2, "num_channels": 4}, spoilt
    )
    yield from with_wrong_arguments("GroupDropout2d", nn.GroupDropout2d, {}, {"p": (None, -0.1, 1.5, NAN, "x")})
    for pool in (nn.SpatialMaxPool2d, nn.SpatialAvgPool2d):
        yield from with_wrong_arguments(pool.__name__, pool, {"kernel_size": 2}, WINDOW)
    spoilt = {"scale_factor": (0, -1, 1.5, None, "x", (2, 3)), "mode": ("x", None)}
    yield from with_wrong_arguments("SpatialUpsample2d", nn.SpatialUpsample2d, {"scale_factor": 2}, spoilt)
    spoilt = {"group": GROUPS, "reduce": ("x", None), "over": (5, (NAN,), (0.5,), (0, 1), (), (9,), "x")}
    yield from with_wrong_arguments("GroupPool", nn.GroupPool, {"group": "p4"}, spoilt)


def _forward_calls() -> Iterator[Call]:
    conv = {"in_channels": 3, "out_channels": 2, "kernel_size": 3}
    yield from with_wrong_tensors("LiftingConv2d", nn.LiftingConv2d(**conv, group="p4"), IMAGE)
    yield from with_wrong_tensors("CycleConv2d", nn.CycleConv2d(**conv), IMAGE)
    for name, layer in {
        "GroupConv2d": nn.GroupConv2d(**conv, group="p4"),
        "ProjectionConv2d with attention": nn.ProjectionConv2d(**conv, group="p4", attention=True),
        "SliceCoAttentiveConv2d": nn.SliceCoAttentiveConv2d(**conv, group="p4"),
        "CoAttention": nn.CoAttention(3, "p4"),
        "CoAttention, full": nn.CoAttention(3, "p4", structure="full"),
    }.items():
        yield from with_wrong_tensors(name, layer, MAP)
    projection = nn.ProjectionConv2d(**conv, group="p4")
    yield from with_wrong_tensors(
        "ProjectionConv2d", projection, MAP, {"mkldnn": "torch has a kernel of its own for it"}
    )
    for name, layer in {
        "GroupBatchNorm2d": nn.GroupBatchNorm2d(3),
        "GroupGroupNorm2d": nn.GroupGroupNorm2d(3, 3),
    }.items():
        yield from with_wrong_tensors(name, layer, MAP, {"three poses": ANY_POSES})
    wide = {"three poses": ANY_POSES, "float64": MIXED}
    yield from with_wrong_tensors("GroupLayerNorm2d", nn.GroupLayerNorm2d(3), MAP, wide)
    loose = {"three poses": ANY_POSES, "twice the channels": ANY_WIDTH, "float64": ANY_TYPE, "no channels": NOTHING}
    yield from with_wrong_tensors("GroupInstanceNorm2d", nn.GroupInstanceNorm2d(3), MAP, loose)
    yield from with_wrong_tensors("GroupDropout2d", nn.GroupDropout2d(0.5), MAP, loose)
    whole = dict.fromkeys(("int64", "uint8"), NUMBERS_AS_THEY_ARE)
    images_too = {"axis less": "images are maps without poses", "quantised": QUANTISED}
    yield from with_wrong_tensors("SpatialMaxPool2d", nn.SpatialMaxPool2d(2), MAP, {**loose, **whole, **images_too})
    yield from with_wrong_tensors("SpatialAvgPool2d", nn.SpatialAvgPool2d(2), MAP, {**loose, **images_too})
    yield from with_wrong_tensors("SpatialUpsample2d", nn.SpatialUpsample2d(2), MAP, {**loose, **whole, **images_too})
    whole["bool"] = NUMBERS_AS_THEY_ARE
    loose.pop("three poses")
    yield from with_wrong_tensors("GroupPool", nn.GroupPool("p4"), MAP, {**loose, **whole})
    yield from with_wrong_tensors("GroupPool over", nn.GroupPool("p4", over=(0, 2)), MAP, {**loose, **whole})


def _wrong_parts() -> Iterator[Call]:
    lift = nn.LiftingConv2d(3, 2, 3, "C8")
    fine = "a tensor does not know its group; diagnose finds the layer"
    yield wrong(
        "GroupConv2d over D4 after C8", torch.nn.Sequential(lift, nn.GroupConv2d(2, 2, 3, "D4")), IMAGE, fine=fine
    )
    yield wrong("restricted(None)", coattend.models.restricted, None, {})
    yield wrong("attention_masks(None)", coattend.attention_masks, None, IMAGE)
    yield wrong("attention_masks of None", coattend.attention_masks, nn.CoAttention(3, "p4"), None)
    yield wrong("estimate_norm_statistics of None", observe.estimate_norm_statistics, nn.GroupBatchNorm2d(3), None)
    yield wrong("a map of numbers into CoAttention on meta", nn.CoAttention(3, "p4").to("meta"), MAP)
    yield wrong(
        "a map of numbers into GroupConv2d on meta", nn.GroupConv2d(3, 2, 3, "p4").to("meta"), MAP, fine=SHAPES_ONLY
    )


PARTS = {"constructors": list(_constructors()), "layers": [*_forward_calls(), *_wrong_parts()]}
