"""What training wrote into the header of a model file, damaged: one sentence with the file's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import coattend as ca
from coattend.data import load_data
from coattend.models.classifier import recipe_of
from coattend.train import Recipe, RunError, load_trained
from coattend.train.batches import prepare
from coattend.train.outcome import save_trained


@pytest.fixture
def file(tmp_path: Path) -> Path:
    recipe = Recipe("quick", train_images=4, valid_images=2, test_images=2)
    data = load_data("mini")
    network = ca.create_model("p4cnn:width=1").float()
    save_trained(
        network, tmp_path / "last.safetensors", prepare(data, recipe, torch.device("cpu")).preprocessing, recipe, data
    )
    return tmp_path / "last.safetensors"


def edit(file: Path, **changes: str | None) -> None:
    with safe_open(file, framework="pt") as content:
        metadata = {**content.metadata(), **changes, "digest": None}
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a dict)
    save_file(tensors, file, {key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image_shape": None}, "image_shape is missing"),
        ({"image_shape": "[1, 28]"}, "image_shape is to be three whole numbers from 1"),
        ({"image_shape": "[3, 28, 28]"}, "image_shape has 3 channels, the network takes 1"),
        ({"classes": None}, "classes is missing"),
        ({"classes": "[1, 2]"}, "classes is to be a list of texts"),
        ({"classes": '["a", "b"]'}, "2 classes for a network that tells 10 apart"),
        ({"preprocessing": "nonsense"}, "Expecting value"),
        ({"preprocessing": "[" * 100_000}, "recursion"),
        ({"preprocessing": '{"steps": ["shake"], "clip": null}'}, "shake"),
        ({"preprocessing": '{"steps": [], "clip": null}'}, "expects the state"),
        ({"recipe": '{"fit": 3}'}, "recipe.fit is to be a text"),
    ],
)
def test_a_damaged_header_is_named(file: Path, changes: dict[str, str | None], reason: str) -> None:
    edit(file, **changes)
    with pytest.raises(RunError, match=reason) as error:
        load_trained(file)
    assert str(file) in str(error.value)


def test_the_recipe_of_a_file_is_checked(file: Path) -> None:
    assert recipe_of(file)["data"] == "mini"
    for recipe, reason in ((None, "recipe is missing"), (json.dumps({"name": "x"}), "recipe.data is missing")):
        edit(file, recipe=recipe)
        with pytest.raises(RunError, match=reason):
            recipe_of(file)
