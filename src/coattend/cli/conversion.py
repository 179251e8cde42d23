"""Verbs about networks and data that exist: equivariantize, advise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from coattend._terminal import console, say, working
from coattend.cli.program import Pixels, app, shown

if TYPE_CHECKING:
    from coattend.conversion import Equivariantized
    from coattend.conversion.source import Source as LoadedSource

Source = Annotated[tyro.conf.Positional[str], shown("FILE|MODULE:FUNCTION")]
Dataset = Annotated[tyro.conf.Positional[str], shown("DATA")]


@app.command
def equivariantize(
    file: Source,
    to: Annotated[Path, shown("FILE")],
    group: Annotated[str, shown("GROUP")] = "p4m",
    mode: Literal["inflate", "project", "template"] = "inflate",
    match: Literal["params", "cost"] = "params",
    strides: Literal["exact", "own-frame", "pool"] = "exact",
    size: Pixels = None,
    data: Annotated[str | None, shown("DATA")] = None,
    overwrite: bool = False,
) -> int:
    """Make a plain network equivariant, exactly, with the weights it has, and write it.

    Example: coattend equivariantize networks:resnet18 --group p4m --size 225 --to out.onnx

    Args:
        file: A run folder or .safetensors file of a plain network, a model's name, or module:function for a Python
            function that returns a network.
        to: The file to write: .safetensors for load_converted, or .onnx, .pt2, .pt for use without this library.
        group: Quarter turns and flips, p4m, or a subgroup of it.
        mode: Average over all poses (inflate), symmetric filters at the cost of the plain network (project), or the
            same architecture over the group with new weights (template).
        match: What a template has as much of as the plain network.
        strides: Refuse sizes at which strides are not exact, compute such layers in the frame of each pose, or pool.
        size: Height and width of the images; by default a size at which the network is exact.
        data: Dataset whose test images are classified before and after, by default the one of a trained file that is
            projected. Networks of Python functions get pixels from 0 to 1.
        overwrite: Replace an existing file.
    """
    from coattend._files import check_target
    from coattend.conversion import equivariantize, save_converted
    from coattend.conversion.source import load_source
    from coattend.export.formats import FORMATS, format_of

    form = format_of(to)
    if form is None:
        raise ValueError(f"--to expects a file that ends in {', '.join(FORMATS)}, got {to.name!r}.")
    check_target(to, overwrite)
    source = load_source(file)
    model = source.network.float().eval()
    network = equivariantize(model, group, mode, match=match, strides=strides, size=size)
    pixels = network.image_shape[1]
    say(f"equivariant to {network.group.name} at {pixels} x {pixels} pixels; off its mean by {network.difference:.1e}")
    for record in network.records:
        if record.how in ("own frame", "projected", "convolutions replaced"):
            say(f"{record.layer}: {record.how}, {record.reason}")
    if data is not None:
        _say_recognition(source, network, data)
    elif mode == "project":
        _say_cost(source, network)
    if form.suffix == ".safetensors":
        save_converted(network, to)
        measured = None
    else:
        measured = form.write(network, to, size=pixels, overwrite=overwrite)
    say(f"wrote {to}, {to.stat().st_size:,} bytes")
    for line in () if measured is None else str(measured).splitlines():
        say(line)
    return 0


def _say_cost(source: LoadedSource, network: Equivariantized) -> None:
    """Say what projection costs on the data of a trained file, if they are on this machine."""
    from coattend.data import DataError

    if source.dataset is None:
        say("what this costs in accuracy is not known; measure it with --data")
        return
    try:
        _say_recognition(source, network, source.dataset)
    except DataError as error:
        say(f"what this costs in accuracy is not known; measure it with --data ({error})")


def _say_recognition(source: LoadedSource, network: Equivariantized, data: str) -> None:
    """Say how well test images are recognized before and after the conversion."""
    from coattend.conversion.recognition import held_out, recognition

    images, labels = held_out(data, network.image_shape[1], source.preprocessing)
    say(f"{data}, {len(images):,} test images, poses of {network.group.name}")
    for name, model in (("before", source.network), ("after", network)):
        with working(f"classifying the test images {name} the conversion"):
            measured = recognition(model, images, labels, network.group)
        say(f"{name}: {measured}")


@app.command
def advise(data: Dataset, seed: int = 0) -> int:
    """Measure whether rotation or reflection is a symmetry of a dataset, and recommend a group.

    Trains two small plain networks, which takes about half a minute, and tests them on images in other poses.

    Example: coattend advise mini

    Args:
        data: The name of a dataset, a folder with one sub-folder per class, or an .npz with images and labels.
        seed: Seed of the networks.
    """
    from coattend.report.console import advice_table
    from coattend.train.advice import advise

    advice = advise(data, seed)
    console().print(advice_table(advice))
    say(str(advice))
    return 0
