"""Trained networks put to use: on a data set's test split, and on a user's own image files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_fabric import Fabric

from coattend.data import load_data
from coattend.data.fitting import fitted, recoloured
from coattend.data.image_files import read_image
from coattend.models import read_model_file
from coattend.train.batches import Examples
from coattend.train.evaluation import evaluate, network_error
from coattend.train.run_folder import RunError, RunFolder
from coattend.train.trained import Prediction, load_trained


def test_trained(path: str, data_name: str | None) -> Iterator[str]:
    """Error, loss and equivariance error of a trained network on a test split, as lines for a person."""
    trained = load_trained(path)
    data = load_data(data_name or _trained_on(Path(path)), size=trained.image_shape[1])
    if data.image_shape != trained.image_shape or len(data.classes) != len(trained.classes):
        raise RunError(
            f"{path} was trained on {len(trained.classes)} classes of images {trained.image_shape}, {data.name} has "
            f"{len(data.classes)} classes of {data.image_shape}; choose data of the same kind."
        )
    examples = Examples(trained.preprocessing.apply(data.test.images), data.test.labels)
    found = evaluate(Fabric(accelerator="cpu", devices=1), trained.network, examples)
    yield f"{path} on {data.name} ({data.provenance}), {len(examples):,} images"
    yield f"test error {found.error:.2f}%, loss {found.loss:.4f}"
    error = network_error(trained.network, examples)
    yield f"equivariance error {error:.1e} over {trained.network.group.name}, float32"
    if not trained.preprocessing.commutes_with_rotation:
        yield "its preprocessing does not commute with rotation: turning an image before it is not the same as after it"


def predict_files(path: str, images: Sequence[Path]) -> Iterator[tuple[Path, Prediction]]:
    """Classify image files one by one; colour, grey and size are brought to what the network was trained on."""
    if not images:
        raise RunError("predict expects image files behind the network; got none.")
    trained = load_trained(path)
    channels, height, _ = trained.image_shape
    for file in images:
        image = recoloured(read_image(file), channels)
        (prediction,) = trained.predict(fitted(image[None], height, "resize"))
        yield file, prediction


def _trained_on(path: Path) -> str:
    if path.is_dir():
        return str(RunFolder(path).description["recipe"]["data"])
    return str(json.loads(read_model_file(path)[0]["recipe"])["data"])
