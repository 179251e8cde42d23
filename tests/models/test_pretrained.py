"""What is shipped loads, is what its card says, and is equivariant."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.models import list_pretrained, network_name, pretrained
from coattend.models.pretrained import file_stem, pretrained_file
from coattend.train.entry import read_entries

SHIPPED = list_pretrained()
LEDGER = Path(__file__).parents[2] / "results" / "runs.jsonl"


def test_names_with_options_are_files_and_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pretrained, "WEIGHTS", tmp_path)
    (tmp_path / "mini").mkdir()
    for name in ("p4cnn", "a_p4cnn:attention=output", "a_p4cnn:attention=output,head=max"):
        ca.save_model(ca.create_model(name), tmp_path / "mini" / f"{file_stem(name)}.safetensors")
    assert list_pretrained("mini") == [
        ("a_p4cnn:attention=output", "mini"), ("a_p4cnn:attention=output,head=max", "mini"), ("p4cnn", "mini"),
    ]  # fmt: skip
    model = ca.create_model("a_p4cnn", head="max", attention="output", pretrained="mini")
    expected = ca.load_model(tmp_path / "mini" / "a_p4cnn+attention=output+head=max.safetensors")
    assert torch.equal(model.head.layer7.conv.weight, expected.head.layer7.conv.weight)
    # what the name stands for anyway need not be said, and may be
    assert torch.equal(
        ca.create_model("p4cnn:head=decycle,width=10", pretrained="mini").head.layer7.conv.weight,
        ca.load_model(tmp_path / "mini" / "p4cnn.safetensors").head.layer7.conv.weight,
    )
    backbone = ca.create_model("p4cnn", features_only=True, pretrained="mini")
    assert len(backbone(torch.randn(1, 1, 28, 28))) == 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("p4cnn", {"group": "C4"}),
        ("p4cnn", {"group": ca.cyclic(4)}),
        ("p4cnn:group=c4", {}),
        ("a_p4cnn", {"group": "p4", "attention": "slice"}),
        ("dren_maxpool", {"group": ca.cyclic(4, clockwise=True)}),
        ("p4cnn", {"pretrained": True}),
    ],
)
def test_the_same_network_in_other_words_finds_its_weights(name: str, options: dict) -> None:
    expected = ca.create_model(name.partition(":")[0], pretrained="rotated-mnist")
    model = ca.create_model(name, **{"pretrained": "rotated-mnist", **options})
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in expected.state_dict().items())
    assert model.image_shape == (1, 28, 28)


def test_other_classes_get_a_new_head_on_trained_stages() -> None:
    trained = ca.create_model("a_p4cnn", pretrained=True)
    tuned = ca.create_model("a_p4cnn", pretrained=True, num_classes=3)
    for key, tensor in trained.stages.state_dict().items():
        assert torch.equal(tensor, tuned.stages.state_dict()[key])
    assert tuned(torch.randn(2, 1, 28, 28)).shape == (2, 3)


def test_advice_is_only_what_can_be_done() -> None:
    for data in ("imagenet", 5):
        with pytest.raises(ValueError, match=f"trained on {data} come with the package; there are: ") as raised:
            ca.create_model("p4cnn", pretrained=data)
        assert "--data" not in str(raised.value)
    with pytest.raises(ValueError, match=r"no weights of p4cnn:group=.* of C4 trained on"):
        ca.create_model("p4cnn", group=ca.cyclic(4).restrict((0, 2)), pretrained="rotated-mnist")
    assert ca.create_model("p4cnn:width=2", pretrained=False).feature_channels == (2, 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("p4cnn", {"pretrained": "no-such-data"}, "no weights of p4cnn trained on no-such-data come with the package"),
        ("p4cnn:width=3", {"pretrained": "mini"}, "no weights of p4cnn:width=3 trained on mini"),
        ("a_p4cnn", {"pretrained": "mini", "structure": "full"}, "a_p4cnn:structure=full"),
    ],
)
def test_what_is_not_shipped_is_said(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.create_model(name, **options)


@pytest.mark.parametrize(("name", "data"), SHIPPED)
def test_shipped_networks_are_sound(name: str, data: str) -> None:
    path = pretrained_file(name, data)
    assert path.stat().st_size < 400_000
    model = ca.create_model(name, pretrained=data)
    size = ca.model_entry(name).image_size
    if ca.is_exact(model, size):
        ca.assert_equivariant(model, torch.randn(2, model.in_channels, size, size), model.group)
    card = path.with_suffix(".md").read_text()
    assert name in card
    assert data in card
    assert "seed" in card
    assert "| test error | percent |" in card


def recorded(name: str, data: str) -> tuple[str, int, str]:
    """The card of shipped weights, and the seed and recipe that it names."""
    card = pretrained_file(name, data).with_suffix(".md").read_text()
    recipe = re.search(r"Recipe: `(\S+)` of this library, seed (\d+)", card)
    assert recipe is not None
    return card, int(recipe[2]), recipe[1]


@pytest.mark.parametrize(("name", "data"), [shipped for shipped in SHIPPED if recorded(*shipped)[2] == "house"])
def test_of_several_seeds_the_one_with_the_fewest_validation_errors_is_shipped(name: str, data: str) -> None:
    card, seed, recipe = recorded(name, data)
    results = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    runs = {
        r["seed"]: r for r in results if (r["model"], r["recipe"], r["settings"], r["data"]) == (name, recipe, [], data)
    }
    shipped = runs[seed]
    assert shipped["valid_error"] == min(r["valid_error"] for r in runs.values())
    assert f"chosen on the validation images | {shipped['error']['valid']:.2f} |" in card
    assert f"after the last epoch | {shipped['error']['last']:.2f} |" in card


@pytest.mark.parametrize(("name", "data"), [shipped for shipped in SHIPPED if recorded(*shipped)[2] != "house"])
def test_others_are_rows_of_the_leaderboard(name: str, data: str) -> None:
    card, seed, recipe = recorded(name, data)
    rows = {
        (network_name(ca.create_model(kind.model)), kind.recipe_name, kind.data): entries
        for kind, entries in read_entries(LEDGER.parent / "leaderboard").items()
    }
    (entry,) = (e for e in rows[name, recipe, data] if e.record.result.seed == seed)
    assert f"after the last epoch | {entry.record.result.error.last:.2f} |" in card
    assert f"turned copies of each image | {entry.turned_error:.2f} |" in card
