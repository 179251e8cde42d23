"""coat_unet: exact at the sizes that it takes, masks and fields that move with the image, and torch's tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx, freeze
from coattend.models.matching import closest_widths
from coattend.nn.observe import estimate_norm_statistics, multiply_adds

SMALL = "coat_unet:width=2,depth=2"


def settled(name: str, size: int = 16) -> torch.nn.Module:
    model = ca.create_model(name)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0 if key.endswith("bias") else 1, 0.1)
    estimate_norm_statistics(model, [torch.randn(4, model.in_channels, size, size)])
    return model.eval()


@pytest.mark.parametrize(
    "options",
    ["", ",group=C4,attention=output", ",attention=gate,head=mean", ",group=p4,attention=slice", ",output=axis",
     ",output=vector,num_classes=2,group=p4", ",in_channels=1,num_classes=5"],
)  # fmt: skip
def test_one_result_per_pixel_that_moves_with_the_image(options: str) -> None:
    model = settled(SMALL + options)
    x = torch.randn(2, model.in_channels, 16, 24)
    y = model(x)
    assert y.shape == (2, model.num_classes * (2 if ",output=" in options else 1), 16, 24)
    assert max(ca.equivariance_error(model, x, model.group).values()) <= 1e-12
    assert ca.is_exact(model, (16, 24))
    assert y.std(dim=(-2, -1)).min() > 0


def test_the_vector_part_turns_as_well() -> None:
    """Definition: v'(u) = rho(g) v(g^-1 u); moving positions alone is not enough."""
    model = settled(f"{SMALL},output=vector,num_classes=1,group=p4")
    x = torch.randn(1, 3, 16, 16)
    v = model(x)
    turned = torch.rot90(v, 1, (-2, -1))
    quarter = torch.stack([-turned[:, 1], turned[:, 0]], 1)  # (x, y) -> (-y, x)
    moved = model(torch.rot90(x, 1, (-2, -1)))
    assert (moved - quarter).abs().max() <= 1e-10 * v.abs().max()
    assert (moved - turned).abs().max() > 0.1 * v.abs().max()


def test_a_plain_network_is_not_equivariant() -> None:
    assert max(ca.equivariance_error(settled(f"{SMALL},group=z2"), torch.randn(1, 3, 16, 16), "p4").values()) > 1e-2


def test_other_sizes_are_refused_and_exact_ones_named() -> None:
    model = ca.create_model(SMALL)
    with pytest.raises(ValueError, match=r"multiples of 4, got 18 x 16; pad or crop"):
        model(torch.zeros(1, 3, 18, 16))
    assert not ca.is_exact(model, 18)
    line = ca.models.exactness_line(model, (18, 18))
    assert "NOT" in line
    assert "use images of 16 x 16 or 20 x 20 pixels" in line


def test_costly_networks_are_measured_with_few_channels() -> None:
    """Its two passes of two images in float64 would take minutes."""
    model = ca.create_model("coat_unet:width=16,depth=1")
    assert "is exactly equivariant to D4 on images of 128 x 128" in ca.models.exactness_line(model, (128, 128))
    assert "NOT" in ca.models.exactness_line(model, (129, 129))


@pytest.mark.parametrize("options", ["", ",attention=output", ",group=C8,filters=steerable"])
def test_freezes_with_norms_folded(options: str) -> None:
    model = settled(SMALL + options)
    frozen = freeze(model)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in frozen.modules())
    for size in (16, 24):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-11, atol=1e-11)


def test_features_are_the_maps_on_the_way_down() -> None:
    maps = ca.create_model(SMALL, features_only=True)(torch.randn(2, 3, 16, 16))
    assert [tuple(m.shape[1:]) for m in maps] == [(2, 8, 16, 16), (4, 8, 8, 8), (8, 8, 4, 4)]


@pytest.mark.slow
def test_compiles_and_exports() -> None:
    torch._dynamo.reset()
    model = settled(f"{SMALL},attention=output,group=p4")
    x = torch.randn(2, 3, 16, 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-8, atol=1e-10)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    larger = torch.cat([x, x, x[:1]])
    torch.testing.assert_close(program.module()(larger), model(larger), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("output", ["mask", "axis"])
def test_files_and_onnx(tmp_path: Path, output: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = settled(f"{SMALL},output={output},group=p4")
    ca.save_model(model, tmp_path / "model.safetensors")
    x = torch.randn(1, 3, 16, 16)
    assert torch.equal(ca.load_model(tmp_path / "model.safetensors").eval()(x), model(x))
    export_onnx(model, tmp_path / "model.onnx", size=16)
    check = check_certificate(tmp_path / "model.onnx")
    assert check.agrees
    assert max(check.certificate.equivariance.values()) < 1e-5


def test_every_parameter_gets_a_gradient() -> None:
    model = ca.create_model(SMALL)
    logits = model(torch.randn(2, 3, 16, 16))
    torch.nn.functional.cross_entropy(logits, torch.randint(2, (2, 16, 16))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("conv.bias") or ".up." in name:
            assert parameter.grad.abs().max() > 1e-12, name


@pytest.mark.parametrize("group", ["p4", "p4m", "C8"])
@pytest.mark.parametrize("match", ["params", "cost"])
def test_as_large_as_the_plain_network(group: str, match: str) -> None:
    matched = ca.create_model(f"coat_unet:group={group},match={match},width=16")
    plain = ca.create_model("coat_unet:group=z2,width=16")

    def size(model: torch.nn.Module) -> int:
        if match == "params":
            return sum(p.numel() for p in model.parameters())
        return sum(multiply_adds(model, (3, 64, 64)).values())

    assert abs(size(matched) / size(plain) - 1) < 0.01
    assert "match" not in matched.config.options


def test_widths_are_the_closest() -> None:
    assert closest_widths((10,), lambda w: 8 * w[0] ** 2, 10**2) == (4,)
    assert closest_widths((4,), lambda w: w[0] ** 2, 121) == (11,)
    assert closest_widths((64, 128), lambda w: 8 * sum(n * n + n for n in w), 64**2 + 128**2) == (22, 45)
    assert closest_widths((4, 4), lambda w: 9 * sum(w), 1) == (1, 1)


def test_code_in_the_documentation_runs() -> None:
    torch.set_default_dtype(torch.float32)
    page = Path(__file__).parents[2] / "docs" / "dense.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, Any] = {"image": torch.randn(3, 40, 56)}
    for block in blocks:
        exec(block, scope)
    assert scope["mask"].shape == (2, 16, 64, 64)
    assert scope["angle"].shape == (2, 1, 64, 64)
    assert scope["logits"].shape == (3, 40, 56)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coat_unet:depth=9", "depth must be a whole number from 1 to 8"),
        ("coat_unet:width=2-3", "one number or 4, one per level of depth=3"),
        ("coat_unet:output=angle", "output must be one of mask, vector, axis"),
        ("coat_unet:head=sum", "head must be one of max, mean"),
        ("coat_unet:match=size", "match must be one of params, cost, got 'size'"),
        ("p4cnn:match=params", "p4cnn has no option 'match'"),
    ],
)
def test_wrong_options(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.create_model(name)
