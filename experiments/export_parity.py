"""Logits of exported files, run without coattend, against those of the original networks, all 21 at full width.

    python -m experiments.export_parity [NAME...]

Norm statistics are estimated from random images. The files (frozen, ONNX, torch.export) run in a process that cannot
import coattend, on random images and on digits (three of them as channels for colour networks), in batches of 1 and 7.
Prints a Markdown table of the largest absolute differences of the logits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from coattend.data import load_data
from coattend.export import export_frozen, export_onnx, export_pt2
from coattend.models import EquivariantNetwork, create_model, list_models, model_entry
from coattend.nn.observe import estimate_norm_statistics

PROGRAM = Path(__file__).parents[1] / "tests" / "without_coattend.py"


def real_images(channels: int, size: int, count: int) -> Tensor:
    """Return standardised digits, another digit in each channel."""
    digits = load_data("mini").test.images[: channels * count].float().view(count, channels, 28, 28)
    border = (size - 28) // 2
    padded = F.pad(digits, (border,) * 4)
    return ((padded - padded.mean()) / padded.std()).float()


def ready(name: str) -> EquivariantNetwork:
    """Return a network in evaluation mode whose norms have statistics."""
    network = create_model(name).float()
    size = model_entry(name).image_size
    estimate_norm_statistics(network, [torch.randn(8, network.in_channels, size, size, dtype=torch.float32)])
    return network.eval()


def write_cases(network: nn.Module, channels: int, size: int, folder: Path) -> float:
    """Write images and the logits of the original for ``without_coattend.py``, and return the largest logit."""
    random, real = torch.randn(7, channels, size, size, dtype=torch.float32), real_images(channels, size, 7)
    arrays: dict[str, Any] = {}
    largest = 0.0
    for kind, images in (("random", random), ("real", real)):
        for batch in (1, 7):
            with torch.no_grad():
                logits = network(images[:batch])
            arrays[f"images/{kind} {batch}"] = images[:batch].numpy()
            arrays[f"logits/{kind} {batch}"] = logits.numpy()
            largest = max(largest, float(logits.abs().max()))
    np.savez(folder / "cases.npz", **arrays)
    return largest


def differences(*folders: Path) -> list[dict[str, float]]:
    """Return the differences that a process without coattend measures in each folder."""
    command = [sys.executable, "-W", "error", str(PROGRAM), *map(str, folders)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in finished.stdout.splitlines()]


def main(names: tyro.conf.Positional[tuple[str, ...]] = ()) -> None:
    """Print the table.

    Args:
        names: Networks; by default all.
    """
    torch.manual_seed(0)
    print("| network | frozen | ONNX | torch.export | largest logit |\n|---|---|---|---|---|")
    for name in names or list_models():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            network, size = ready(name), model_entry(name).image_size
            export_frozen(network, folder / "model.pt")
            export_onnx(network, folder / "model.onnx")
            export_pt2(network, folder / "model.pt2")
            largest = write_cases(network, network.in_channels, size, folder)
            (found,) = differences(folder)
        worst = (max(v for k, v in found.items() if k.startswith(f"{kind} ")) for kind in ("pt", "onnx", "pt2"))
        print(f"| {name} | {' | '.join(f'{w:.1e}' for w in worst)} | {largest:.2g} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
