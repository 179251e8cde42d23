"""Evaluating and predicting, with networks that were not trained: only their answers count here."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.cli import main
from coattend.data import DataError, Dataset, Split, load_data, make_preprocessing, rotated_mnist
from coattend.data.fitting import Fit
from coattend.data.store import save_dataset
from coattend.models.classifier import Classifier
from coattend.models.pretrained import pretrained_file
from coattend.report.lines import evaluation_lines
from coattend.train import RunError, load_trained
from coattend.train.evaluate import evaluate_classifier as evaluated

Image = pytest.importorskip("PIL.Image")
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_images(folder: Path, classes: tuple[str, ...] = CLASSES, count: int = 4, side: int = 28) -> Path:
    for label, name in enumerate(classes):
        for i in range(count):
            path = folder / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.RandomState(100 * CLASSES.index(name) if name in CLASSES else label + i)
            Image.fromarray(pixels.randint(0, 256, (side, side)).astype(np.uint8)).save(path)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A file as training writes it, for three classes of grey images in the folder own."""
    return saved(tmp_path)


def saved(tmp_path: Path, fit: Fit = "resize", poison: bool = False, model: str = "p4cnn", recipe: bool = True) -> Path:
    own = write_images(tmp_path / "own")
    data = load_data(own)
    torch.manual_seed(0)
    network = ca.create_model(model, width=2, num_classes=3, in_channels=1)
    if poison:
        torch.nn.init.constant_(next(network.parameters()), 3e38)  # sums overflow
    preprocessing = make_preprocessing(["scalar"]).fit(data.train.images)
    metadata = {"recipe": json.dumps({"data": str(own), "fit": fit})} if recipe else {}
    classifier = Classifier(network, preprocessing, data.classes, data.image_shape, data.provenance, fit, metadata)
    classifier.save(tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def coattend(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["coattend", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_classes_are_matched_by_name(run: Path, tmp_path: Path) -> None:
    """The same images under the same names, in part and in another order of the alphabet, get the same answers."""
    whole = evaluated(str(run), str(write_images(tmp_path / "elsewhere", count=5)))
    assert len(whole.labels) == 15  # all images of a folder without splits
    assert whole.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    part = evaluated(str(run), str(write_images(tmp_path / "part", ("bee", "cat"))))
    assert part.labels.tolist() == [1] * 4 + [2] * 4
    assert part.evaluation.predictions.tolist() == whole.evaluation.predictions[[5, 6, 7, 8, 10, 11, 12, 13]].tolist()
    single = evaluated(str(run), str(write_images(tmp_path / "single", ("cat",), count=1)))
    assert single.labels.tolist() == [2]


def test_unknown_classes_are_refused_with_both_lists(run: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "other", ("ant", "wasp"))
    with pytest.raises(RunError, match=r"not trained on: wasp\. .* classes are ant, bee, cat, .* are ant, wasp"):
        evaluated(str(run), str(tmp_path / "other"))


def test_only_the_test_split_of_the_training_images_is_tested(run: Path, tmp_path: Path) -> None:
    expected = load_data(tmp_path / "own").test.names
    for data in (None, str(tmp_path / "own"), "own", str(tmp_path / "own") + "/"):
        tested = evaluated(str(run), data)
        assert tested.held_out.split.names == expected
    (tmp_path / "own").rename(tmp_path / "moved")
    write_images(tmp_path / "copy" / "own")  # the same images in another place
    assert len(evaluated(str(run), str(tmp_path / "copy" / "own")).labels) == 3
    (tmp_path / "moved").rename(tmp_path / "own")
    write_images(tmp_path / "own", count=7)
    tested = evaluated(str(run), None)
    assert any(line.startswith("these images have changed since the training") for line in evaluation_lines(tested))


def test_shipped_weights_are_tested_on_the_version_of_the_digits_that_they_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COATTEND_DATA", str(tmp_path))
    path = str(pretrained_file("p4cnn", "rotated-mnist"))
    with pytest.raises(DataError, match="run `coattend data fetch rotated-mnist-v1`"):
        evaluated(path, None)
    mini = load_data("mini")
    for version, file in rotated_mnist.GENERATED.items():
        images = mini.test.images[:200] if version == 1 else mini.test.images[:200].mT
        parts = dict.fromkeys(("train", "valid", "test"), Split(images, mini.test.labels[:200]))
        suffix = "" if version == 1 else ", version 2"
        data = Dataset(
            "rotated-mnist", **parts, classes=mini.classes, provenance=f"generated from MNIST (seed 2020{suffix})"
        )
        save_dataset(data, tmp_path / "rotated-mnist" / file)
    tested, mirrored = evaluated(path, None), evaluated(path, "rotated-mnist")
    assert tested.evaluation.error < 5
    assert tested.held_out.name == "rotated-mnist-v1"
    assert not any("mirror" in line or "changed" in line for line in evaluation_lines(tested))
    assert mirrored.evaluation.error > 30
    assert any(
        line.startswith("these digits are mirror images of those of the training (generated from MNIST (seed 2020))")
        and line.endswith("test it with --data rotated-mnist-v1")
        for line in evaluation_lines(mirrored)
    )
    assert not evaluated(path, "mini").mirrored


def test_a_test_folder_is_preferred_and_colour_made_grey(run: Path, tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        write_images(tmp_path / "new" / split, count=count, side=40)
    for path in (tmp_path / "new" / "test").rglob("*.png"):
        Image.open(path).convert("RGB").save(path)
    tested = evaluated(str(run), str(tmp_path / "new"))
    assert len(tested.labels) == 6
    assert "own images new (test split, scaled from 40 x 40 pixels to 28 x 28, " in tested.held_out.provenance


def test_a_network_that_is_not_exact_is_told_what_would_make_it_so(tmp_path: Path) -> None:
    lines = "\n".join(evaluation_lines(evaluated(str(saved(tmp_path, model="p4_allcnn")), None)))
    assert "not equivariant" in lines
    assert "use images of 25 x 25 or 29 x 29 pixels, or p4_allcnn:downsample=pool" in lines
    assert "use images of" not in "\n".join(evaluation_lines(evaluated(str(saved(tmp_path)), None)))


def test_errors_and_recall_of_every_class(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "elsewhere", count=5)
    assert coattend(monkeypatch, "evaluate", run, "--data", "elsewhere", "--errors", "errors.csv") == 0
    printed = capsys.readouterr().out
    tested = evaluated(str(run), "elsewhere")
    rows = list(csv.DictReader((tmp_path / "errors.csv").read_text().splitlines()))
    wrong = [
        (name, CLASSES[truth], CLASSES[answer])
        for name, truth, answer in zip(
            tested.held_out.split.names or (),
            tested.labels.tolist(),
            tested.evaluation.predictions.tolist(),
            strict=True,
        )
        if truth != answer
    ]
    assert wrong
    assert {(row["path"], row["truth"], row["answer"]) for row in rows} == set(wrong)
    confidences = [float(row["confidence"]) for row in rows]
    assert confidences == sorted(confidences, reverse=True)
    assert confidences[0] == pytest.approx(
        float(tested.evaluation.confidences[tested.evaluation.predictions != tested.labels].max())
    )
    for label, name in enumerate(CLASSES):
        right = int((tested.evaluation.predictions[tested.labels == label] == label).sum())
        assert f"  {name}: {right} of 5 correct ({right / 5:.1%})" in printed
    taken = tested.evaluation.predictions[tested.labels == 0].bincount(minlength=3).tolist()
    for answer in (1, 2):
        assert (f", {taken[answer]} as {CLASSES[answer]}" in printed) == bool(taken[answer])
    assert f"wrote {len(wrong)} misclassified images to errors.csv" in printed


def test_predict_goes_on_after_a_bad_file_and_takes_folders(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "own" / "ant" / "1.png"
    bad.write_bytes(b"<html>")
    files = ["own", "absent.png", "own/cat/0.png", "--csv", "all.csv", "--json", "all.json"]
    assert coattend(monkeypatch, "predict", run, *files) == 1
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert header == "image: class, probability, strongest pose"
    assert len(lines) == 12
    assert [line.split(" ")[1] for line in err.splitlines()] == [str(bad.relative_to(tmp_path)), "absent.png"]
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    entries = json.loads((tmp_path / "all.json").read_text())
    assert [row["path"] for row in rows] == [entry["path"] for entry in entries]
    for row, entry, line in zip(rows, entries, lines, strict=True):
        probabilities = entry["probabilities"]
        assert {f"p({name})": repr(p) for name, p in probabilities.items()}.items() <= row.items()
        assert sum(probabilities.values()) == pytest.approx(1)
        assert entry["class"] == max(probabilities, key=probabilities.__getitem__) == row["class"]
        assert line == f"{entry['path']}: {entry['class']}  {entry['confidence']:.1%}  {entry['pose']}"
    assert coattend(monkeypatch, "predict", run, "own/cat") == 0


def test_predict_says_that_it_scaled(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "large", count=1, side=56)
    assert coattend(monkeypatch, "predict", run, "large", "own/ant/0.png") == 0
    assert "3 of 4 images were scaled, by 0.5, to the 28 pixels a side" in capsys.readouterr().err
    assert coattend(monkeypatch, "predict", run, "own/ant/0.png") == 0
    assert capsys.readouterr().err == ""


def test_turned_copies_of_an_oblong_image_get_the_same_answer(run: Path, tmp_path: Path) -> None:
    from coattend.data.fitting import fit_images

    trained = load_trained(run)
    oblong = torch.from_numpy(np.random.RandomState(3).randint(0, 256, (1, 1, 31, 38)).astype(np.uint8))
    found = []
    for k in range(4):
        turned = fit_images(oblong.rot90(k, (-2, -1)), 28, trained.fit)
        assert torch.equal(turned, fit_images(oblong, 28, trained.fit).rot90(k, (-2, -1)))
        found.append(trained.predict(turned)[0])
    assert len({prediction.label for prediction in found}) == 1
    assert max(p.confidence for p in found) - min(p.confidence for p in found) < 1e-6


def test_the_fit_of_the_training_is_used_again(tmp_path: Path) -> None:
    run = saved(tmp_path, fit="crop")
    write_images(tmp_path / "large", side=40)
    assert load_trained(run).fit == "crop"
    assert "cropped from 40 x 40 pixels to 28 x 28" in evaluated(str(run), "large").held_out.provenance


def test_outputs_that_are_not_finite_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path, poison=True)
    for verb in (("predict", run, "own/ant/0.png"), ("evaluate", run)):
        assert coattend(monkeypatch, *verb) == 2
        assert "finite" in capsys.readouterr().err


def test_images_from_0_to_1_are_noticed(run: Path) -> None:
    trained = load_trained(run)
    images = torch.rand(2, 1, 28, 28)
    with pytest.raises(
        ValueError, match="from 0 to 255, got none above .*; multiply images with values from 0 to 1 by 255"
    ):
        trained.predict(images)
    first = trained.predict(255 * images)[0]
    assert sum(first.probabilities) == pytest.approx(1)
    assert first.confidence == max(first.probabilities) == first.probabilities[CLASSES.index(first.label)]
    trained.predict(torch.zeros(1, 1, 28, 28))


def test_a_run_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert coattend(monkeypatch, "predict", "nowhere", "x.png") == 2
    assert "there is no file nowhere and no run folder of that name" in capsys.readouterr().err
    with pytest.raises(RunError, match="cannot be looked up"):
        load_trained("x" * 5000)


def test_a_folder_of_all_sizes_is_trained_on_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = np.random.RandomState(0)
    for name in ("Drüsen Gewebe", "[Faser]"):
        for i, (height, width) in enumerate([(33, 40), (28, 28), (29, 35), (50, 31)]):
            path = tmp_path / "tiles" / name / f"kachel {i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn.randint(0, 256, (height, width)).astype(np.uint8)).save(path)
    options: tuple[tuple[str, ...], ...] = ((), ("--size", "32"), ("--set", "size=30"))
    for chosen, shape in zip(options, ("28 x 28", "32 x 32", "30 x 30"), strict=True):
        command = ("train", "p4cnn:width=1", "--data", "tiles", *chosen, "--set", "epochs=1", "--accelerator", "cpu")
        assert coattend(monkeypatch, *command) == 0
        printed = capsys.readouterr().out
        assert f"tiles: 4 / 2 / 2 images 1 x {shape} to train, validate and test, 2 classes (Drüsen" in printed
        assert f"scaled from sides of 28 to 50 pixels to {shape}" in printed


def test_a_file_without_its_recipe_is_tested_on_what_is_given(tmp_path: Path) -> None:
    run = saved(tmp_path, recipe=False)
    with pytest.raises(RunError, match="does not name its training data; choose the images with --data"):
        evaluated(str(run), None)
    assert len(evaluated(str(run), "own").labels) == 3  # its provenance tells that these are the training images


def test_turned_copies_are_a_line_of_their_own(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = evaluated(str(run), None, 3)
    assert report.turned is not None
    images = load_data("own").test.images.float()
    with torch.no_grad():
        expected = ca.turned(load_trained(run).eval(), 3)(images).argmax(1)
    assert report.turned.predictions.tolist() == expected.tolist()
    plain = evaluated(str(run), None)
    assert plain.turned is None
    assert report.evaluation.error == plain.evaluation.error
    assert coattend(monkeypatch, "evaluate", run, "--turns", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"averaged over 3 turned copies of each image: {report.turned.error:.2f}%" in "\n".join(lines)
    assert any(line.startswith(f"test error {plain.evaluation.error:.2f}%") for line in lines)
    with pytest.raises(ValueError, match="turns must be a whole number of at least 1, got 0"):
        evaluated(str(run), None, 0)
