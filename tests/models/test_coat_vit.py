"""coat_vit: its parameters, exactness and torch's tools."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx, freeze
from coattend.nn.observe import estimate_norm_statistics

SMALL = {"width": 8, "depth": 1, "token_heads": 2, "mlp": 2}


def settled(**options: object) -> torch.nn.Module:
    model = ca.create_model("coat_vit", **SMALL, **options)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0 if name.endswith("bias") else 1, 0.1)
    estimate_norm_statistics(model, [torch.randn(4, 3, 16, 16)])
    return model.eval()


@pytest.mark.parametrize(("name", "n", "count"), [("coat_vit", 8, 417_754), ("coat_vit:group=p4", 4, 210_394)])
def test_parameters(name: str, n: int, count: int) -> None:
    c, norm = 24, 2 * 24
    stem = 3 * c * 9 + c + norm + 2 * (c * c * n * 9 + c + norm)
    block = 2 * norm + (3 + 1 + 4 + 4) * c * c * n + (3 + 1 + 4 + 1) * c
    assert stem + 6 * block + norm + c * 10 + 10 == count
    assert sum(p.numel() for p in ca.create_model(name).parameters()) == count


@pytest.mark.parametrize("options", [{}, {"group": "C4", "window": 4, "layer_scale": 0.1}, {"patch": 8}])
def test_logits_are_invariant(options: dict[str, object]) -> None:
    model = settled(**options)
    assert max(ca.equivariance_error(model, torch.randn(1, 3, 32, 32), model.group).values()) <= 1e-12
    assert ca.is_exact(model, 32)


def test_plain_network_is_not() -> None:
    model = settled(group="z2")
    assert max(ca.equivariance_error(model, torch.randn(1, 3, 32, 32), "p4").values()) > 1e-3


def test_compiles_exports_and_freezes(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = settled(group="C4", window=4, layer_scale=0.1)
    x = torch.randn(2, 3, 32, 32)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-8, atol=1e-10)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    larger = torch.cat([x, x, x[:1]])
    torch.testing.assert_close(program.module()(larger), model(larger), rtol=1e-8, atol=1e-10)
    frozen = freeze(model)
    for size in (32, 48):
        x = torch.randn(3, 3, size, size)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-11, atol=1e-11)


def test_onnx_file_has_a_certificate_that_holds(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    export_onnx(settled(), tmp_path / "model.onnx")
    check = check_certificate(tmp_path / "model.onnx")
    assert all(claim.agrees for claim in check.claims)
    assert max(check.certificate.equivariance.values()) < 1e-5


def test_wrong_patch() -> None:
    with pytest.raises(ValueError, match="a power of 2"):
        ca.create_model("coat_vit:patch=3")


def test_exact_elements_of_c8() -> None:
    model = settled(group="C8")
    errors = ca.equivariance_error(model, torch.randn(1, 3, 32, 32), model.group)
    assert max(errors[g] for g in model.group.exact_elements) <= 1e-12
