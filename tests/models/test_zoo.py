"""The networks of Table 1: the counts of all, gradients, exactness and torch's tools in every family.

Within a family the networks share their code, so that one plain and one attentive network stand for it; what every one
of the 21 computes is in test_reference.py.
"""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.models.paper import TABLE_1
from coattend.nn.observe import estimate_norm_statistics

COUNTS = {
    "z2cnn": 21_750,
    "p4cnn": 19_880,
    "a_p4cnn": 20_760,
    "dren": 19_880,
    "a_dren": 20_760,
    "dren_maxpool": 24_680,
    "a_dren_maxpool": 25_680,
    "allcnn": 1_372_254,
    "p4_allcnn": 1_371_006,
    "a_p4_allcnn": 1_373_542,
    "p4m_allcnn": 1_219_678,
    "a_p4m_allcnn": 1_223_086,
    "resnet44": 2_639_434,
    "p4m_resnet44": 2_622_878,
    "a_p4m_resnet44": 2_632_358,
    "nin": 966_986,
    "r_nin_x4": 958_122,
    "a_r_nin_x4": 968_274,
    "resnet20": 334_698,
    "r_resnet20_x4": 332_986,
    "a_r_resnet20_x4": 339_202,
}
ALTERNATIVES = {
    "p4cnn:head=max": 24_680,
    "a_p4cnn:attention=output": 20_160,
    "a_p4cnn:head=max": 25_680,
    "a_p4cnn:head=max,attention=output": 24_960,
    "a_dren:attention=output": 20_160,
    "a_dren_maxpool:attention=output": 24_960,
    "a_p4_allcnn:attention=slice": 1_380_574,
    "a_p4m_allcnn:attention=slice": 1_245_150,
    "a_p4m_resnet44:attend_shortcuts=false": 2_631_814,
    "a_r_nin_x4:attention=output": 960_978,
    "a_r_resnet20_x4:attention=output": 334_594,
}
NAMES = list(TABLE_1)
WITHOUT_GROUP = [name for name in NAMES if ca.model_entry(name).group == "z2"]  # one per family
PLAIN = ["p4cnn", "p4_allcnn", "p4m_resnet44", "r_nin_x4", "r_resnet20_x4"]
ATTENTIVE = ["a_dren_maxpool", "a_p4m_allcnn", "a_p4m_resnet44", "a_r_nin_x4", "a_r_resnet20_x4"]


def count(name: str) -> int:
    return sum(p.numel() for p in ca.create_model(name).parameters())


def images(name: str, batch: int = 2, size: int | None = None) -> Tensor:
    entry = ca.model_entry(name)
    size = size or entry.image_size
    return torch.randn(batch, entry.in_channels, size, size)


def settled(name: str, **options: object) -> torch.nn.Module:
    """A network as training would leave it: no weight at its initial value, batch-norm statistics from data."""
    torch.manual_seed(1)
    model = ca.create_model(name, **options)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("bias", "norm.weight")):
                parameter.add_(0.1 * torch.randn_like(parameter))
    estimate_norm_statistics(model, [images(name, 4)])
    return model


def shallow(name: str) -> dict[str, int]:
    """Return the options for one block per stage: every kind of layer is still there."""
    return {"blocks": 1} if "resnet" in name else {}


def narrow(name: str) -> dict[str, int]:
    """Return the options for few channels; without norms a narrow network is almost constant."""
    return {} if "nin" in name else {"width": 4, **shallow(name)}


def worst_error(model: torch.nn.Module, x: Tensor, group: object) -> float:
    return max(ca.equivariance_error(model, x, group).values())


def test_the_list_is_table_1() -> None:
    assert list(COUNTS) == NAMES == ca.list_models()[: len(NAMES)]


@pytest.mark.parametrize("name", [*COUNTS, *ALTERNATIVES])
def test_parameter_counts_are_exact(name: str) -> None:
    assert count(name) == {**COUNTS, **ALTERNATIVES}[name]


@pytest.mark.parametrize("name", NAMES)
def test_our_count_is_the_published_one(name: str) -> None:
    """To the last printed digit, rounded, or cut off as the All-CNN rows are."""
    published = ca.model_entry(name).published_count
    unit = {"k": 1e3, "M": 1e6}[published[-1]]
    digits = len(published[:-1].partition(".")[2])
    ours = COUNTS[name] / unit
    cut_off = int(ours * 10**digits) / 10**digits
    assert float(published[:-1]) in (round(ours, digits), cut_off)
    if round(ours, digits) != float(published[:-1]):
        assert "truncates" in ca.model_entry(name).note


@pytest.mark.parametrize("name", [*PLAIN, *ATTENTIVE])
def test_forward_and_backward_reach_every_parameter(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = ca.create_model(name)
    logits = model(images(name))
    assert logits.shape == (2, 10)
    torch.nn.functional.cross_entropy(logits, torch.tensor([3, 7])).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        # The bias of a convolution before a batch norm has no effect, so its gradient is rounding.
        if not parameter_name.endswith("conv.bias"):
            assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", [*PLAIN, *ATTENTIVE])
def test_logits_are_invariant_wherever_is_exact_says_so(name: str) -> None:
    """Narrow, else as published; at 33 x 33; with pooling: every element, float64."""
    entry = ca.model_entry(name)
    variants = [({}, entry.image_size)]
    if entry.dataset == "cifar10":
        variants.append(({}, 33))
        if "nin" not in name:
            variants.append(({"downsample": "pool"}, 32))
    exact_at = []
    for options, size in variants:
        model = settled(name, **narrow(name), **options)
        error = worst_error(model, images(name, 1, size), model.group)
        if ca.is_exact(model, size):
            assert error <= 1e-10
            exact_at.append((tuple(options.values()), size))
        else:
            assert error > 1e-4  # not a formality: the computation and the measurement agree on both sides
    if entry.dataset == "rotated-mnist":
        assert exact_at == [((), 28)]
    elif "nin" in name:
        assert exact_at == [((), 32)]
    else:
        assert exact_at == [((), 33), (("pool",), 32)]


@pytest.mark.parametrize("name", WITHOUT_GROUP)
def test_networks_over_the_trivial_group_are_not_invariant(name: str) -> None:
    assert worst_error(settled(name, **narrow(name)), images(name, 1), "p4") > 1e-3


@pytest.mark.parametrize(
    "name",
    [
        "p4cnn",
        "a_dren_maxpool",
        "a_p4m_allcnn",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("z2cnn", "a_p4m_resnet44", "a_r_nin_x4", "a_r_resnet20_x4")
        ),
    ],
)
def test_compiles_and_exports(name: str) -> None:
    torch._dynamo.reset()
    model = ca.create_model(name, width=4, **shallow(name)).eval()
    x = images(name)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-8, atol=1e-10)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    larger = torch.cat([x, x, x[:1]])
    torch.testing.assert_close(program.module()(larger), model(larger), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [*PLAIN, *ATTENTIVE])
def test_bfloat16_autocast(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = settled(name, width=8, **shallow(name)).eval()
    x = images(name)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    assert torch.isfinite(logits).all()
    with torch.no_grad():
        exact = model(x)
    assert (logits.float() - exact).norm() / exact.norm() < 0.2


@pytest.mark.parametrize("name", ["a_p4cnn", pytest.param("a_p4m_allcnn", marks=pytest.mark.slow)])
def test_inductor(name: str) -> None:
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float32)
    model = settled(name, width=4).eval()
    x = images(name)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-3, atol=1e-4)


def test_every_published_network_builds_in_under_a_second() -> None:
    ca.create_model(NAMES[0])  # loads modules and plugins
    for name in NAMES:
        start = time.process_time()
        ca.create_model(name)
        assert time.process_time() - start < 1, name


@pytest.mark.parametrize("form", ["output", "slice", "output,position=relu"])
def test_the_diagonal_of_new_attention_matrices_is_an_option_and_changes_nothing_else(form: str) -> None:
    torch.manual_seed(3)
    usual = ca.create_model(f"a_p4cnn:attention={form}")
    torch.manual_seed(3)
    flat = ca.create_model(f"a_p4cnn:attention={form},diagonal=0")
    layers = [m for m in flat.modules() if isinstance(m, ca.nn.CoAttention)]
    assert len(layers) == 7
    for layer in layers:
        assert not layer.matrix().diagonal(dim1=1, dim2=2).any()
        layer.weight.data[:, 0] = 1
    for key, tensor in usual.state_dict().items():
        assert torch.equal(flat.state_dict()[key], tensor), key
