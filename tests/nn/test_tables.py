"""Tables follow the module: right after deferred initialisation, on every device, in every precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import prune

import coattend as ca
from tests.nn.test_tools import LAYERS, example

nn = ca.nn
RESTRICTED = {
    "conv, restricted": lambda: nn.GroupConv2d(4, 4, 3, "p4m", relative=(0, 2, 5)),
    "slice, restricted": lambda: nn.SliceCoAttentiveConv2d(4, 4, 3, "p4m", relative=(0, 2, 5)),
    "conv C8, restricted": lambda: nn.GroupConv2d(4, 4, 3, "C8", relative=(0, 1)),
    "conv C8, steerable, restricted": lambda: nn.GroupConv2d(4, 4, 3, "C8", relative=(0, 1), filters="steerable"),
}
EVERY = {**LAYERS, **RESTRICTED}
INTERPOLATED = {
    "lift": lambda: nn.LiftingConv2d(4, 4, 5, "C8"),
    "conv": lambda: nn.GroupConv2d(4, 4, 5, "C8"),
    "slice": lambda: nn.SliceCoAttentiveConv2d(4, 4, 5, "D8"),
    "project": lambda: nn.ProjectionConv2d(4, 4, 5, "C8"),
    "steerable": lambda: nn.GroupConv2d(4, 4, 5, "C8", filters="steerable"),
}


def tables(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = set(layer.state_dict())
    return {name: buffer for name, buffer in layer.named_buffers() if name not in state}


def emptied(layer: torch.nn.Module) -> torch.nn.Module:
    """On the CPU, with nothing in its memory but what the module itself puts there."""
    layer = layer.to_empty(device="cpu")
    for tensor in layer.state_dict().values():
        tensor.fill_(-1)
    return layer


@pytest.mark.parametrize("name", EVERY)
def test_deferred_initialisation_gives_the_same_layer(name: str) -> None:
    layer = EVERY[name]().eval()
    with torch.device("meta"):
        deferred = EVERY[name]().eval()
    assert all(t.is_meta for t in (*deferred.parameters(), *deferred.buffers()))
    loaded = emptied(copy.deepcopy(deferred))
    loaded.load_state_dict(layer.state_dict())
    assigned = copy.deepcopy(deferred)
    assigned.load_state_dict(layer.state_dict(), assign=True)
    x = example(name, layer)
    assert torch.equal(loaded(x), layer(x))
    if layer.state_dict():  # without a state nothing says where a layer is to be
        assert torch.equal(assigned(x), layer(x))
    fresh = emptied(deferred)
    for module in fresh.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert tables(fresh).keys() == tables(layer).keys()
    assert all(torch.equal(mine, tables(layer)[key]) for key, mine in tables(fresh).items())
    layer.load_state_dict(fresh.state_dict())
    assert torch.equal(fresh(x), layer(x))


@pytest.mark.parametrize("name", EVERY)
def test_modules_are_materialized_one_by_one_as_by_fsdp(name: str) -> None:
    with torch.device("meta"):
        layer = EVERY[name]()
    for module in layer.modules():
        if [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            module.to_empty(device="cpu", recurse=False)
            module.reset_parameters()
    expected = tables(EVERY[name]())
    assert all(torch.equal(table, expected[key]) for key, table in tables(layer).items())
    assert layer(example(name, layer)).isfinite().all()


@pytest.mark.parametrize("kind", [nn.GroupConv2d, nn.SliceCoAttentiveConv2d])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_restricted_layer_has_every_table_on_the_device_of_the_weight(kind: type, device: str) -> None:
    layer = kind(16, 16, 3, "D4").to(device)
    layer = layer.restricted((0, 2, 4))
    assert {t.device.type for t in (*layer.parameters(), *layer.buffers())} == {device}
    assert layer(torch.zeros(1, 16, 8, 5, 5, device=device)).shape == (1, 16, 8, 3, 3)


@pytest.mark.parametrize("name", INTERPOLATED)
def test_rounding_is_that_of_the_precision_in_use(name: str) -> None:
    exact = INTERPOLATED[name]().maps
    torch.set_default_dtype(torch.float32)
    layer = INTERPOLATED[name]()
    assert torch.equal(layer.maps, exact.float())
    assert torch.equal(layer.double().maps, exact)
    assert torch.equal(layer.half().maps, exact.half())
    assert torch.equal(layer.float().maps, exact.float())
    assert torch.equal(layer.to(torch.bfloat16).double().maps, exact)
    layer.float().load_state_dict({k: v.double() for k, v in layer.state_dict().items()}, assign=True)
    assert torch.equal(layer.maps, exact)


def test_a_move_to_where_it_is_keeps_the_tables_and_a_cast_of_everything_keeps_indices() -> None:
    layer = nn.SliceCoAttentiveConv2d(2, 2, 3, "p4")
    before = tables(layer)
    layer.to("cpu").double().share_memory()
    assert all(mine is before[name] for name, mine in tables(layer).items())
    layer.type(torch.float32)
    assert all(t.dtype == torch.int64 for t in tables(layer).values())
    assert layer(torch.zeros(1, 2, 4, 5, 5, dtype=torch.float32)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", INTERPOLATED)
def test_quarter_turns_permute_the_tables_bit_for_bit_after_any_conversion(name: str, dtype: torch.dtype) -> None:
    layer = INTERPOLATED[name]().half().to(dtype)
    G = layer.group
    images = layer.maps[layer.turns].transpose(1, 2).unflatten(2, (5, 5))  # what each pose makes of every single tap
    for h in G.exact_elements:
        for g in G.elements:
            assert torch.equal(ca.groups.transform_image(images[g], G, h), images[G.product[h, g]])


@pytest.mark.parametrize("name", EVERY)
def test_channels_last_is_accepted_and_changes_nothing(name: str) -> None:
    layer = EVERY[name]().eval()
    x = example(name, layer)
    expected = layer(x)
    model = torch.nn.Sequential(layer).to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    if x.ndim == 4:
        torch.testing.assert_close(
            model(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-12, atol=1e-12
        )
    model.train()(x.requires_grad_()).square().sum().backward()
    model.to("cpu", torch.float32, memory_format=torch.channels_last)
    assert model(x.detach().float()).dtype == torch.float32


def test_channels_last_passes_normed_and_pruned_filters() -> None:
    normed = torch.nn.utils.parametrizations.weight_norm(nn.GroupConv2d(2, 2, 3, "p4"))
    pruned = prune.l1_unstructured(nn.GroupConv2d(2, 2, 3, "p4"), "weight", amount=3)
    for layer in (normed, pruned):
        x = torch.randn(1, 2, 4, 5, 5)
        expected = layer(x)
        torch.testing.assert_close(layer.to(memory_format=torch.channels_last)(x), expected)


def test_other_failures_of_a_conversion_are_raised() -> None:
    def fail(t: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        nn.GroupConv2d(2, 2, 3, "p4")._apply(fail)
