"""What a finished run leaves about its predictions: a table of all, figures by class, and the worst as a picture."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coattend.data import Dataset
from coattend.data.contact_sheet import CHARACTERS, Cell, contact_sheet
from coattend.models.prediction import write_csv
from coattend.tasks import Classified, Task
from coattend.train.batches import Prepared
from coattend.train.evaluate import Tested
from coattend.train.run_folder import TABLE, WORST, RunFolder
from coattend.train.scores import FILE as SCORES
from coattend.train.scores import scores_of

SHOWN = 24  # images of the contact sheet


def write_outcome(
    folder: RunFolder,
    data: Dataset,
    prepared: Prepared,
    task: Task,
    last: Tested,
    valid: Tested | None,
    predict: Callable[[Tensor], Tensor],
) -> None:
    """Write predictions.npz for comparisons, predictions.csv with file names, scores.json, skipped.csv and worst.png.

    ``predict`` maps pixels to outputs of the network that is reported.
    """
    headline = last if valid is None else valid
    if isinstance(last.evaluation, Classified):
        assert last.targets is not None
        arrays = {"labels": last.targets.cpu(), "last": last.evaluation.predictions}
        if valid is not None and isinstance(valid.evaluation, Classified):
            arrays["valid"] = valid.evaluation.predictions
        folder.write_predictions(**{name: tensor.numpy() for name, tensor in arrays.items()})
    names = image_names(data, headline.indices)
    headings, rows = task.table(headline.evaluation, headline.targets)
    table = [(name, *row) for name, row in zip(names, rows, strict=True)]
    write_csv(folder.path / TABLE, ("path", *headings), table)
    folder.write(SCORES, scores_of(task, headline.evaluation).to_dict())
    folder.write_skipped([*data.skipped, *((failure.name, failure.reason) for failure in prepared.unreadable())])
    captions = [tuple(caption(heading, value) for heading, value in zip(headings, row, strict=True)) for row in rows]
    write_worst(folder, data, headline, names, captions, predict)


def caption(heading: str, value: object) -> str:
    """Return a line below an image: a heading, shortened if need be, and a number to four digits or a text.

    >>> caption("predicted covered area, %", "30.1234567")
    'predicted cove… 30.12'
    """
    try:
        text = f"{float(str(value)):.4g}"
    except ValueError:
        text = str(value)
    room = max(4, CHARACTERS - len(text) - 1)
    return f"{heading if len(heading) <= room else f'{heading[: room - 1]}…'} {text}"


def image_names(data: Dataset, indices: Tensor) -> list[str]:
    """Return the file of every tested image, or its number in the test split."""
    names = data.test.names
    return [f"{data.name} test image {i}" if names is None else names[i] for i in indices.tolist()]


def write_worst(
    folder: RunFolder,
    data: Dataset,
    outcome: Tested,
    names: list[str],
    captions: list[tuple[str, ...]],
    predict: Callable[[Tensor], Tensor],
) -> None:
    """Draw the images with the worst predictions, the worst first; masks as outlines, truth and answer side by side."""
    worst = outcome.evaluation.quality.nan_to_num(-torch.inf).argsort(stable=True)[:SHOWN].tolist()
    if isinstance(outcome.evaluation, Classified):
        assert outcome.targets is not None
        wrong = outcome.evaluation.predictions != outcome.targets.cpu()
        worst = [i for i in worst if wrong[i]]
    if outcome.targets is None:
        worst = worst[: SHOWN // 2]
    cells = []
    for i in worst:
        shown = data.test.at(outcome.indices[i : i + 1].cpu()).in_memory()
        name = names[i].replace("\\", "/").rpartition("/")[2].removeprefix(f"{data.name} ")
        image = shown.images[0]
        if outcome.targets is None:
            answer = predict(shown.images).argmax(1)[0].cpu()
            cells.append(Cell(image, (name, "truth"), shown.labels[0]))
            cells.append(Cell(image, (captions[i][0], "answer"), answer))
        else:
            cells.append(Cell(image, (name, *captions[i][:3])))
    if cells:
        contact_sheet(folder.path / WORST, cells)
