from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import coattend as ca
from coattend import train
from coattend.models.paper import TABLE_1
from coattend.train import PAPER, Recipe, changed, get_recipe, recipes


def test_fields_change_by_name_and_the_name_tells() -> None:
    recipe = changed(
        get_recipe("house", "p4cnn"),
        [
            "epochs=3",
            "lr=0.5",
            "clip=2.3",
            "augmentation=rotate=180,flips",
            "decay_attention=true",
            "clip_gradients=none",
        ],
    )
    assert (recipe.epochs, recipe.lr, recipe.clip) == (3, 0.5, 2.3)
    assert (recipe.augmentation, recipe.decay_attention, recipe.clip_gradients) == (("rotate=180", "flips"), True, None)
    assert recipe.full_name.startswith("house+augmentation=rotate=180,flips+clip=2.3")
    assert Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epoch=3", r"no field 'epoch' \(did you mean epochs"),
        ("epochs", "--set expects field=value, got 'epochs'"),
        ("epochs=many", "epochs must be a whole number, got 'many'"),
        ("epochs=0", "epochs must be at least 1"),
        ("lr=fast", "lr must be a number"),
        ("decay_attention=yes", "decay_attention must be true or false"),
        ("optimizer=adagrad", "optimizer must be one of adam, adamw, sgd, nesterov, got 'adagrad'"),
        ("precision=8", "precision must be one of"),
        ("milestones=40,80", "milestones are fractions"),
        ("name=x", "no field 'name'"),
    ],
)
def test_mistakes_are_answered(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(get_recipe("quick", "p4cnn"), [setting])


def test_there_is_a_paper_recipe_for_every_row() -> None:
    assert list(PAPER) == list(TABLE_1)
    for name, recipe in PAPER.items():
        assert recipe.data == ca.model_entry(name).dataset
    # An attentive network is trained exactly like its conventional counterpart.
    for name in ca.list_models("a_*"):
        assert PAPER[name] == PAPER[name.removeprefix("a_")]
    assert get_recipe("paper", "z2cnn").epochs == 300
    with pytest.raises(ValueError, match=r"unknown recipe 'hose' \(did you mean house\?\)"):
        get_recipe("hose", "p4cnn")


def test_schedules() -> None:
    steps = PAPER["p4_allcnn"]
    factors = [steps.learning_rate_factor(epoch, 350) for epoch in (0, 199, 200, 250, 300, 349)]
    assert factors == pytest.approx([1, 1, 0.1, 0.01, 0.001, 0.001])
    cycle = get_recipe("house", "p4cnn")
    curve = [cycle.learning_rate_factor(step, 1000) for step in range(1000)]
    assert max(curve) == pytest.approx(1, abs=1e-3)
    assert curve.index(max(curve)) == pytest.approx(200, abs=1)
    assert curve[0] == pytest.approx(0.04)
    assert curve[-1] < 1e-4
    assert PAPER["p4cnn"].learning_rate_factor(99, 100) == 1


def test_size_and_fit_are_fields_of_the_recipe() -> None:
    recipe = changed(get_recipe("house", "p4cnn"), ["size=48", "fit=crop"])
    assert (recipe.size, recipe.fit) == (48, "crop")
    with pytest.raises(ValueError, match="size is a number of pixels, at least 1, got 0"):
        changed(recipe, ["size=0"])
    with pytest.raises(ValueError, match="fit must be one of resize, crop, got 'stretch'"):
        changed(recipe, ["fit=stretch"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("clip_gradients=-1", "clip_gradients must be above 0, got -1"),
        ("clip_gradients=0", "clip_gradients must be above 0"),
        ("label_smoothing=-1", "label_smoothing must be from 0 to below 1, got -1"),
        ("label_smoothing=2", "label_smoothing must be from 0 to below 1"),
        ("train_images=-5", "train_images must be at least 1, got -5"),
        ("test_images=0", "test_images must be at least 1"),
        ("valid_images=0", "valid_images must be at least 1"),
        ("momentum=5", "momentum must be from 0 to below 1"),
        ("lr=-1", "lr must be above 0 and at most 1e9, got -1"),
        ("lr=nan", "lr must be a finite number, got nan"),
        ("lr=inf", "lr must be a finite number"),
        ("bias_lr=nan", "bias_lr must be a finite number"),
        ("head_lr=-1", "head_lr must be from 0 to 1e9"),
        ("weight_decay=-1", "weight_decay must be from 0 to 1e9"),
        ("warmup=2", "warmup must be from 0 to below 1"),
        ("gamma=nan", "gamma must be a finite number"),
        ("gamma=0", "gamma must be above 0"),
        ("eps=-1", "eps must be above 0"),
        ("clip=0", "clip must be above 0"),
        ("explode=-1", "explode must be above 0"),
        ("test_every=-1", "test_every must be at least 0"),
        ("milestones=0.5,nan", "milestones must be a tuple, each item a finite number"),
    ],
)
def test_values_out_of_range_are_answered(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(get_recipe("quick", "p4cnn"), [setting])


@pytest.mark.parametrize(
    "field",
    [{"epochs": "3"}, {"epochs": 1.5}, {"batch": True}, {"lr": "fast"}, {"data": None}, {"augmentation": "flips"}],
)
def test_values_of_another_kind_are_answered(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(field))} must be"):
        Recipe("own", **field)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValueError, match="momentum must be above 0 for the optimizer nesterov"):
        Recipe("own", optimizer="nesterov", momentum=0.0)


def test_settings_are_kept_as_data_and_the_last_of_a_field_counts() -> None:
    recipe = changed(changed(get_recipe("house", "p4cnn"), ["lr=0.5", "train_on=train+valid"]), ["lr=0.1"])
    assert (recipe.lr, recipe.settings) == (0.1, ("lr=0.1", "train_on=train+valid"))
    assert recipe.full_name == "house+lr=0.1+train_on=train+valid"


def test_quick_and_house_need_no_model() -> None:
    assert get_recipe("quick") == get_recipe("quick", "p4cnn")
    assert get_recipe("house", data="mini").data == "mini"
    with pytest.raises(ValueError, match="every network has its own recipe called paper; pass the model's name too"):
        get_recipe("paper")


def test_a_network_may_bring_fields_and_need_not_be_in_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="mine", recipe=("lr=0.5", "epochs=7"))
    monkeypatch.setattr(recipes, "model_entry", lambda model: entry)
    recipe = get_recipe("quick", "mine")
    assert (recipe.lr, recipe.epochs) == (0.5, 7)
    assert (recipe.name, recipe.settings) == ("quick", ())  # the same command gives them again
    assert changed(recipe, ["epochs=2"]).settings == ("epochs=2",)
    assert get_recipe("quick").epochs != 7
    with pytest.raises(ValueError, match="mine is not in Table 1 of the paper, so it has no paper recipe; use quick"):
        get_recipe("paper", "mine")


def test_every_public_name_is_found_and_typed() -> None:
    tree = ast.parse(Path(train.__file__).read_text())
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed - {None} == set(dir(train))
    for name in dir(train):
        assert getattr(train, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = train.tarin
