"""Every mistake gets a ValueError that says what was expected, what came, and what to do."""

# ruff: noqa: E501 (one mistake, one line)
from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests.some_groups import quaternions

nn = ca.nn
MAP = torch.zeros(2, 10, 4, 8, 8, dtype=torch.float64)
IMAGE = torch.zeros(2, 10, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (lambda: nn.GroupConv2d(10, 5, 3, "p4"), IMAGE, r"map \(batch, channels=10, group=4, height, width\), got \(2, 10, 8, 8\); lift images with LiftingConv2d"),
        (lambda: nn.GroupConv2d(7, 5, 3, "p4"), MAP, r"channels=7.*with 10 channels; let the layer before"),
        (lambda: nn.GroupConv2d(10, 5, 3, "p4m"), MAP, r"group=8.*group axis of 4; build both layers over the same group"),
        (lambda: nn.LiftingConv2d(10, 5, 3, "p4"), MAP, r"image \(batch, channels=10, height, width\), got \(2, 10, 4, 8, 8\).*use GroupConv2d"),
        (lambda: nn.LiftingConv2d(3, 5, 3, "p4"), IMAGE, r"channels=3.*got \(2, 10, 8, 8\)"),
        (lambda: nn.LiftingConv2d(10, 5, 3, "p4"), IMAGE[0], r"got \(10, 8, 8\)"),
        (lambda: nn.ProjectionConv2d(10, 5, 3, "p4"), IMAGE, "ProjectionConv2d expects a map"),
        (lambda: nn.SliceCoAttentiveConv2d(10, 5, 3, "p4"), IMAGE, "SliceCoAttentiveConv2d expects a map"),
        (lambda: nn.CoAttention(10, "p4"), IMAGE, "CoAttention expects a map"),
        (lambda: nn.CoAttention(5, "p4"), MAP, "channels=5"),
        (lambda: nn.GroupBatchNorm2d(10), IMAGE, "GroupBatchNorm2d expects a map"),
        (lambda: nn.GroupBatchNorm2d(5), MAP, "channels=5"),
        (lambda: nn.GroupLayerNorm2d(10), IMAGE, "GroupLayerNorm2d expects a map"),
        (lambda: nn.GroupInstanceNorm2d(10), IMAGE, "GroupInstanceNorm2d expects a map"),
        (lambda: nn.GroupGroupNorm2d(2, 10), IMAGE, "GroupGroupNorm2d expects a map"),
        (lambda: nn.GroupDropout2d(), IMAGE, "GroupDropout2d expects a map"),
        (lambda: nn.SpatialMaxPool2d(2), IMAGE, "SpatialMaxPool2d expects a map"),
        (lambda: nn.SpatialAvgPool2d(2), IMAGE, "SpatialAvgPool2d expects a map"),
        (lambda: nn.SpatialUpsample2d(2), IMAGE, "SpatialUpsample2d expects a map"),
        (lambda: nn.GroupPool("p4"), IMAGE, "GroupPool expects a map"),
        (lambda: nn.GroupPool("p4m"), MAP, "group axis of 4"),
        (lambda: nn.GroupConv2d(10, 5, 9, "p4"), MAP, "covers 9 pixels, larger than the padded image of 8 x 8; pass larger images or more padding"),
        (lambda: nn.GroupConv2d(10, 5, 5, "p4", dilation=3, padding=1), MAP, "covers 13 pixels.*10 x 10"),
        (lambda: nn.SpatialMaxPool2d(9), MAP, "window of 9 pixels, larger than the padded map of 8 x 8"),
        (lambda: nn.LiftingConv2d(10, 5, 3, "p4", padding=8, padding_mode="reflect"), IMAGE, "at most 7 are possible"),
        (lambda: nn.LiftingConv2d(10, 5, 3, "p4"), IMAGE.float(), r"torch.float64 parameters and got a torch.float32 input; convert"),
        (lambda: nn.GroupConv2d(10, 5, 3, "p4"), MAP.bfloat16(), "torch.bfloat16 input"),
        (lambda: nn.CoAttention(10, "p4"), MAP.float(), "torch.float32 input"),
    ],
)  # fmt: skip
def test_wrong_tensors(layer: object, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer()(x)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.LiftingConv2d(1, 2, 3, "p4", stride=(1, 2)), r"stride to be one whole number of at least 1, got \(1, 2\)"),
        (lambda: nn.GroupConv2d(1, 2, (3, 3), "p4"), r"kernel_size to be one whole number.*got \(3, 3\)"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding=(1, 2)), r"padding to be one whole number.*\(1, 2\)"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", dilation=0), "dilation to be one whole number of at least 1, got 0"),
        (lambda: nn.GroupConv2d(1, 2, 4, "p4", padding="same"), 'kernel_size=4.*odd kernel_size for padding="same"'),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding="same", stride=2), "stride 1"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding="full"), "padding to be one whole number"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding_mode="mirror"), "'zeros', 'reflect', 'replicate', 'circular', got 'mirror'"),
        (lambda: nn.GroupConv2d(3, 4, 3, "p4", groups=2), "groups=2, which must divide both in_channels=3"),
        (lambda: nn.GroupConv2d(0, 4, 3, "p4"), "in_channels to be one whole number of at least 1, got 0"),
        (lambda: nn.GroupConv2d(3, 4.0, 3, "p4"), "out_channels.*got 4.0"),
        (lambda: nn.LiftingConv2d(1, 2, 3, 1), "expected a group or a group's name, got int: 1"),
        (lambda: nn.LiftingConv2d(1, 2, 3, "p6"), "unknown group 'p6'; expected z2, p4, p4m"),
        (lambda: nn.LiftingConv2d(1, 2, 3, quaternions()), "Q8 is a bare table.*planar"),
        (lambda: nn.GroupConv2d(1, 2, 3, quaternions()), "Q8 is a bare table"),
        (lambda: nn.ProjectionConv2d(1, 2, 3, quaternions()), "Q8 is a bare table"),
        (lambda: nn.SliceCoAttentiveConv2d(1, 2, 3, quaternions()), "Q8 is a bare table"),
        (lambda: nn.LiftingConv2d(1, 2, 3, "C8", interpolation="nearest"), "'bilinear', 'bicubic'"),
        (lambda: nn.CoAttention(3, "p4", "circulant"), "structure to be one of 'group', 'paper', 'full', got 'circulant'"),
        (lambda: nn.CoAttention(0, "p4"), "channels to be one whole number of at least 1"),
        (lambda: nn.GroupPool("p4", "median"), "reduce to be one of 'max', 'mean', 'sum', got 'median'"),
        (lambda: nn.GroupPool("p4", over=(0, 1)), "not a subgroup of C4"),
        (lambda: nn.SpatialMaxPool2d((2, 2)), r"kernel_size to be one whole number of at least 1, got \(2, 2\)"),
        (lambda: nn.SpatialMaxPool2d(3, padding=2), "at most half the kernel, 1, got 2"),
        (lambda: nn.SpatialUpsample2d(1.5), "scale_factor to be one whole number"),
        (lambda: nn.SpatialUpsample2d(2, mode="area"), "mode to be one of 'nearest', 'bilinear', 'bicubic', got 'area'"),
        (lambda: nn.GroupDropout2d(1.5), "p from 0 to 1, got 1.5"),
        (lambda: ca.cyclic(0), "n >= 1, got 0"),
        (lambda: ca.FiniteGroup([[0.5]]), "integer element indices"),
    ],
)  # fmt: skip
def test_wrong_arguments(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_misspelt_options_do_not_travel() -> None:
    for kind in (nn.LiftingConv2d, nn.GroupConv2d, nn.ProjectionConv2d, nn.SliceCoAttentiveConv2d):
        with pytest.raises(TypeError, match="padding_size"):
            kind(1, 2, 3, "p4", padding_size=1)
