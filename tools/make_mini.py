"""Make src/coattend/data/assets/mini.npz, the digits inside the package, from MNIST.

    python tools/make_mini.py

The same seed gives the same digits; tests/data/test_mini.py holds the stored file to it.
"""

from __future__ import annotations

import sys

from coattend.data import fetch, load_data, mini
from coattend.data.mnist import whole_pool
from coattend.data.rotated_mnist import generate
from coattend.data.store import save_dataset


def main() -> None:
    """Fetch MNIST if it is not there, draw and turn the digits, write them."""
    fetch("mnist")
    dataset = generate(whole_pool(load_data("mnist")), mini.SIZES, mini.SEED, mini.NAME, version=1)
    save_dataset(dataset, mini.FILE, compressed=True)
    sys.stdout.write(f"{mini.FILE}: {mini.FILE.stat().st_size:,} bytes, {dataset.provenance}\n")


if __name__ == "__main__":
    main()
