"""A trained plain network made equivariant: accuracy and consistency before, after, and after fine-tuning.

    OMP_NUM_THREADS=1 python -m experiments.plankton_study --data plankton48.npz \\
        --folder runs/plankton --results results/plankton_study.jsonl

Plankton of the National Data Science Bowl (121 classes, 48 x 48 pixels, no preferred orientation), ``images`` and
``labels`` in one .npz. A narrow ResNet-18 is trained on images in random poses and inflated over D4, and both are
fine-tuned for three epochs, the inflated network with cross-pose filters. For comparison, a plain network that was
trained on the images as they are, and so prefers their poses, is inflated as well. Accuracy is that of 2,000 test
images as they are; consistency is the share of them whose predictions are the same in all eight poses. Every seed is
written as soon as it is known; started again, the program continues.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

import coattend as ca
from coattend.conversion.recognition import recognition
from coattend.groups import transform_image
from experiments.rows import continued

GROUP = ca.get_group("p4m")
SIZE, CLASSES, BATCH = 49, 121, 64
RATE = 0.01  # the learning rate of fine-tuning
T_95 = 4.303  # quantile of Student's t with two degrees of freedom


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        data: The .npz file with images and labels.
        seeds: Seeds, each of which is a training.
        folder: Folder of the trained plain networks.
        results: File of the results.
        images: Training images, a stratified part of the 21,000.
        test_images: Test images.
        epochs: Epochs of the first training.
        fine_tuning: Epochs of the fine-tuning.
        width: Channels of the first stage.
    """

    data: Path = Path("plankton48.npz")
    seeds: tuple[int, ...] = (0, 1, 2)
    folder: Path = Path("runs/plankton")
    results: Path = Path("plankton_study.jsonl")
    images: int = 6000
    test_images: int = 2000
    epochs: int = 12
    fine_tuning: int = 3
    width: int = 12


@dataclass(frozen=True)
class Result:
    """Accuracy in percent, and consistency in percent, of each network of a seed."""

    seed: int
    upright: tuple[float, float]
    upright_inflated: tuple[float, float]
    plain: tuple[float, float]
    inflated: tuple[float, float]
    plain_tuned: tuple[float, float]
    inflated_tuned: tuple[float, float]


class Block(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        changes = stride > 1 or inputs != outputs
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)) if changes else ()
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map after two convolutions and the shortcut."""
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


def network(width: int) -> nn.Sequential:
    """Return a ResNet-18 for one channel; the last stage keeps its 4 x 4 positions."""
    stages: list[nn.Module] = []
    inputs = width
    for stage, stride in enumerate((1, 2, 2, 1)):
        outputs = width * 2**stage
        stages.append(nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1)))
        inputs = outputs
    stem = (nn.Conv2d(1, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def split(labels: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and test images: 70 and 20 % of each class in a fixed random order, then fewer."""
    order = np.random.default_rng(0).permutation(len(labels))
    parts: tuple[list[int], list[int]] = ([], [])
    for label in range(CLASSES):
        members = order[labels[order] == label]
        train, valid = int(0.7 * len(members)), int(0.8 * len(members))
        parts[0].extend(members[:train])
        parts[1].extend(members[valid:])
    generator = np.random.default_rng(1)
    train_indices, test_indices = (generator.permutation(np.array(part)) for part in parts)
    return train_indices[: options.images], test_indices[: options.test_images]


def load(options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, dark on white and padded by one white row and column, and labels, of training and test."""
    with np.load(options.data, allow_pickle=False) as file:
        images, labels = file["images"], file["labels"].astype(np.int64)
    padded = np.pad(images, ((0, 0), (0, 1), (0, 1)), constant_values=255)
    pixels = (1 - torch.from_numpy(padded).float() / 255)[:, None]
    pixels = (pixels - pixels.mean()) / pixels.std()
    train, test = split(labels, options)
    targets = torch.from_numpy(labels)
    return pixels[train], targets[train], pixels[test], targets[test]


def fit(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float, seed: int, turned: bool) -> None:
    """Train by SGD with one cycle of the learning rate, on images as they are or in random poses."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.25)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=generator)[: len(images) // BATCH * BATCH].split(BATCH):
            batch = images[index]
            if turned:
                poses = torch.randint(GROUP.order, (len(batch),), generator=generator)
                for g in GROUP.elements:
                    batch[poses == g] = transform_image(batch[poses == g], GROUP, g)
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels[index]).backward()
            optimizer.step()
            schedule.step()


def measured(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return accuracy and consistency in percent."""
    found = recognition(model, images, labels, GROUP)
    return 100 * found.upright, 100 * found.consistent


def trained(seed: int, turned: bool, data: tuple[Tensor, ...], options: Options) -> nn.Module:
    """Return a plain network of a seed, from its file if it was trained before."""
    torch.manual_seed(seed)
    model, path = network(options.width), options.folder / f"{'turned' if turned else 'upright'}{seed}.pt"
    if path.is_file():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    fit(model, data[0], data[1], options.epochs, 0.1, seed, turned)
    options.folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    partial.replace(path)
    return model


def study(seed: int, data: tuple[Tensor, ...], options: Options) -> Result:
    """Train, inflate and fine-tune the networks of a seed."""
    images, labels, test, targets = data
    results: dict[str, tuple[float, float]] = {}
    for name, turned in (("plain", True), ("upright", False)):
        plain = trained(seed, turned, data, options)
        inflated = ca.equivariantize(plain, GROUP, size=SIZE)
        results[name] = measured(plain, test, targets)
        results["inflated" if turned else "upright_inflated"] = measured(inflated, test, targets)
        print(f"seed {seed}: {results}", flush=True)
    tuned = trained(seed, True, data, options)
    fit(tuned, images, labels, options.fine_tuning, RATE, seed, turned=True)
    results["plain_tuned"] = measured(tuned, test, targets)
    equivariant = ca.equivariantize(trained(seed, True, data, options), GROUP, size=SIZE, relative=(0, 4))
    fit(equivariant, images, labels, options.fine_tuning, RATE, seed, turned=False)
    results["inflated_tuned"] = measured(equivariant, test, targets)
    print(f"seed {seed}: {results}", flush=True)
    return Result(seed, **results)


def main() -> None:
    """Run the study and print its table."""
    options = tyro.cli(Options, description=__doc__)
    data = load(options)
    rows = continued(options.results, Result, options.seeds, lambda row: row.seed, lambda s: study(s, data, options))
    for name in ("upright", "upright_inflated", "plain", "inflated", "plain_tuned", "inflated_tuned"):
        accuracy, consistency = zip(*(getattr(row, name) for row in rows), strict=True)
        values = ", ".join(f"{value:.2f}" for value in accuracy)
        print(
            f"{name:20} accuracy {statistics.mean(accuracy):.2f} ({values}), least consistency {min(consistency):.2f}"
        )
    for first, second in (("inflated", "plain"), ("inflated_tuned", "plain_tuned")):
        differences = [getattr(row, first)[0] - getattr(row, second)[0] for row in rows]
        mean = statistics.mean(differences)
        if len(differences) == 3:
            spread = T_95 * statistics.stdev(differences) / math.sqrt(3)
            print(f"{first} - {second}: {mean:+.2f} [{mean - spread:+.2f}, {mean + spread:+.2f}] points")


if __name__ == "__main__":
    main()
