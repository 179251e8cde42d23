"""Train a U-Net to measure the orientation of fibres in synthetic images, and print the error of its angles.

    python -m experiments.fibre_orientation

Images are noise that a filter has stretched along an orientation which changes smoothly over the image, like fibres or
collagen, with a brightness and contrast of their own and white noise on top. The network returns an axis per pixel
(cos 2a, sin 2a); the loss is the squared distance to that of the true angle. The error is the mean angle between the
axes in degrees, on images that were not trained on, and again after all images were turned and mirrored: that figure
is the same, because the field turns with the image.
"""

from __future__ import annotations

import math
import time

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

import coattend as ca
from coattend.functional import orientation_angle
from coattend.groups import FiniteGroup, get_group, orientation_action, transform_image
from coattend.nn.observe import evaluating

SIZE = 64
RADIUS = 8.0  # pixels over which a fibre is averaged


def smooth_noise(batch: int, size: int, cells: int, generator: torch.Generator) -> Tensor:
    """Return (batch, size, size) of standard noise that varies over size / cells pixels."""
    coarse = torch.randn(batch, 1, cells + 3, cells + 3, generator=generator)
    return F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=True)[:, 0]


def fibres(batch: int, generator: torch.Generator, size: int = SIZE, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return images (batch, 1, size, size) and the true angles (batch, size, size), counter-clockwise from the right.

    Each pixel is the mean of noise along a straight line at its angle; the noise varies over two pixels.
    """
    start = math.pi * torch.rand(batch, 1, 1, generator=generator)
    angles = start + 0.5 * smooth_noise(batch, size, 2, generator)
    white = smooth_noise(batch, size, size // 2, generator)[:, None]
    steps = torch.linspace(-RADIUS, RADIUS, 33)
    grid_1d = (torch.arange(size) + 0.5) * 2 / size - 1  # of grid_sample: pixel edges at -1 and 1, y downwards
    along = steps[:, None, None, None] * 2 / size
    x = grid_1d[None, None, None, :] + along * angles.cos()
    y = grid_1d[None, None, :, None] - along * angles.sin()
    total = torch.zeros(batch, 1, size, size)
    for step in range(len(steps)):
        total += F.grid_sample(
            white, torch.stack([x[step], y[step]], -1), align_corners=False, padding_mode="reflection"
        )
    images = total / total.std(dim=(-2, -1), keepdim=True)
    contrast = 0.5 + torch.rand(batch, 1, 1, 1, generator=generator)
    brightness = torch.randn(batch, 1, 1, 1, generator=generator)
    return images * contrast + brightness + noise * torch.randn(images.shape, generator=generator), angles


def axes_of(angles: Tensor) -> Tensor:
    """Return the axes (batch, 2, height, width) of angles."""
    return torch.stack([(2 * angles).cos(), (2 * angles).sin()], 1)


def error_degrees(field: Tensor, truth: Tensor) -> float:
    """Return the mean angle between the axes of a field and true axes, both (batch, 2, height, width)."""
    difference = orientation_angle(field) - orientation_angle(truth)
    return float(torch.remainder(difference + math.pi / 2, math.pi).sub(math.pi / 2).abs().mean().rad2deg())


def moved_axes(axes: Tensor, group: FiniteGroup, g: int) -> Tensor:
    """Return a field of axes after an element has moved the image."""
    rho = torch.tensor(orientation_action(group, "axis")[g], dtype=axes.dtype)
    return transform_image(torch.einsum("ab,nbhw->nahw", rho, axes), group, g)


def trained(name: str, steps: int, batch: int, seed: int) -> torch.nn.Module:
    """Return a network trained on new images in every step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = ca.create_model(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for step in range(steps):
        images, angles = fibres(batch, generator)
        loss = (model(images) - axes_of(angles)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // 10) == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    return model.eval()


def main(
    model: str = "coat_unet:output=axis,num_classes=1,in_channels=1,width=4,depth=2",
    steps: int = 800,
    batch: int = 6,
    seed: int = 0,
) -> None:
    """Train a network, measure the error of its angles, and print it.

    Args:
        model: A network with output=axis.
        steps: Steps of training.
        batch: Images per step.
        seed: Seed of weights and images.
    """
    start = time.perf_counter()
    network = trained(model, steps, batch, seed)
    seconds = time.perf_counter() - start
    images, angles = fibres(64, torch.Generator().manual_seed(10_000 + seed))
    truth, group = axes_of(angles), get_group("p4m")
    with evaluating(network):
        print(f"{model}: {sum(p.numel() for p in network.parameters()):,} parameters, {seconds:.0f} s")
        print(f"mean error {error_degrees(network(images), truth):.2f} degrees on {len(images)} images")
        for g in group.elements:
            moved = error_degrees(network(transform_image(images, group, g)), moved_axes(truth, group, g))
            print(f"  {group.describe(g)}: {moved:.4f}")
        errors = ca.equivariance_error(network.double(), images[:2].double(), group, output_layout="axis")
    print(f"largest relative error of the field, vector part included, float64: {max(errors.values()):.1e}")


if __name__ == "__main__":
    tyro.cli(main)
