"""The digits inside the package: rotated digits of MNIST, not transposed, for examples and tests."""

from __future__ import annotations

from pathlib import Path

from coattend.data.catalog import register_dataset
from coattend.data.dataset import Dataset
from coattend.data.store import read_dataset

NAME = "mini"
SIZES = (2_000, 500, 2_000)
SEED = 28
FILE = Path(__file__).parent / "assets" / "mini.npz"


@register_dataset(
    NAME,
    classes="0123456789",
    image_shape=(1, 28, 28),
    sizes=SIZES,
    description="rotated digits inside the package",
    locate=lambda folder: FILE,
)
def load(folder: Path) -> Dataset:
    """Load the digits; they do not depend on the data folder."""
    return read_dataset(FILE, NAME, "reinstall coattend")
