"""Make src/coattend/data/assets/mini.npz, the digits inside the package, from MNIST.

    python tools/make_mini.py

The same seed gives the same digits; tests/data/test_mini.py holds the stored file to it.
"""

from __future__ import annotations

import sys

from coattend.data import fetch, load_data
from coattend.data.catalog import MINI, MINI_FILE, MINI_SEED, MINI_SIZES
from coattend.data.mnist import whole_pool
from coattend.data.rotated_mnist import generate
from coattend.data.store import save_dataset


def main() -> None:
    """Fetch MNIST if it is not there, draw and turn the digits, write them."""
    fetch("mnist")
    dataset = generate(whole_pool(load_data("mnist")), MINI_SIZES, MINI_SEED, MINI)
    save_dataset(dataset, MINI_FILE, compressed=True)
    sys.stdout.write(f"{MINI_FILE}: {MINI_FILE.stat().st_size:,} bytes, {dataset.provenance}\n")


if __name__ == "__main__":
    main()
