"""Verbs about images: data, predict, segment, attend, explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from coattend._terminal import console, fetch_progress, say, working
from coattend.cli.program import File, Folder, Run, app, shown


@app.command
def data(
    action: tyro.conf.Positional[Literal["list", "fetch"]],
    name: Annotated[tyro.conf.Positional[str | None], shown("[NAME]")] = None,
) -> int:
    """List the datasets and where they are, or fetch one.

    Example: coattend data fetch rotated-mnist

    Args:
        action: list, or fetch with a name.
        name: rotated-mnist, rotated-mnist-v1, mnist or cifar10; mini is inside the package.
    """
    from coattend import data as datasets
    from coattend.report.console import data_table

    if action == "list":
        console().print(data_table(datasets.available()))
        return 0
    if name is None:
        raise ValueError("data fetch expects the name of a dataset; `coattend data list` shows the names.")
    with fetch_progress() as progress:
        path = datasets.fetch(name, progress=progress)
    say(f"{name} is at {path}")
    if (note := datasets.substitute(name, path)) is not None:
        say(note)
    return 0


@app.command
def predict(
    file: Run,
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], shown("IMAGE [IMAGE ...]")],
    csv: File = None,
    json: File = None,
) -> int:
    """Classify images: class, its probability, and the pose (rotation, reflection) with the strongest response.

    Continues after files that cannot be read, and then exits with 1.

    Example: coattend predict runs/mini/p4cnn/quick/seed0 docs/assets/digit.png

    Args:
        file: A run folder, or one of its .safetensors files.
        images: Image files, or folders with images.
        csv: Also write a CSV, with the probability of every class.
        json: Also write the predictions as JSON.
    """
    from coattend.models.classifier import load_trained
    from coattend.models.prediction import (
        FilePrediction,
        predict_files,
        scaling_note,
        write_predictions_csv,
        write_predictions_json,
    )

    classifier, failed, errors = load_trained(file), False, console(stderr=True)
    predictions: list[FilePrediction] = []
    for one in predict_files(classifier, images):
        if isinstance(one, FilePrediction):
            say(one.line() if predictions else f"image: class, probability, strongest pose\n{one.line()}")
            predictions.append(one)
        else:
            errors.print(f"coattend: {one}", soft_wrap=True)
            failed = True
    if (note := scaling_note(classifier, predictions)) is not None:
        errors.print(note, soft_wrap=True)
    if csv is not None:
        write_predictions_csv(csv, classifier.classes, predictions)
    if json is not None:
        write_predictions_json(json, classifier.classes, predictions)
    return 1 if failed else 0


@app.command
def segment(
    file: Run,
    image: Annotated[tyro.conf.Positional[Path], shown("IMAGE")],
    to: Annotated[Path, shown("FILE")] = Path("mask.png"),
    window: int = 512,
    overwrite: bool = False,
) -> int:
    """Classify every pixel of an image of any size, window by window, in bounded memory and without seams.

    Example: coattend segment runs/nuclei/coat_unet/seed0 slide.png --to mask.png

    Args:
        file: A run folder, or one of its .safetensors files, of a network with one result per pixel.
        image: An image file; its channels are converted to those that the network was trained on, its size is not.
        to: The file to write: .png, whose pixels are the numbers of the classes, or .npy, the logits or the fields of
            vectors or axes.
        window: Height and width of the windows in pixels; larger ones are faster and need more memory.
        overwrite: Replace an existing file.
    """
    from coattend.models.classifier import load_trained
    from coattend.models.segmentation import segment_file

    with working(f"segmenting {image}"):
        segmented = segment_file(load_trained(file), image, to, window, overwrite)
    for line in segmented.lines():
        say(line)
    return 0


@app.command
def attend(
    file: Run,
    image: Annotated[tyro.conf.Positional[Path], shown("IMAGE")],
    to: Folder = Path("attention"),
) -> int:
    """Draw what every layer of a trained network attends to in one image, its rotations and mirrors.

    Example: coattend attend runs/mini/a_p4cnn/quick/seed0 docs/assets/digit.png --to attention

    Args:
        file: A run folder, or one of its .safetensors files.
        image: An image file; its channels and size are converted to those that the network was trained on.
        to: The folder for the pictures, PNG and SVG.
    """
    from coattend.report.attend import attend as attend_to
    from coattend.report.lines import attention_lines

    with working(f"drawing what the network attends to in {image}"):
        pictures = attend_to(file, image, to)
    for line in attention_lines(pictures, image):
        say(line)
    return 0


@app.command
def explore(
    files: Annotated[tyro.conf.Positional[tuple[str, ...]], shown("[RUN ...]")] = (),
    to: File = None,
    port: int = 0,
    in_browser: Annotated[bool, tyro.conf.arg(name="open")] = True,
) -> int:
    """Draw and rotate a digit in the browser while networks classify it, with their responses and masks.

    Example: coattend explore runs/mini/p4cnn/quick/seed0

    Args:
        files: Run folders or their .safetensors files, shown next to each other; by default the packaged networks.
        to: Write the page into one HTML file instead of showing it.
        port: The port of the page on this machine; 0 takes a free one.
        in_browser: Open the page in the browser.
    """
    from coattend.report.explorer.build import explorer_page, load_networks, write_explorer
    from coattend.report.explorer.serve import page_server, serve

    if to is not None:
        write_explorer(files, to)
        say(f"wrote {to}")
        return 0
    server = page_server(explorer_page(load_networks(files)), port)
    serve(
        server,
        lambda address: say(f"the explorer is at {address} until Ctrl-C"),
        in_browser=in_browser,
    )
    return 0
