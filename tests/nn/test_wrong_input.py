"""Every mistake gets a ValueError that says what was expected, what came, and what to do."""

# ruff: noqa: E501 (one mistake, one line)
from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.nn.observe import attention_masks, estimate_norm_statistics
from tests.example_groups import quaternions

nn = ca.nn
MAP = torch.zeros(2, 10, 4, 8, 8, dtype=torch.float64)
IMAGE = torch.zeros(2, 10, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (lambda: nn.GroupConv2d(10, 5, 3, "p4"), IMAGE, r"map \(batch, channels=10, group=4, height, width\), got \(2, 10, 8, 8\); lift images with LiftingConv2d"),
        (lambda: nn.GroupConv2d(7, 5, 3, "p4"), MAP, r"channels=7.*with 10 channels; the layer before it needs out_channels=7"),
        (lambda: nn.GroupConv2d(10, 5, 3, "p4m"), MAP, r"group=8.*group axis of 4; build both layers over the same group"),
        (lambda: nn.LiftingConv2d(10, 5, 3, "p4"), MAP, r"image \(batch, channels=10, height, width\), got \(2, 10, 4, 8, 8\).*use GroupConv2d"),
        (lambda: nn.LiftingConv2d(3, 5, 3, "p4"), IMAGE, r"channels=3.*got \(2, 10, 8, 8\)"),
        (lambda: nn.LiftingConv2d(10, 5, 3, "p4"), IMAGE[0], r"got \(10, 8, 8\)"),
        (lambda: nn.ProjectionConv2d(10, 5, 3, "p4"), IMAGE, "ProjectionConv2d expects a map"),
        (lambda: nn.SliceCoAttentiveConv2d(10, 5, 3, "p4"), IMAGE, "SliceCoAttentiveConv2d expects a map"),
        (lambda: nn.GroupSelfAttention2d(10, "p4", 1), IMAGE, "GroupSelfAttention2d expects a map"),
        (lambda: nn.GroupSelfAttention2d(10, "p4", 1, window=3), MAP, r"windows of 3 x 3, which have to cover the map of 8 x 8"),
        (lambda: nn.DynamicGroupConv2d(10, 5, 3, "p4"), IMAGE, "DynamicGroupConv2d expects a map"),
        (lambda: nn.DynamicGroupConv2d(10, 5, 3, "p4"), MAP.float(), "torch.float32 input"),
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
        (lambda: nn.LiftingConv2d(1, 2, 3, "p4", stride=(1, 2)), r"the same stride along height and width, got \(1, 2\): unequal ones do not commute with quarter turns"),
        (lambda: nn.GroupConv2d(1, 2, (3, 5), "p4"), r"the same kernel_size along height and width, got \(3, 5\)"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding=(1, 2)), r"the same padding along height and width, got \(1, 2\)"),
        (lambda: nn.GroupConv2d(1, 2, (3, 3, 3), "p4"), r"kernel_size to be a whole number from 1 to 2147483647, got \(3, 3, 3\)"),
        (lambda: nn.GroupConv2d(1, 2, (0, 0), "p4"), "kernel_size to be a whole number from 1 to 2147483647, got 0"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", dilation=0), r"dilation to be a whole number from 1 to 2147483647, got 0\.$"),
        (lambda: nn.GroupConv2d((2, 2), 2, 3, "p4"), r"in_channels to be a whole number from 1 to 2147483647, got \(2, 2\)"),
        (lambda: nn.GroupConv2d(10**12, 2, 3, "p4"), "in_channels to be a whole number from 1 to 2147483647, got 1000000000000"),
        (lambda: nn.CoAttention(10**12, "p4"), "channels to be a whole number from 1 to 2147483647"),
        (lambda: nn.IsotonicConv2d(0, 2, 3), r"IsotonicConv2d expects in_channels to be a whole number from 1 to 2147483647, got 0\.$"),
        (lambda: nn.IsotonicConv2d(True, 2, 3), "in_channels to be a whole number.*got True"),
        (lambda: nn.CycleConv2d(1, "x", 3), "CycleConv2d expects out_channels to be a whole number.*got 'x'"),
        (lambda: nn.GroupConv2d(1, 2, 4, "p4", padding="same"), 'kernel_size=4.*odd kernel_size for padding="same"'),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding="same", stride=2), "stride 1"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding="full"), "padding to be a whole number"),
        (lambda: nn.GroupConv2d(1, 2, 3, "p4", padding_mode="mirror"), "'zeros', 'reflect', 'replicate', 'circular', got 'mirror'"),
        (lambda: nn.GroupConv2d(3, 4, 3, "p4", groups=2), "groups=2, which must divide both in_channels=3"),
        (lambda: nn.GroupConv2d(0, 4, 3, "p4"), r"in_channels to be a whole number from 1 to 2147483647, got 0\.$"),
        (lambda: nn.GroupConv2d(3, 4.0, 3, "p4"), "out_channels.*got 4.0"),
        (lambda: nn.LiftingConv2d(1, 2, 3, 1), "expected a group or a group's name, got int: 1"),
        (lambda: nn.LiftingConv2d(1, 2, 3, "p5"), "unknown group 'p5'.*; expected z2, p1, p2"),
        (lambda: nn.LiftingConv2d(1, 2, 3, quaternions()), "Q8 is a bare table.*planar"),
        (lambda: nn.GroupConv2d(1, 2, 3, quaternions()), "Q8 is a bare table"),
        (lambda: nn.ProjectionConv2d(1, 2, 3, quaternions()), "Q8 is a bare table"),
        (lambda: nn.SliceCoAttentiveConv2d(1, 2, 3, quaternions()), "Q8 is a bare table"),
        (lambda: nn.LiftingConv2d(1, 2, 3, "C8", filters="nearest"), "'free', 'steerable', 'bicubic', 'bilinear'"),
        (lambda: nn.CoAttention(3, "p4", "circulant"), "structure to be one of 'group', 'paper', 'full', got 'circulant'"),
        (lambda: nn.CoAttention(0, "p4"), "channels to be a whole number"),
        (lambda: nn.GroupPool("p4", "median"), "reduce to be one of 'max', 'mean', 'sum', got 'median'"),
        (lambda: nn.GroupPool("p4", over=(0, 1)), "not a subgroup of C4"),
        (lambda: nn.SpatialMaxPool2d((2, 3)), r"the same kernel_size along height and width, got \(2, 3\)"),
        (lambda: nn.SpatialMaxPool2d(3, padding=2), "at most half the kernel, 1, got 2"),
        (lambda: nn.SpatialUpsample2d(1.5), "scale_factor to be a whole number"),
        (lambda: nn.SpatialUpsample2d(2, mode="area"), "mode to be one of 'nearest', 'bilinear', 'bicubic', got 'area'"),
        (lambda: nn.GroupDropout2d(1.5), "p to be a number from 0 to 1, got 1.5"),
        (lambda: nn.GroupDropout2d(None), "p to be a number from 0 to 1, got None"),
        (lambda: nn.GroupDropout2d(float("nan")), "p to be a number from 0 to 1, got nan"),
        (lambda: nn.CoAttention(3, "p4", init_std=-1), "init_std to be a number of at least 0, got -1"),
        (lambda: nn.CoAttention(3, "p4", init_diagonal="x"), "init_diagonal to be a number, got 'x'"),
        (lambda: nn.GroupBatchNorm2d(-1), "GroupBatchNorm2d expects num_features to be a whole number from 1.*got -1"),
        (lambda: nn.GroupBatchNorm2d(3, eps=None), "eps to be a number.*got None"),
        (lambda: nn.GroupBatchNorm2d(3, eps=-1), "eps to be a number.*got -1"),
        (lambda: nn.GroupBatchNorm2d(3, momentum=2), "momentum to be a number from 0 to 1, got 2"),
        (lambda: nn.GroupInstanceNorm2d(None), "GroupInstanceNorm2d expects num_features.*got None"),
        (lambda: nn.GroupGroupNorm2d(0, 4), "GroupGroupNorm2d expects num_groups.*got 0"),
        (lambda: nn.GroupGroupNorm2d(2.0, 4), "num_groups to be a whole number.*got 2.0"),
        (lambda: nn.GroupGroupNorm2d(3, 4), "splits 4 channels into 3 groups"),
        (lambda: nn.GroupLayerNorm2d(-1), "GroupLayerNorm2d expects num_channels.*got -1"),
        (lambda: nn.GroupLayerNorm2d(3, eps=0), "eps to be a number.*got 0"),
        (lambda: nn.GroupConv2d(1, 1, 3, "p4", relative=(0.0, 1.0)), r"GroupConv2d expects relative.*got \[0.0, 1.0\]"),
        (lambda: nn.GroupConv2d(1, 1, 3, "p4", relative=float("nan")), r"expects relative.*got \[nan\]"),
        (lambda: nn.SliceCoAttentiveConv2d(1, 1, 3, "p4", relative=(True,)), r"SliceCoAttentiveConv2d expects relative.*got \[True\]"),
        (lambda: ca.cyclic(0), "n >= 1, got 0"),
        (lambda: ca.FiniteGroup([[0.5]]), "integer element indices"),
    ],
)  # fmt: skip
def test_wrong_arguments(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


CONVOLUTIONS = (nn.LiftingConv2d, nn.GroupConv2d, nn.ProjectionConv2d, nn.SliceCoAttentiveConv2d)
DREN = (nn.CycleConv2d, nn.IsotonicConv2d, nn.DecycleConv2d)


@pytest.mark.parametrize("kind", [*CONVOLUTIONS, *DREN])
def test_misspelt_options_are_refused_in_the_name_of_the_class(kind: type) -> None:
    group = () if kind in DREN else ("p4",)
    with pytest.raises(
        TypeError, match=rf"{kind.__name__}.__init__\(\) got an unexpected keyword argument 'padding_size'"
    ):
        kind(1, 2, 3, *group, padding_size=1)
    named = inspect.signature(kind).parameters.values()
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in named)


@pytest.mark.parametrize("kind", [nn.SpatialMaxPool2d, nn.SpatialAvgPool2d])
def test_misspelt_options_of_pools_are_refused_in_their_name(kind: type) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__}.__init__\(\) got an unexpected keyword argument 'size'"):
        kind(2, size=1)


@pytest.mark.parametrize(
    "layer",
    [
        nn.LiftingConv2d(2, 2, 3, "p4"),
        nn.GroupConv2d(2, 2, 3, "p4"),
        nn.ProjectionConv2d(2, 2, 3, "p4"),
        nn.SliceCoAttentiveConv2d(2, 2, 3, "p4"),
        nn.CoAttention(2, "p4"),
        nn.GroupBatchNorm2d(2),
        nn.GroupInstanceNorm2d(2, affine=True),
        nn.GroupGroupNorm2d(1, 2),
        nn.GroupLayerNorm2d(2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_inputs_on_another_device_are_refused(layer: torch.nn.Module) -> None:
    x = torch.zeros(2, 2, 6, 6) if isinstance(layer, nn.LiftingConv2d) else torch.zeros(2, 2, 4, 6, 6)
    with pytest.raises(ValueError, match=rf"{type(layer).__name__} has parameters on meta and got an input on cpu"):
        layer.to("meta")(x)


def test_integers_of_any_kind_and_equal_pairs_are_accepted() -> None:
    plain = nn.GroupConv2d(4, 6, 3, "p4", stride=2, padding=1, dilation=1, groups=2)
    made = nn.GroupConv2d(
        np.int64(4), torch.tensor(6), (3, 3), "p4", stride=[2, 2], padding=(1, 1), dilation=(1, 1), groups=np.int32(2)
    )
    assert repr(made) == repr(plain)
    assert all(type(getattr(made, name)) is int for name in ("in_channels", "out_channels", "kernel_size", "padding"))
    assert repr(nn.SpatialMaxPool2d((2, 2), stride=(2, 2))) == repr(nn.SpatialMaxPool2d(2))
    assert repr(nn.SpatialUpsample2d((2, 2))) == repr(nn.SpatialUpsample2d(2))


TAKES_MAPS = {
    "conv": lambda: nn.GroupConv2d(10, 5, 3, "p4"),
    "isotonic": lambda: nn.IsotonicConv2d(10, 5, 3),
    "project": lambda: nn.ProjectionConv2d(10, 5, 3, "p4", attention=True),
    "slice": lambda: nn.SliceCoAttentiveConv2d(10, 5, 3, "p4"),
    "attention": lambda: nn.CoAttention(10, "p4"),
    "batch norm": lambda: nn.GroupBatchNorm2d(10),
    "instance norm": lambda: nn.GroupInstanceNorm2d(10, affine=True),
    "group norm": lambda: nn.GroupGroupNorm2d(2, 10),
    "layer norm": lambda: nn.GroupLayerNorm2d(10),
    "dropout": lambda: nn.GroupDropout2d(),
    "elementwise dropout": lambda: nn.GroupDropout2d(elementwise=True),
    "max pool": lambda: nn.SpatialMaxPool2d(2),
    "avg pool": lambda: nn.SpatialAvgPool2d(2),
    "upsample": lambda: nn.SpatialUpsample2d(2),
    "group pool": lambda: nn.GroupPool("p4"),
    "coset pool": lambda: nn.GroupPool("p4", over=(0, 2)),
    "transposed": lambda: nn.GroupConvTranspose2d(10, 5, 2, "p4", stride=2),
    "restriction": lambda: nn.RestrictGroup("p4", to="C2"),
    "orientation field": lambda: nn.OrientationField(10, "p4"),
}
STRANGE = {
    "None": (lambda x: None, "got NoneType; pass a tensor"),
    "NumPy": (lambda x: x.numpy(), "got ndarray; pass a tensor"),
    "list": (lambda x: [x], "got list; pass a tensor"),
    "sparse": (lambda x: x.to_sparse(), "dense tensor, got a torch.sparse_coo one"),
    "mkldnn": (lambda x: x.float().to_mkldnn(), "dense tensor, got a torch._mkldnn one"),
    "quantised": (lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8), "got a quantised one"),
    "nested": (lambda x: torch.nested.as_nested_tensor(list(x), layout=torch.jagged), "got a"),
    "integers": (lambda x: x.long(), "torch.int64"),
    "truth values": (lambda x: x.bool(), "torch.bool"),
    "complex": (lambda x: x.to(torch.complex64), "torch.complex64"),
    "no pixels": (lambda x: x[..., :0], "8(,| x) 0"),
    "no channels": (lambda x: x[:, :0], r"\(2, 0,"),
    "four axes": (lambda x: x[0], "got "),
}


@pytest.mark.filterwarnings("ignore:.*(quantiz|nested|deprecated)")
@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", [*TAKES_MAPS, "lift"])
def test_strange_inputs_are_refused_in_the_name_of_the_layer(name: str, strange: str) -> None:
    layer = nn.LiftingConv2d(10, 5, 3, "p4") if name == "lift" else TAKES_MAPS[name]()
    change, message = STRANGE[strange]
    x = change(IMAGE if name == "lift" else MAP)
    with pytest.raises(ValueError, match=f"{type(layer).__name__} .*{message}"):
        layer(x)


@pytest.mark.parametrize("norm", ["batch norm", "instance norm", "group norm"])
def test_norms_name_a_wider_input(norm: str) -> None:
    layer = TAKES_MAPS[norm]().float()
    with pytest.raises(ValueError, match=r"has torch.float32 parameters and got a torch.float64 input"):
        layer(MAP)
    assert layer(MAP.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ca.models.restricted(None, (0,)), "restricted expects a model, a torch.nn.Module, got NoneType"),
        (lambda: ca.models.group_convolutions("p4cnn"), "group_convolutions expects a model.*got str"),
        (lambda: ca.models.restricted_poses(None), "expects a model.*got NoneType"),
        (
            lambda: nn.GroupBatchNorm2d.convert_sync_batchnorm(None),
            "convert_sync_batchnorm expects a model.*got NoneType",
        ),
        (lambda: estimate_norm_statistics(None, []), "estimate_norm_statistics expects a model.*got NoneType"),
        (lambda: estimate_norm_statistics(nn.GroupBatchNorm2d(1), None), "batches to iterate over, got NoneType"),
        (lambda: attention_masks(None, MAP), "attention_masks expects a model.*got NoneType"),
    ],
)
def test_what_is_no_model_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
