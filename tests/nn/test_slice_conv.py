"""SliceCoAttentiveConv2d applies whatever stands in its ``attention``, and looking at it changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize, prune

import coattend as ca
from coattend.functional import convolution

nn = ca.nn
EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Zero(nn.CoAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * x


class Doubled(nn.CoAttention):
    def matrix(self) -> torch.Tensor:
        return 2 * super().matrix()


class Scaled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 3 * weight


def layer() -> nn.SliceCoAttentiveConv2d:
    made = nn.SliceCoAttentiveConv2d(2, 3, 3, "p4")
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def example() -> torch.Tensor:
    return torch.randn(2, 2, 4, 6, 6)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The planes that went the fast way."""
    seen: list[torch.Tensor] = []
    fast = convolution.attend_slices

    def counted(planes: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
        seen.append(planes)
        return fast(planes, *rest, **named)

    monkeypatch.setattr(convolution, "attend_slices", counted)
    return seen


def test_a_plain_attention_goes_the_fast_way(fused: list[torch.Tensor]) -> None:
    layer()(example())
    assert len(fused) == 1


def test_an_attention_of_zeros_leaves_the_bias_alone() -> None:
    conv, x = layer(), example()
    bias = conv.bias[:, None, None, None].expand(2, 3, 4, 4, 4)
    conv.attention = Zero(12, "p4")
    torch.testing.assert_close(conv(x), bias)
    conv.attention.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(conv(x), bias)


def test_any_module_may_replace_the_attention() -> None:
    conv, plain, x = layer(), nn.GroupConv2d(2, 3, 3, "p4"), example()
    plain.load_state_dict({k: v for k, v in conv.state_dict().items() if not k.startswith("attention")})
    conv.attention = torch.nn.Identity()
    torch.testing.assert_close(conv(x), plain(x), **EXACT)
    ca.assert_equivariant(conv, x, "p4", tol=1e-12)


def test_a_forward_assigned_to_the_module_is_called() -> None:
    conv, x = layer(), example()
    conv.attention.forward = lambda responses: 0 * responses
    torch.testing.assert_close(conv(x), conv.bias[:, None, None, None].expand(2, 3, 4, 4, 4))


def test_a_subclass_that_keeps_forward_keeps_the_fast_way(fused: list[torch.Tensor]) -> None:
    conv, x = layer(), example()
    doubled = Doubled(12, "p4")
    doubled.weight = conv.attention.weight
    conv.attention = doubled
    y = conv(x)
    assert len(fused) == 1
    doubled.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(conv(x), y, **EXACT)


@pytest.mark.parametrize("change", ["parametrized", "pruned"])
def test_a_parametrized_attention_counts(change: str, fused: list[torch.Tensor]) -> None:
    conv, x = layer(), example()
    if change == "parametrized":
        parametrize.register_parametrization(conv.attention, "weight", Scaled())
    else:
        prune.l1_unstructured(conv.attention, "weight", amount=20)
    y = conv(x)
    reference = layer()
    reference.load_state_dict(
        {"weight": conv.weight, "bias": conv.bias, "attention.weight": conv.attention.weight.detach()}
    )
    torch.testing.assert_close(y, reference(x), **EXACT)


OBSERVERS: dict[str, Callable[[torch.nn.Module, Callable[..., None]], object]] = {
    "hook": lambda attention, look: attention.register_forward_hook(look),
    "pre-hook": lambda attention, look: attention.register_forward_pre_hook(look),
    "global hook": lambda attention, look: torch_module.register_module_forward_hook(look),
    "global pre-hook": lambda attention, look: torch_module.register_module_forward_pre_hook(look),
}


@pytest.mark.parametrize("kind", OBSERVERS)
def test_looking_shows_the_responses_and_changes_nothing(kind: str) -> None:
    conv, x = layer(), example()
    expected = conv(x)
    seen = []

    def look(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], *_: object) -> None:
        if module is conv.attention:
            seen.append(inputs[0].shape)

    handle = OBSERVERS[kind](conv.attention, look)
    try:
        torch.testing.assert_close(conv(x), expected, **EXACT)
    finally:
        handle.remove()
    assert seen == [(2, 12, 4, 4, 4)]
    assert torch.equal(conv(x), expected)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_are_called(kind: str) -> None:
    conv, x = layer(), example()
    plain = torch.autograd.grad(conv(x).square().sum(), list(conv.parameters()))
    seen = []
    getattr(conv.attention, kind)(lambda *arguments: seen.append(arguments[0]))
    watched = torch.autograd.grad(conv(x).square().sum(), list(conv.parameters()))
    assert seen == [conv.attention]
    for mine, other in zip(watched, plain, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


def test_vmap_over_the_bias() -> None:
    conv, x = layer(), example()
    biases = torch.randn(5, 3)
    mapped = torch.func.vmap(lambda bias: torch.func.functional_call(conv, {"bias": bias}, (x,)))(biases)
    torch.testing.assert_close(mapped - biases[:, None, :, None, None, None], (conv(x) - conv.bias[:, None, None, None]).expand_as(mapped), **EXACT)  # fmt: skip  # noqa: E501


def test_a_parametrized_or_pruned_layer_says_why_it_cannot_be_restricted() -> None:
    x = example()
    for make in (layer, lambda: nn.GroupConv2d(2, 3, 3, "p4")):
        normed = torch.nn.utils.parametrizations.weight_norm(make())
        with pytest.raises(ValueError, match="its weight is not a plain parameter.*remove_parametrizations"):
            normed.restricted((0, 1))
        parametrize.remove_parametrizations(normed, "weight")
        assert normed.restricted((0, 1))(x).shape == (2, 3, 4, 4, 4)
        pruned = prune.l1_unstructured(make(), "weight", amount=3)
        with pytest.raises(ValueError, match="its weight is not a plain parameter.*prune.remove"):
            pruned.restricted((0, 1))
        prune.remove(pruned, "weight")
        assert pruned.restricted((0, 1))(x).shape == (2, 3, 4, 4, 4)
    conv = layer()
    conv.attention = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"its attention\.weight is not a plain parameter"):
        conv.restricted((0, 1))
