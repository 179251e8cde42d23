"""Networks whose filters are free or steerable: names, counts, files, restriction and export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx, freeze
from coattend.models.container import packed
from coattend.models.registry import network_name
from coattend.nn.observe import estimate_norm_statistics
from tests.models.test_serialization import content_of

STEERABLE = "p4cnn:group=C8,width=7,kernel=5,filters=steerable,head=max"


def settled(name: str) -> ca.models.EquivariantNetwork:
    network = ca.create_model(name)
    estimate_norm_statistics(network, [torch.randn(8, 1, 28, 28)])
    return network.eval()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        (STEERABLE, 7 * 11 + 5 * 7 * 7 * 8 * 11 + 6 * 3 * 7 + 7 * 10 * 8 * 6 + 10),
        (
            "p4cnn:group=C8,width=9,filters=steerable,head=max",
            9 * 6 + 5 * 81 * 8 * 6 + 6 * 3 * 9 + 90 * 8 * 6 + 10,
        ),
        ("p4cnn:group=C8,width=6,head=max", 20_812),
        ("p4cnn:group=C8,width=6,filters=bicubic,head=max", 20_812),
        ("p4cnn:kernel=5", 10 * 25 + 5 * 10 * 10 * 4 * 25 + 6 * 30 + 10 * 10 * 16 + 10),
    ],
)
def test_counts(name: str, count: int) -> None:
    network = ca.create_model(name)
    assert sum(p.numel() for p in network.parameters()) == count
    assert network(torch.randn(1, 1, 28, 28)).shape == (1, 10)


@pytest.mark.parametrize("kernel", [3, 5, 7, 9, 11])
def test_larger_kernels_keep_the_sizes_of_maps_and_exactness(kernel: int) -> None:
    network = ca.create_model(f"p4cnn:width=2,kernel={kernel}")
    first = network.stages[0](torch.randn(1, 1, 28, 28))
    assert (first.shape[-1], network.stages[1](first).shape[-1]) == (24, 4)
    ca.assert_equivariant(network, torch.randn(1, 1, 28, 28), "p4", tol=1e-10)


@pytest.mark.parametrize("kernel", [1, 4, 13])
def test_kernels_that_do_not_fit_are_refused(kernel: int) -> None:
    with pytest.raises(ValueError, match=f"kernel must be 3, 5, 7, 9 or 11, .*got {kernel}"):
        ca.create_model(f"p4cnn:kernel={kernel}")


def test_names_say_which_filters() -> None:
    for name in (
        "p4cnn:filters=steerable,group=C8,width=2",
        "p4cnn:filters=bicubic,group=C8,width=2",
        "p4cnn:filters=0-2-2-width-0.5,group=C8,kernel=5,width=2",
        "p4cnn:filters=1,group=C8,width=2",
        "p4cnn:group=C8,width=2",
    ):
        network = ca.create_model(name)
        assert network_name(network) == name
    rings = ca.create_model("p4cnn", group="C8", width=2, kernel=5, filters=ca.Rings((0, 2, 2)))
    assert network_name(rings) == "p4cnn:filters=0-2-2,group=C8,kernel=5,width=2"
    assert rings.head.layer7.conv.filter_form == ca.Rings((0, 2))  # the outer ring does not fit 4 x 4
    with pytest.raises(ValueError, match="filters must be one of free, steerable, bicubic, bilinear, got 'cubic'"):
        ca.create_model("p4cnn:filters=cubic")
    with pytest.raises(ValueError, match="orders of rings, such as 0-2-2"):
        ca.create_model("p4cnn:filters=0-x")


@pytest.mark.parametrize("filters", ["free", "steerable", "bilinear", "0-2-width-0.5-sampled"])
@pytest.mark.parametrize("attention", ["none", "output", "slice"])
def test_files_hold_the_filters(filters: str, attention: str, tmp_path: Path) -> None:
    network = ca.create_model(f"p4cnn:group=C8,width=2,filters={filters},attention={attention}").eval()
    ca.save_model(network, tmp_path / "m.safetensors")
    loaded = ca.load_model(tmp_path / "m.safetensors").eval()
    assert loaded.config == network.config
    x = torch.randn(1, 1, 28, 28)
    assert torch.equal(loaded(x), network(x))
    ca.load_model(tmp_path / "m.safetensors", into=network)
    if filters == "free":
        other = ca.create_model(f"p4cnn:group=C8,width=2,filters=bicubic,attention={attention}")
        with pytest.raises(ValueError, match="filters is free instead of bicubic"):
            ca.load_model(tmp_path / "m.safetensors", into=other)


def test_files_written_before_filters_could_be_chosen_interpolate(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    network = ca.create_model("p4cnn:group=C8,width=2,filters=bicubic").eval()
    ca.save_model(network, path)
    metadata, tensors = content_of(path)
    options = {key: value for key, value in json.loads(metadata["options"]).items() if key != "filters"}
    path.write_bytes(packed(tensors, {**metadata, "options": json.dumps(options)}))
    loaded = ca.load_model(path).eval()
    x = torch.randn(1, 1, 28, 28)
    assert torch.equal(loaded(x), network(x))
    assert not torch.allclose(ca.load_model(path, into=network)(x), ca.create_model("p4cnn:group=C8,width=2").eval()(x))
    ca.save_model(loaded, path)
    assert network_name(ca.load_model(path)) == "p4cnn:filters=bicubic,group=C8,width=2"
    assert "filters" not in ca.create_model("p4cnn").config.options  # exact groups have nothing to choose


@pytest.mark.parametrize("name", ["p4cnn:group=C8,width=2", "a_p4cnn:group=C6,width=2,filters=steerable"])
def test_frozen_and_onnx_give_the_same_logits(name: str, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    network = settled(name)
    x = torch.randn(3, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(freeze(network)(x), network(x), rtol=1e-4, atol=1e-5)
    certificate = export_onnx(network, tmp_path / "m.onnx")
    assert certificate.parity < 1e-4
    checked = check_certificate(tmp_path / "m.onnx")
    assert checked is not None
    assert checked.agrees


def test_restricted_networks() -> None:
    whole = ca.create_model("p4cnn:group=C8,width=4,filters=steerable")
    some = ca.create_model("p4cnn:group=C8,width=4,filters=steerable,relative=0-1-7")
    layer = "stages.0.layer2.conv.weight"
    assert some.state_dict()[layer].shape == (4, 4, 3, 6)
    part = ca.models.restricted(whole, (0, 1, 7)).state_dict()[layer]
    assert torch.equal(part, whole.state_dict()[layer][:, :, [0, 1, 7]])


def test_networks_of_steerable_filters_are_nearer_to_equivariance() -> None:
    x = torch.randn(4, 1, 28, 28)
    worst = {}
    for filters in ("steerable", "bicubic"):
        torch.manual_seed(1)
        network = settled(f"p4cnn:group=C8,width=4,kernel=5,head=max,filters={filters}")
        errors = ca.equivariance_error(network, x, "C8")
        worst[filters] = max(error for g, error in errors.items() if g % 2)
        assert max(error for g, error in errors.items() if g % 2 == 0) < 1e-9
    assert worst["steerable"] < 0.7 * worst["bicubic"]  # pooling of 2 x 2 pixels is inexact with both
