"""Verbs about networks: models, check, export, restrict, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from coattend._terminal import console, say
from coattend.cli.program import Data, File, Model, Pixels, Run, app, shown


@app.command
def models(pattern: Annotated[tyro.conf.Positional[str], shown("PATTERN")] = "*") -> int:
    """List the networks: parameters, published count and error.

    Example: coattend models '*p4m*'

    Args:
        pattern: A pattern with wildcards, for example "*p4m*".
    """
    from coattend.report.console import models_table

    console().print(models_table(pattern))
    return 0


@app.command
def check(model: Model, size: Pixels = None, group: Annotated[str | None, shown("GROUP")] = None, seed: int = 0) -> int:
    """Measure the equivariance of a network element by element, and name the layer that breaks it.

    Exits with 1 if it is not equivariant. Measured in float64 on random images; batch-norm statistics of new networks
    are estimated from random images first. The certificate of an exported file is recomputed; if it does not hold, the
    exit code is 1 as well.

    Example: coattend check a_p4m_allcnn --size 33

    Args:
        model: A model's name, optionally with options after a colon; a run folder; a file written by save_model; or an
            exported .onnx file.
        size: Height and width of the images; by default those that the network was trained on, for a name those of its
            dataset.
        group: The group to check against; by default the network's own, p4 for plain networks.
        seed: Seed of weights and images.
    """
    from coattend.report.check import check_network
    from coattend.report.console import check_table

    checked = check_network(model, size, group, seed)
    console().print(check_table(checked), crop=False)
    return 0 if checked.holds else 1


@app.command
def export(
    file: Run,
    to: Annotated[Path, shown("FILE")],
    size: Pixels = None,
    masks: bool = False,
    responses: bool = False,
    int8: bool = False,
    data: Data = None,
    overwrite: bool = False,
) -> int:
    """Write a trained network for use without this library, with a certificate of what was measured.

    Example: coattend export runs/mini/p4cnn/quick/seed0 --to model.onnx

    Args:
        file: A run folder, or a .safetensors file.
        to: The file to write: .onnx, .pt2 (torch.export), .pt (plain torch) or .safetensors (only certified).
        size: Height and width of the images; by default those that the network was trained on.
        masks: Add the mask of every attention layer to the outputs of the .onnx.
        responses: Add the input of every attention layer, or the output of every convolution, to the outputs.
        int8: Quantize the .onnx, calibrated on real images, and report the change of the error.
        data: The dataset for --int8; by default the one that the network was trained on.
        overwrite: Replace an existing file.
    """
    from coattend.export import export_file

    measured = export_file(
        file, to, size=size, masks=masks, responses=responses, int8=int8, data=data, overwrite=overwrite
    )
    say(f"wrote {to}, {to.stat().st_size:,} bytes")
    for line in () if measured is None else str(measured).splitlines():
        say(line)
    return 0


@app.command
def restrict(
    file: Run,
    keep: Annotated[int | None, shown("POSES")] = None,
    budget: Annotated[float | None, shown("SHARE")] = None,
    data: Data = None,
    to: Annotated[Path, shown("FILE")] = Path("restricted.safetensors"),
    epochs: int = 3,
    images: int = 256,
    picture: File = None,
    seed: int = 0,
    overwrite: bool = False,
) -> int:
    """Restrict a trained network to the relative poses that contribute most, fine-tune it, and compare the stages.

    Example: coattend restrict runs/mini/p4cnn/quick/seed0 --keep 2 --to small.safetensors

    Args:
        file: A run folder, or one of its .safetensors files.
        keep: Relative poses to keep in every group convolution.
        budget: Instead, the share of the network's multiply-adds to spend, above 0 and up to 1.
        data: The dataset to measure, fine-tune and test on; by default the one the network was trained on.
        to: The file of the smaller network.
        epochs: Epochs of fine-tuning.
        images: Training images to measure contributions on.
        picture: Also draw the contributions, as PNG and SVG with this name.
        seed: Seed of the fine-tuning.
        overwrite: Replace an existing file.
    """
    from coattend._files import check_target
    from coattend.report import contribution_figure
    from coattend.report.console import restriction_table
    from coattend.report.style import save
    from coattend.train.restriction import restrict_trained

    if picture is not None:
        check_target(picture.with_suffix(".png"), overwrite=True)
    restriction = restrict_trained(
        file, to, keep=keep, budget=budget, data=data, epochs=epochs, images=images, seed=seed, overwrite=overwrite
    )
    console().print(restriction_table(restriction))
    if picture is not None:
        save(contribution_figure({file: restriction}), picture.with_suffix(""))
    return 0


@app.command
def bench(
    rounds: int = 30,
    format: Literal["auto", "planes", "channels_last"] = "auto",  # noqa: A002 (torch's name)
    bf16: bool = True,
    compiled: bool = True,
    csv: File = None,
) -> int:
    """Measure speed and memory as ratios: of formats, precisions and networks, relative to plain conv2d and to e2cnn.

    Example: coattend bench --rounds 10 --no-compiled --csv bench.csv

    Args:
        rounds: Interleaved rounds per line, of which the median is reported.
        format: Memory format of the networks; "auto" is the one that they use on this machine.
        bf16: Also measure bfloat16, which processors without its instructions emulate slowly.
        compiled: Also compile the networks, which takes minutes.
        csv: Write the figures to this file.
    """
    from coattend._files import check_target
    from coattend.bench import Setting, measured_lines, prepare_process, write_csv
    from coattend.report.console import measurement_table

    if csv is not None:
        check_target(csv, overwrite=True)
    prepare_process()
    measurements = []
    for measurement in measured_lines(Setting(rounds=rounds, format=format, bf16=bf16, compiled=compiled)):
        measurements.append(measurement)
        say(f"{measurement.kind}: {measurement.name} {measurement.ratio:.3f}")
    console().print(measurement_table(measurements))
    if csv is not None:
        write_csv(measurements, csv)
    return 0
