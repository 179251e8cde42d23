"""What every form of attention over poses gets from its base class."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.equivariance import Cause
from coattend.nn.attention import ATTENTIONS
from coattend.nn.observe import attended_convolutions

nn = ca.nn


class Gate(nn.PoseAttention):
    """A mask that depends on how far a pose is above the mean of all poses."""

    def __init__(self, channels: int, group: ca.FiniteGroup | str) -> None:
        super().__init__(channels, group)
        self.scale = torch.nn.Parameter(torch.randn(channels))

    def mask(self, x: Tensor) -> Tensor:
        return (self.scale[:, None, None, None] * (x - x.mean(2, keepdim=True))).sigmoid()


class FirstPose(nn.PoseAttention):
    """A mask that passes the first pose only, which breaks equivariance."""

    @property
    def is_equivariant(self) -> bool:
        return False

    def mask(self, x: Tensor) -> Tensor:
        mask = torch.zeros_like(x)
        mask[:, :, 0] = 1
        return mask


class Halved(nn.CoAttention):
    def mask(self, x: Tensor) -> Tensor:
        return super().mask(x) / 2


class Mixin:
    def mask(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


class Mixed(Mixin, nn.CoAttention):
    """Overrides the mask without defining it itself."""


def network(attention: type[nn.PoseAttention], group: str = "p4") -> torch.nn.Sequential:
    return torch.nn.Sequential(
        nn.LiftingConv2d(1, 3, 3, group), attention(3, group), torch.nn.ReLU(), nn.GroupPool(group)
    )


def test_forward_is_the_mask_times_the_map() -> None:
    x = torch.randn(2, 3, 4, 5, 5)
    layer = Gate(3, "p4")
    assert torch.equal(layer(x), layer.mask(x) * x)
    assert repr(layer) == "Gate(3, group=C4)"
    assert layer.is_equivariant
    assert layer.matrix() is None


def test_a_form_is_checked_masked_and_diagnosed_like_co_attention() -> None:
    x = torch.randn(2, 1, 9, 9)
    ca.assert_equivariant(network(Gate), x, "p4", tol=1e-12)
    assert ca.is_exact(network(Gate), 9)
    (mask,) = ca.attention_masks(network(Gate), x).values()
    assert mask.shape == (2, 3, 4, 7, 7)
    wrong = network(FirstPose)
    assert not ca.is_exact(wrong, 9)
    fault = ca.diagnose(wrong, x, "p4").fault
    assert fault is not None
    assert fault.cause is Cause.ATTENTION
    assert "FirstPose(3, group=C4) does not commute with C4" in fault.remedy


def test_a_form_without_a_mask_says_so() -> None:
    class Nothing(nn.PoseAttention):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing does not define mask\(x\)"):
        Nothing(3, "p4")(torch.randn(1, 3, 4, 2, 2))


def test_wrong_input_names_the_form() -> None:
    with pytest.raises(ValueError, match=r"Gate expects a map \(batch, channels=3, group=4"):
        Gate(3, "p4")(torch.randn(1, 2, 4, 5, 5))
    with pytest.raises(ValueError, match="Gate expects channels to be a whole number"):
        Gate(0, "p4")


@pytest.mark.parametrize("form", [Halved, Mixed])
def test_a_new_mask_replaces_inherited_shortcuts(form: type[nn.CoAttention]) -> None:
    layer, x = form(3, "p4"), torch.randn(2, 3, 4, 5, 5)
    assert torch.equal(layer(x), layer.mask(x) * x)
    assert not layer.is_fusible()
    conv = nn.SliceCoAttentiveConv2d(2, 3, 3, "p4")
    plain = nn.CoAttention(12, "p4")
    conv.attention = form(12, "p4")
    maps = torch.randn(2, 2, 4, 6, 6)
    with_mask = conv(maps)
    conv.attention = plain
    assert plain.is_fusible()
    assert not torch.allclose(with_mask, conv(maps))


def test_slices_of_a_form_are_those_of_single_layers() -> None:
    conv, x = nn.SliceCoAttentiveConv2d(2, 3, 3, "p4"), torch.randn(2, 2, 4, 6, 6)
    conv.attention = Gate(12, "p4")
    conv.bias.data.zero_()
    expected = torch.zeros(2, 3, 4, 4, 4)
    for t in range(4):
        alone = nn.GroupConv2d(2, 3, 3, "p4", bias=False)
        alone.weight.data = torch.zeros_like(conv.weight)
        alone.weight.data[:, :, t] = conv.weight.data[:, :, t]
        slice_attention = Gate(3, "p4")
        slice_attention.scale.data = conv.attention.scale.data.view(3, 4)[:, t]
        expected += slice_attention(alone(x))
    torch.testing.assert_close(conv(x), expected, rtol=1e-12, atol=1e-12)
    ca.assert_equivariant(conv, x, "p4", tol=1e-12)


def test_co_attention_takes_device_and_dtype() -> None:
    layer = nn.CoAttention(3, "p4", device="meta", dtype=torch.float32)
    assert (layer.weight.device.type, layer.weight.dtype, layer.index.device.type) == ("meta", torch.float32, "meta")


def test_the_convolution_that_an_attention_weighs_is_found_by_execution() -> None:
    class Crossed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weigh = Gate(3, "p4")
            self.last = nn.ProjectionConv2d(3, 2, 3, "p4", attention=True)
            self.inner = nn.SliceCoAttentiveConv2d(3, 3, 3, "p4")
            self.lift = nn.LiftingConv2d(1, 3, 3, "p4")

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(self.weigh(self.lift(x).relu())))

    assert attended_convolutions(Crossed(), torch.randn(1, 1, 9, 9)) == {
        "weigh": "lift",
        "inner.attention": "inner",
        "last.attention": "last",
    }


def test_forms_are_registered_by_name() -> None:
    assert ca.register_attention("above_mean")(Gate) is Gate
    try:
        assert ATTENTIONS["above_mean"] is Gate
        with pytest.raises(ValueError, match="there is a form of attention 'above_mean' already"):
            ca.register_attention("above_mean")(FirstPose)
    finally:
        ATTENTIONS.remove("above_mean")
    with pytest.raises(
        ValueError, match="expects a subclass of PoseAttention or AttentionLayer, got <class 'torch.nn.modules.linear"
    ):
        ca.register_attention("linear")(torch.nn.Linear)
    with pytest.raises(ValueError, match="'output' is the name of a built-in choice"):
        ca.register_attention("output")(Gate)
    with pytest.raises(ValueError, match="unknown form of attention 'above_means'"):
        ATTENTIONS["above_means"]
