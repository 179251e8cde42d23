"""Studies that continue: what is computed is kept, and the rest is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from experiments.rows import continued, read_rows
from experiments.small_data_study import BASE, MODELS, Options, Result, main, recipe_for, table

import coattend as ca
from experiments import augmentation_study, nuclei_study, small_data_study, upright_study


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Square:
    number: int
    value: int


def test_a_study_continues_where_it_was_stopped(tmp_path: Path) -> None:
    path, computed = tmp_path / "squares.jsonl", []

    def compute(number: int) -> Square:
        if number == 3 and len(computed) < 3:
            raise KeyboardInterrupt
        computed.append(number)
        return Square(number, number**2)

    def run() -> list[Square]:
        return continued(path, Square, range(1, 5), lambda row: row.number, compute)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert [row.number for row in read_rows(path, Square)] == [1, 2]
    computed.append(0)
    assert [row.value for row in run()] == [1, 4, 9, 16]
    assert computed == [1, 2, 0, 3, 4]


def test_every_training_has_the_same_number_of_steps() -> None:
    for images in (100, 500, 1000, 5000):
        recipe = recipe_for(Options(steps=400), BASE, images)
        steps = recipe.epochs * -(-images // recipe.batch)
        assert 400 <= steps < 400 + -(-images // recipe.batch)
        assert (recipe.train_images, recipe.name, recipe.train_on) == (images, "strong", "train+valid")


def test_differences_are_paired_over_seeds() -> None:
    errors = {BASE: (5.0, 5.2, 5.4, 9.9), "z2cnn": (6.0, 6.1, 6.5)}
    results = [Result(m, n, 500, "strong", "mini", e) for m, values in errors.items() for n, e in enumerate(values)]
    results.append(Result(BASE, 0, 1000, "strong", "mini", 3.0))
    lines = table(results).splitlines()
    assert lines[0] == "| network | 500 images | 1,000 images |"
    assert lines[2] == f"| {BASE} | 6.38 | 3.00 |"
    # By hand: differences 1.0, 0.9, 1.1, deviation 0.1, Student's t with 2 degrees 4.303.
    assert lines[3] == "| z2cnn | 6.20 (+1.00 [+0.75, +1.25] worse) |  |"


def test_the_study_of_small_data_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small networks on 32 images of mini, then a second time with nothing to train."""
    monkeypatch.setattr(small_data_study, "MODELS", (BASE, "z2cnn"))
    options = Options(
        data="mini",
        seeds=(0,),
        images=(32,),
        steps=1,
        folder=tmp_path / "runs",
        results=tmp_path / "results.jsonl",
        picture=tmp_path / "picture",
        settings=("test_images=64",),
    )
    main(options)
    results = read_rows(options.results, Result)
    assert [result.model for result in results] == [BASE, "z2cnn"]
    assert (tmp_path / "picture.png").is_file()
    monkeypatch.setattr(small_data_study, "train", None)
    main(options)
    assert read_rows(options.results, Result) == results


def test_the_study_of_augmentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks on half and all of 80 random images in two classes, then a second time."""
    generator = np.random.default_rng(0)
    plankton = {"images": generator.integers(0, 256, (80, 16, 16), np.uint8), "labels": np.arange(80) % 2}
    np.savez(tmp_path / "plankton48.npz", **plankton, classes=np.array(["a", "b"]))
    options = augmentation_study.Options(
        plankton=tmp_path / "plankton48.npz",
        data=("plankton",),
        seeds=(0, 1),
        shares=(0.5, 1.0),
        networks=("plain", "p4"),
        steps=1,
        folder=tmp_path / "runs",
        results=tmp_path / "results.jsonl",
        picture=tmp_path / "picture",
        settings=("batch=16",),
    )
    augmentation_study.main(options)
    with np.load(tmp_path / "runs" / "prepared" / "plankton.npz") as parts:
        assert [len(parts[f"{part}_labels"]) for part in ("train", "val", "test")] == [56, 8, 16]
        images = np.concatenate([parts[f"{part}_images"] for part in ("train", "val", "test")])
    assert sorted(map(bytes, images)) == sorted(map(bytes, 255 - plankton["images"]))
    results = read_rows(options.results, augmentation_study.Result)
    assert [(r.network, r.images, r.seed) for r in results[:4]] == [
        (n, i, 0) for i in (28, 56) for n in options.networks
    ]
    assert (
        augmentation_study.table("plankton", results).splitlines()[0]
        == "| plankton | parameters | 28 images | 56 images |"
    )
    monkeypatch.setattr(augmentation_study, "train", None)
    augmentation_study.main(options)
    assert read_rows(options.results, augmentation_study.Result) == results


def test_networks_of_the_study_of_augmentation_are_equivariant_and_of_one_size() -> None:
    sizes = []
    for options in augmentation_study.NETWORKS.values():
        model = ca.create_model(f"experiments.augmentation_study:network:{options}", num_classes=121, in_channels=1)
        sizes.append(sum(p.numel() for p in model.parameters()))
        if model.group.is_exact:
            errors = ca.equivariance_error(model.double().eval(), torch.randn(2, 1, 16, 16).double(), model.group)
            assert max(errors.values()) < 1e-12
    assert max(sizes) < 1.15 * min(sizes)


def test_the_study_of_upright_digits_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ("p4cnn:width=2", "a_p4cnn:width=2,attention=output")
    monkeypatch.setattr(upright_study, "PAIRS", {"p4": pair})
    monkeypatch.setattr(upright_study, "MODELS", pair)
    monkeypatch.setattr(upright_study, "ROTATED", 16)
    options = upright_study.Options(
        data="mini",
        seeds=(0,),
        folder=tmp_path / "runs",
        results=tmp_path / "results.jsonl",
        picture=tmp_path / "picture",
        settings=("epochs=1", "train_images=64", "test_images=16", "valid_images=16"),
    )
    upright_study.main(options)
    results = read_rows(options.results, upright_study.Result)
    assert [result.model for result in results] == list(pair)
    assert all(len(result.error_by_angle) == 72 for result in results)
    monkeypatch.setattr(upright_study, "train", None)
    upright_study.main(options)


class Bright(torch.nn.Module):
    """Calls a pixel a nucleus if it, or its neighbour at a distance, is above 0.5."""

    def __init__(self, distance: int) -> None:
        super().__init__()
        self.distance = distance

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = F.pad(x, (self.distance, 0, 0, 0))[..., : x.shape[-1]]
        return torch.cat([torch.full_like(x, 0.5), torch.maximum(x, moved)], dim=1)


def test_dice_and_consistency_of_masks() -> None:
    images = torch.zeros(1, 1, 4, 4)
    images[0, 0, 1, 1] = 1.0
    masks = torch.zeros(1, 4, 4, dtype=torch.uint8)
    masks[0, 1, 1:3] = 1
    # By hand: one of two pixels found; its right neighbour is found in the poses that keep right on the right.
    assert nuclei_study.measured(Bright(0), images, masks) == pytest.approx((100 * 2 / 3, 100))
    assert nuclei_study.measured(Bright(1), images, masks) == pytest.approx((100, 100 * 12 / 16))


def test_the_study_of_nuclei_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.zeros((20, 16, 16), np.uint16)
    labels[:, 4:9, 5:12] = 7
    images = np.repeat((labels[..., None] > 0) * np.uint8(200), 3, axis=-1)
    np.savez(tmp_path / "nuclei.npz", images=images, labels=labels)
    options = nuclei_study.Options(
        data=tmp_path / "nuclei.npz",
        seeds=(0, 1),
        shares=(50,),
        epochs=(1,),
        width=4,
        folder=tmp_path / "runs",
        results=tmp_path / "results.jsonl",
        settings=("precision=32-true",),
    )
    nuclei_study.main(options)
    results = read_rows(options.results, nuclei_study.Result)
    assert [(result.seed, result.network) for result in results] == [(0, "plain"), (0, "p4m"), (1, "plain"), (1, "p4m")]
    assert all(result.consistency == 100 for result in results if result.network == "p4m")
    monkeypatch.setattr(nuclei_study, "train", None)
    nuclei_study.main(options)


def test_models_of_the_studies_exist() -> None:
    for model in (*MODELS, *upright_study.MODELS, *nuclei_study.NETWORKS.values()):
        ca.model_entry(model)
