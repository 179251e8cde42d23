"""Tools that replace or rewrite the convolutions of an ordinary CNN work on frozen networks: quantisation, pruning."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import coattend as ca
from coattend.export import freeze
from coattend.nn.observe import estimate_norm_statistics

KINDS = ["output", "slice", "restricted"]


def calibrated(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.set_default_dtype(torch.float32)
    conv = {
        "output": nn.Sequential(ca.nn.GroupConv2d(2, 2, 3, "p4"), ca.nn.CoAttention(2, "p4")),
        "slice": ca.nn.SliceCoAttentiveConv2d(2, 2, 3, "p4"),
        "restricted": ca.nn.GroupConv2d(2, 2, 3, "p4", relative=(0, 2)),
    }[kind]
    layers = [ca.nn.LiftingConv2d(1, 2, 3, "p4"), nn.ReLU(), conv, ca.nn.GroupBatchNorm2d(2), nn.ReLU()]
    model = nn.Sequential(*layers, ca.nn.ProjectionConv2d(2, 3, 2, "p4", attention=True), nn.Flatten())
    images = torch.randn(8, 1, 6, 6)
    estimate_norm_statistics(model, [images])
    return model.eval(), images


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")  # torch announces that its quantisation will move to another package
def test_fx_quantisation_replaces_every_convolution(kind: str) -> None:
    quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    from torch.ao.quantization import get_default_qconfig_mapping

    model, images = calibrated(kind)
    prepared = quantize_fx.prepare_fx(freeze(model), get_default_qconfig_mapping("x86"), (images,))
    prepared(images)
    quantised = quantize_fx.convert_fx(prepared)
    assert sum("quantized" in type(m).__module__ for m in quantised.modules()) == 3
    assert not any(type(m) is nn.Conv2d for m in quantised.modules())
    with torch.no_grad():
        expected = model(images)
    assert (quantised(images) - expected).abs().max() < 0.3 * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_pruned_networks_run(kind: str) -> None:
    model, images = calibrated(kind)
    frozen = freeze(model).to(memory_format=torch.contiguous_format)  # which the views of pruning need
    convolutions = [m for m in frozen.modules() if isinstance(m, nn.Conv2d)]
    for conv in convolutions:
        prune.l1_unstructured(conv, "weight", amount=0.5)
    pruned = frozen(images)
    for conv in convolutions:
        prune.remove(conv, "weight")
        assert abs((conv.weight == 0).double().mean().item() - 0.5) < 0.05
    assert torch.equal(frozen(images), pruned)
    assert not torch.allclose(pruned, freeze(model)(images))
