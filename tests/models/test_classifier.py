"""Trained networks: pixels to predictions, and the header of their files, whole and damaged."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import coattend as ca
from coattend.data import load_data, make_preprocessing
from coattend.models import container, read_model_file, serialization
from coattend.models.classifier import Classifier, load_trained
from coattend.models.pretrained import pretrained_file
from coattend.models.records import read_header_recipe
from coattend.train import Recipe, RunError
from coattend.train.batches import prepare
from coattend.train.training import save_weights


@pytest.fixture
def file(tmp_path: Path) -> Path:
    recipe = Recipe("quick", train_images=4, valid_images=2, test_images=2)
    data = load_data("mini")
    network = ca.create_model("p4cnn:width=1").float()
    preprocessing = prepare(data, recipe, torch.device("cpu")).preprocessing
    save_weights(tmp_path / "last.safetensors", network, preprocessing, recipe, data)
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
        ({"image_shape": "[1, 28]"}, r"gives '\[1, 28\]' as image_shape"),
        ({"image_shape": "[1, 0, 28]"}, "image_shape must be three whole numbers from 1"),
        ({"image_shape": "[3, 28, 28]"}, "image_shape has 3 channels, the network takes 1"),
        ({"classes": None}, "classes is missing"),
        ({"classes": "[1, 2]"}, "classes must be a list of texts"),
        ({"classes": '["a", "b"]'}, "2 classes for a network that distinguishes 10"),
        ({"preprocessing": "nonsense"}, "Expecting value"),
        ({"preprocessing": "[" * 100_000}, "recursion"),
        ({"preprocessing": '{"steps": ["shake"], "clip": null}'}, "shake"),
        (
            {"preprocessing": '{"steps": [], "clip": null}'},
            r"steps \(\) need \[\], got \['0.scalar.mean', '0.scalar.std'\]",
        ),
        ({"recipe": '{"fit": 3}'}, "recipe.fit must be a text"),
        ({"fit": "stretch"}, "fit is 'stretch' instead of resize or crop"),
    ],
)
def test_a_damaged_header_is_named(file: Path, changes: dict[str, str | None], reason: str) -> None:
    edit(file, **changes)
    with pytest.raises(ValueError, match=reason) as error:
        load_trained(file)
    assert str(file) in str(error.value)


def test_the_recipe_of_a_file_is_checked(file: Path) -> None:
    trained = load_trained(file)
    assert trained.dataset == "mini"
    assert read_header_recipe(file, trained.metadata)["data"] == "mini"
    edit(file, recipe=json.dumps({"name": "x"}))
    assert load_trained(file).dataset is None
    with pytest.raises(RunError, match="recipe.data is missing"):
        read_header_recipe(file, load_trained(file).metadata)
    edit(file, recipe=None)
    assert load_trained(file).dataset is None
    with pytest.raises(RunError, match="recipe is missing"):
        read_header_recipe(file, load_trained(file).metadata)
    edit(file, recipe=json.dumps({"data": 3}))
    with pytest.raises(RunError, match=r"recipe.data must be a text, got '3'"):
        load_trained(file)


def test_pixels_to_logits_and_predictions() -> None:
    classifier = load_trained(pretrained_file("a_p4cnn", "rotated-mnist"))  # written by an earlier version
    images = load_data("mini").test.images[:6]
    logits = classifier.network.eval()(classifier.preprocessing(images))
    assert torch.equal(classifier(images), logits)
    assert torch.equal(classifier(images.float()), logits)
    predictions = classifier.train().predict(images)
    assert [p.label for p in predictions] == [classifier.classes[i] for i in logits.argmax(1).tolist()]
    assert classifier.network.training
    rotated = classifier.predict(images.rot90(1, (-2, -1)))
    group = classifier.network.group
    turned = {group.describe(g): group.describe(int(group.product[1, g])) for g in group.elements}
    assert [p.pose for p in rotated] == [turned[p.pose] for p in predictions]
    doubled = copy.deepcopy(classifier).double()
    assert doubled(images).dtype == torch.float64


def test_predict_respects_hooks_and_an_overridden_forward() -> None:
    classifier = load_trained(pretrained_file("p4cnn", "rotated-mnist"))
    images = load_data("mini").test.images[:4]
    label = classifier.predict(images)[0].label
    with classifier.network.register_forward_hook(lambda _, __, logits: -logits):
        assert classifier.predict(images)[0].label != label
    network = classifier.network
    network.forward = lambda x: -network.forward_head(network.forward_features(x))  # type: ignore[method-assign]
    assert classifier.predict(images)[0].label != label


def test_a_saved_classifier_is_loaded_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(256, (20, 3, 16, 16), dtype=torch.uint8)
    network = ca.create_model("p4_allcnn:width=2,num_classes=2").float()
    preprocessing = make_preprocessing(["gcn55", "zca0.1", "clip99"], clip=3).fit(images)
    saved = Classifier(network, preprocessing, ("cat", "dog"), (3, 16, 16), "here", "crop", {"recipe": '{"data": "x"}'})
    saved.save(tmp_path / "c.safetensors")
    reads: list[Path] = []

    def read_tensors(path: Path, metadata: dict[str, str]) -> dict[str, torch.Tensor]:
        reads.append(path)
        return container.read_tensors(path, metadata)

    monkeypatch.setattr(serialization, "read_tensors", read_tensors)
    loaded = load_trained(tmp_path / "c.safetensors")
    assert len(reads) == 1
    assert torch.equal(loaded.eval()(images), saved.eval()(images))
    for name in ("classes", "image_shape", "provenance", "fit", "metadata"):
        assert getattr(loaded, name) == getattr(saved, name)
    _, _, extra = read_model_file(tmp_path / "c.safetensors")  # the names that earlier versions read
    assert sorted(extra) == ["1.zca0.1.matrix", "1.zca0.1.mean", "2.clip99.bound"]


def test_wrong_use_is_told(tmp_path: Path) -> None:
    network = ca.create_model("p4cnn:width=1").float()
    classifier = Classifier(network, make_preprocessing(["scalar"]), "0123456789", (1, 28, 28))
    for call in (lambda: classifier.save(tmp_path / "c.safetensors"), lambda: classifier(torch.zeros(1, 1, 28, 28))):
        with pytest.raises(ValueError, match=r"Preprocessing is not fitted; call fit\(train_images\)"):
            call()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="from 0 to 255, got ndarray; pass Split.images"):
        classifier.predict(np.zeros((1, 1, 28, 28)))  # type: ignore[arg-type]


def test_a_classifier_is_exported_in_one_piece() -> None:
    classifier = load_trained(pretrained_file("a_p4cnn", "rotated-mnist")).eval()
    images = load_data("mini").test.images[:4]
    program = torch.export.export(classifier, (images,))
    assert torch.allclose(program.module()(images), classifier(images), atol=1e-5)
