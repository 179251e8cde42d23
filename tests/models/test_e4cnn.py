"""e4cnn: its parameters, its static twin, exactness and torch's tools."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx
from tests.models.test_zoo import settled, worst_error

COUNTS = {"e4cnn": 18_118, "e4cnn:generated=false": 6_982, "e4cnn:generated=false,width=26": 17_392}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    assert sum(p.numel() for p in ca.create_model(name).parameters()) == COUNTS[name]


@pytest.mark.parametrize("options", [{}, {"generated": False}, {"group": "D4", "kernel": 3}])
def test_logits_are_invariant(options: dict[str, object]) -> None:
    model = settled("e4cnn", width=4, **options)
    assert worst_error(model, torch.randn(1, 1, 28, 28), model.group) <= 1e-12
    assert ca.is_exact(model, 28)


def test_backward_reaches_every_parameter() -> None:
    model = ca.create_model("e4cnn", width=4, dropout=0.2, attention="output", position="relu")
    torch.nn.functional.cross_entropy(model(torch.randn(2, 1, 28, 28)), torch.tensor([3, 7])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any(), name


def test_compiles_and_exports() -> None:
    torch._dynamo.reset()
    model = ca.create_model("e4cnn", width=4, kernel=3).eval()
    x = torch.randn(2, 1, 28, 28)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-8, atol=1e-10)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    larger = torch.cat([x, x, x[:1]])
    torch.testing.assert_close(program.module()(larger), model(larger), rtol=1e-8, atol=1e-10)


def test_onnx_file_has_a_certificate_that_holds(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    path = tmp_path / "model.onnx"
    export_onnx(settled("e4cnn", width=4, kernel=3).eval(), path)
    check = check_certificate(path)
    assert all(claim.agrees for claim in check.claims)
    assert max(check.certificate.equivariance.values()) < 1e-4


def test_slice_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="use attention=output"):
        ca.create_model("e4cnn:attention=slice")


def test_generated_coefficients_are_exact_on_the_exact_subgroup() -> None:
    model = settled("e4cnn", width=4, group="C8", filters="steerable", kernel=3)
    errors = ca.equivariance_error(model, torch.randn(1, 1, 28, 28), model.group)
    assert max(errors[g] for g in model.group.exact_elements) <= 1e-12
