"""What a finished run leaves: weights that can be used alone, predictions, and errors under each protocol."""

from __future__ import annotations

import io
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coattend._files import write_atomically
from coattend.data import Dataset, Preprocessing
from coattend.models import EquivariantNetwork
from coattend.models.classifier import Classifier
from coattend.train.evaluate import Evaluation
from coattend.train.recipe import Recipe
from coattend.train.run_folder import RunFolder


def save_trained(
    network: EquivariantNetwork, path: Path, preprocessing: Preprocessing, recipe: Recipe, data: Dataset
) -> None:
    """The network with what its input has to go through and what its classes are called."""
    metadata = {"recipe": json.dumps(recipe.to_dict())}
    Classifier(network, preprocessing, data.classes, data.image_shape, data.provenance, recipe.fit, metadata).save(path)


def save_predictions(folder: RunFolder, labels: Tensor, at_end: Evaluation, chosen: Evaluation | None) -> None:
    """Predicted classes of the test images, for comparisons image by image."""
    arrays = {"labels": labels.cpu().numpy(), "last": at_end.predictions.numpy()}
    if chosen is not None:
        arrays["valid"] = chosen.predictions.numpy()
    content = io.BytesIO()
    small: dict[str, Any] = {name: array.astype(np.uint16) for name, array in arrays.items()}
    np.savez_compressed(content, **small)
    write_atomically(folder.path / "predictions.npz", content.getvalue())


def outcome(
    folder: RunFolder, recipe: Recipe, at_end: Evaluation, chosen: Evaluation | None, best: dict[str, Any] | None
) -> dict[str, Any]:
    """Test errors in percent: of the last epoch, of the one chosen on validation, and, optimistic, on the test set."""
    history = folder.history()
    tested = [line["test_accuracy"] for line in history if "test_accuracy" in line]
    errors = [line["equivariance_error"] for line in history if "equivariance_error" in line]
    return {
        **{key: folder.description[key] for key in ("model", "seed", "provenance", "parameters")},
        "recipe": recipe.name,
        "settings": list(recipe.settings),
        "data": recipe.data,
        "epochs": recipe.epochs,
        "error": {
            "last": at_end.error,
            "valid": None if chosen is None else chosen.error,
            "test_optimistic": 100 * (1 - max(tested)) if tested else None,
        },
        "valid_epoch": None if best is None else best["epoch"],
        "valid_error": None if best is None else 100 * (1 - best["accuracy"]),
        "equivariance_error": errors[-1] if errors else None,
        "seconds_per_epoch": statistics.median(line["seconds"] for line in history),
        "seconds": sum(line["seconds"] for line in history),
    }


def headline(result: dict[str, Any]) -> tuple[str, float]:
    """The honest figure of a run and how it was chosen: on validation if there was one, else the last epoch."""
    errors = result["error"]
    return ("valid", errors["valid"]) if errors["valid"] is not None else ("last", errors["last"])
