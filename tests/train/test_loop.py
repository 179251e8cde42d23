from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import coattend as ca
from coattend.data import load_data
from coattend.models.paper import TABLE_1
from coattend.nn import CoAttention
from coattend.train import PAPER, RunError, RunFolder, load_trained, train
from coattend.train.batches import Examples, prepare, shuffled_batches
from coattend.train.optimizer import make_optimizer, parameter_groups
from coattend.train.step import largest_activation
from tests.train.conftest import tiny

MODEL = "a_p4cnn:width=2,attention=output"


def test_a_run_leaves_everything_behind(tmp_path: Path) -> None:
    recipe = tiny(test_every=1)
    result = train(MODEL, recipe, 3, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, recipe, 3)
    assert {p.name for p in folder.path.iterdir()} == {
        "run.json", "result.json", "metrics.jsonl", "best.safetensors", "last.safetensors", "predictions.npz",
        "predictions.csv", "scores.json", "worst.png", "tensorboard", "lock",
    }  # fmt: skip
    run = folder.run
    assert (run.model, run.seed, run.recipe) == (MODEL, 3, recipe)
    assert run.provenance.startswith("generated from MNIST")
    assert run.versions["torch"] == torch.__version__
    assert torch.backends.cpu.get_cpu_capability() in run.arithmetic
    assert f"{torch.get_num_threads()} threads" in run.arithmetic
    history = folder.history()
    assert [epoch.epoch for epoch in history] == [0, 1]
    assert set(history[0].to_dict()) == {
        "epoch", "lr", "train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "test_accuracy",
        "equivariance_error", "seconds", "images_per_second", "time",
    }  # fmt: skip
    assert history[-1].equivariance_error < 1e-5
    assert result == folder.result
    with np.load(folder.path / "predictions.npz") as arrays:
        assert 100 * np.mean(arrays["last"] != arrays["labels"]) == pytest.approx(result.error.last)
        assert 100 * np.mean(arrays["valid"] != arrays["labels"]) == pytest.approx(result.error.valid)
    best_seen = max(epoch.test_accuracy for epoch in history)
    assert result.error.test_optimistic == pytest.approx(100 * (1 - best_seen))


def test_splits_are_cut_from_their_beginning_as_the_recipe_says() -> None:
    data = load_data("mini")
    cut = prepare(data, tiny(train_images=30, valid_images=20, test_images=10), torch.device("cpu"))
    assert (len(cut.train), len(cut.valid), len(cut.test)) == (30, 20, 10)
    assert torch.equal(cut.valid.labels, data.valid.labels[:20])
    whole = prepare(data, tiny(train_images=None, valid_images=None, test_images=None), torch.device("cpu"))
    assert (len(whole.train), len(whole.valid), len(whole.test)) == (2_000, 500, 2_000)
    joint = prepare(data, tiny(train_on="train+valid", train_images=None, valid_images=20), torch.device("cpu"))
    assert (len(joint.train), len(joint.valid)) == (2_500, 0)


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    first = train(MODEL, tiny(), 0, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, tiny(), 0)
    before = {p: p.stat().st_mtime_ns for p in folder.path.rglob("*")}
    assert train(MODEL, tiny(), 0, tmp_path) == replace(first, was_finished=True)
    assert {p: p.stat().st_mtime_ns for p in folder.path.rglob("*")} == before


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path: Path) -> None:
    weights = []
    for root, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(MODEL, tiny(), seed, tmp_path / root)
        weights.append(load_file(RunFolder.of(tmp_path / root, MODEL, tiny(), seed).last_weights))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_it_learns(tmp_path: Path) -> None:
    recipe = tiny(train_images=8, epochs=40, batch=8, augmentation=(), weight_decay=0.0, equivariance_every=0)
    train("p4cnn:width=4", recipe, 0, tmp_path)
    history = RunFolder.of(tmp_path, "p4cnn:width=4", recipe, 0).history()
    assert history[-1].train_accuracy == 1
    assert history[-1].train_loss < 0.05


def test_the_epoch_is_chosen_on_validation_and_can_be_used_alone(tmp_path: Path) -> None:
    recipe = tiny(epochs=4)
    result = train(MODEL, recipe, 0, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, recipe, 0)
    accuracies = [epoch.valid_accuracy for epoch in folder.history()]
    assert accuracies[result.valid_epoch] == max(accuracies)
    trained = load_trained(folder.path)
    data = load_data("mini")
    predictions = trained.predict(data.test.images[:40])
    wrong = sum(
        p.label != data.classes[int(label)] for p, label in zip(predictions, data.test.labels[:40], strict=True)
    )
    assert 100 * wrong / 40 == pytest.approx(result.error.valid)
    with torch.no_grad():
        logits = trained.network.eval()(trained.preprocessing(data.test.images[:40]))
    assert [p.confidence for p in predictions] == pytest.approx(logits.softmax(1).amax(1).tolist(), rel=1e-5)


def test_the_dominant_pose_turns_with_the_image(tmp_path: Path) -> None:
    recipe = tiny()
    train(MODEL, recipe, 0, tmp_path)
    trained = load_trained(RunFolder.of(tmp_path, MODEL, recipe, 0).path)
    images = load_data("mini").test.images[:20]
    straight = trained.predict(images)
    turned = trained.predict(torch.rot90(images, 1, (-2, -1)))
    degrees = {"identity": 0, "turn 90°": 90, "turn 180°": 180, "turn 270°": 270}
    for a, b in zip(straight, turned, strict=True):
        assert (degrees[b.pose] - degrees[a.pose]) % 360 == 90
        assert b.label == a.label


def test_training_on_the_validation_split_reports_the_last_epoch(tmp_path: Path) -> None:
    recipe = tiny(train_on="train+valid", reestimate_norms=True)
    result = train("p4cnn:width=2", recipe, 0, tmp_path)
    assert result.error.valid is None
    assert not RunFolder.of(tmp_path, "p4cnn:width=2", recipe, 0).best_weights.exists()


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train(MODEL, tiny(), 0, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, tiny(), 0)
    (folder.path / "result.json").unlink()
    with pytest.raises(RunError, match=r"holds another run: recipe.lr differ; choose another --folder"):
        train(MODEL, tiny(lr=0.5), 0, tmp_path)


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, MODEL, tiny(), 0)
    with folder.lock(), pytest.raises(RunError, match="in use by another process"):
        RunFolder(folder.path).lock()


def test_divergence_names_step_layer_and_remedy(tmp_path: Path) -> None:
    recipe = tiny(lr=1e4, optimizer="sgd", epochs=6, schedule="constant", explode=20.0)
    with pytest.raises(
        RunError, match=r"diverged: the loss is .* at step \d+ .*largest activation is .*, in .*clip=2.3"
    ):
        train("p4cnn:width=2", recipe, 0, tmp_path)
    folder = RunFolder.of(tmp_path, "p4cnn:width=2", recipe, 0)
    assert folder.result is None


def test_the_largest_activation_is_found() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    with torch.no_grad():
        model[2].weight.mul_(1000)
    assert largest_activation(model, torch.randn(3, 4))[0] == "2"
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    assert largest_activation(model, torch.randn(3, 4)) == ("0", math.inf)


def test_parameter_groups_follow_the_recipe() -> None:
    model = ca.create_model("a_p4cnn:attention=output")
    recipe = replace(PAPER["nin"], attention_lr=5.0, decay_attention=False)
    groups = parameter_groups(model, recipe)
    assert sum(p.numel() for g in groups for p in g["params"]) == 20_160
    where = {id(p): g for g in groups for p in g["params"]}
    attention = next(m for m in model.stages.modules() if isinstance(m, CoAttention)).weight
    layer = model.stages[0].layer1
    assert (where[id(attention)]["lr"], where[id(attention)]["weight_decay"]) == (0.05, 0)
    assert (where[id(layer.conv.weight)]["lr"], where[id(layer.conv.weight)]["weight_decay"]) == (0.01, 1e-4)
    assert (where[id(layer.conv.bias)]["lr"], where[id(layer.conv.bias)]["weight_decay"]) == (0.02, 0)
    assert where[id(layer.norm.weight)]["weight_decay"] == 0
    assert where[id(model.head.layer7.conv.weight)]["lr"] == pytest.approx(0.001)
    for kind, expected in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        assert type(make_optimizer(model, replace(recipe, optimizer=kind))) is expected
    assert make_optimizer(model, recipe).defaults["nesterov"]


def test_processes_see_together_what_one_would_see_alone() -> None:
    examples = Examples(torch.arange(103).float()[:, None], torch.arange(103))
    alone = list(shuffled_batches(examples, 20, 1, 2, 0, 1))
    shares = [list(shuffled_batches(examples, 20, 1, 2, rank, 3)) for rank in range(3)]
    assert [len(labels) for _, labels, _ in alone] == [20] * 5 + [3]
    for number, (_, labels, joint) in enumerate(alone):
        assert torch.equal(torch.cat([share[number][1] for share in shares]), labels)
        assert joint == len(labels)
    assert not torch.equal(alone[0][1], next(shuffled_batches(examples, 20, 1, 3, 0, 1))[1])


def test_preprocessing_is_fitted_on_the_training_part_only() -> None:
    recipe = tiny(train_images=50)
    data = load_data("mini")
    prepared = prepare(data, recipe, torch.device("cpu"))
    images = data.train.images[:50].double()
    mean, std = images.mean(), images.std(correction=0)
    expected = (data.test.images[:40].double() - mean) / std
    torch.testing.assert_close(prepared.test.images, expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TABLE_1)
def test_every_paper_recipe_runs_end_to_end(name: str, tmp_path: Path, small_colour_images: Path) -> None:
    """Shortened: few images, one epoch, narrow network; preprocessing, optimiser, schedule and protocol as they are."""
    paper = PAPER[name]
    data = "mini" if paper.data == "rotated-mnist" else str(small_colour_images)
    preprocessing = tuple("gcn" if step == "zca" else step for step in paper.preprocessing)
    recipe = replace(paper, data=data, epochs=1, batch=16, train_images=32, test_images=20, preprocessing=preprocessing)
    model = f"{name}:width=4" + (",blocks=1" if "resnet" in name else "")
    result = train(model, recipe, 0, tmp_path)
    folder = RunFolder.of(tmp_path, model, recipe, 0)
    with np.load(folder.path / "predictions.npz") as arrays:
        assert result.error.last == pytest.approx(100 * np.mean(arrays["last"] != arrays["labels"]))
    assert math.isfinite(folder.history()[0].train_loss)


def test_a_users_own_images_and_another_number_of_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "cells.npz"
    np.savez(path, images=rng.integers(0, 255, (60, 28, 28), dtype=np.uint8), labels=np.arange(60) % 3)
    recipe = tiny(data=str(path))
    result = train("a_p4cnn:width=2", recipe, 0, tmp_path / "runs")
    assert result.provenance.startswith("own images cells.npz")
    metadata = json.loads(
        ca.models.read_model_file(RunFolder.of(tmp_path / "runs", "a_p4cnn:width=2", recipe, 0).last_weights)[0][
            "classes"
        ]
    )
    assert len(metadata) == 3


def test_training_says_first_whether_the_network_is_exact_on_these_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """28 pixels are even, which strides of 2 do not divide."""
    train("p4_allcnn:width=2", tiny(epochs=1), 0, tmp_path)
    printed = capsys.readouterr().out
    advice = "use images of 25 x 25 or 29 x 29 pixels, or p4_allcnn:downsample=pool"
    assert f"p4_allcnn is NOT exactly equivariant to C4 on images of 28 x 28: {advice}" in printed
    train(MODEL, tiny(epochs=1), 0, tmp_path)
    assert "a_p4cnn is exactly equivariant to C4 on images of 28 x 28" in capsys.readouterr().out


def test_every_norm_and_attention_has_its_own_settings() -> None:
    changes = {"attention_lr": 5.0, "weight_decay": 0.1, "decay_attention": False, "decay_norms_and_biases": False}
    recipe = replace(PAPER["nin"], **changes)
    norms = projections = 0
    for name in ("e4cnn:width=4", "coat_vit:width=8,depth=1,token_heads=2,mlp=2"):
        model = ca.create_model(name)
        where = {id(p): g for g in parameter_groups(model, recipe) for p in g["params"]}
        for key, parameter in model.named_parameters():
            if key.endswith(("norm.weight", "norm1.weight", "norm2.weight")):
                assert where[id(parameter)]["weight_decay"] == 0, key
                norms += 1
            if key.endswith("qkv.weight"):
                assert where[id(parameter)]["lr"] == 5 * recipe.lr
                projections += 1
    assert (norms > 10, projections) == (True, 1)
