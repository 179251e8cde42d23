"""Make src/coattend/data/assets/nuclei_mini.npz, the nuclei inside the package, from BBBC038.

    python tools/make_nuclei.py nuclei256.npz

The file has the 334 images of 256 x 256 pixels of stage1_train (data.broadinstitute.org/bbbc/BBBC038, CC0) as
``images`` (334, 256, 256, 3) and numbered nuclei as ``labels`` (334, 256, 256).
"""

from __future__ import annotations

import sys
from pathlib import Path

from coattend.data.nuclei import FILE, make_tiles
from coattend.data.store import open_npz, save_dataset


def main(path: Path) -> None:
    """Cut the tiles and write them."""
    with open_npz(path) as file:
        dataset = make_tiles(file["images"], file["labels"])
    save_dataset(dataset, FILE, compressed=True)
    sys.stdout.write(f"{FILE}: {FILE.stat().st_size:,} bytes, {dataset.summary()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
