"""Images of the user: folders of image files and .npz, unusual, damaged, huge, or not images at all."""

from __future__ import annotations

import io
import math
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from coattend.data import load_data
from experiments.hostile import models
from experiments.hostile.examples import CLASSES, train_command, trained_run
from experiments.hostile.kinds import Damage, Kind, command
from experiments.hostile.mutations import (
    BITS,
    CONTENTS,
    NPY_HEADERS,
    PLACES,
    among,
    cut,
    each,
    evil_pickle,
    flip,
    forge,
    npy_header,
    replace,
)

FOLDER, ARRAYS = "images", "few.npz"
FORMATS = ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm")
VICTIM = "0/0"  # the image that is damaged


def prepare(folder: Path) -> None:
    """Make a network, an .npz and an image folder, and the image to damage in every format."""
    run = trained_run(folder)
    (folder / models.FILE).write_bytes((run / "last.safetensors").read_bytes())
    drawn = np.random.default_rng(2)
    for label in range(CLASSES):
        (folder / FOLDER / str(label)).mkdir(parents=True)
        for number in range(3):
            image = Image.fromarray(drawn.integers(0, 256, (28, 28, 3), dtype=np.uint8))
            image.save(folder / FOLDER / str(label) / f"{number}.png")
    for array, shape in {"images": (1_500_000, 10, 100), "labels": (1_500_000_000,)}.items():
        shutil.copy(folder / ARRAYS, folder / f"bomb-{array}.npz")
        forge(folder / f"bomb-{array}.npz", array, npy_header(shape), math.prod(shape))
    victim = Image.open(folder / FOLDER / f"{VICTIM}.png")
    for suffix in FORMATS:
        victim.save(folder / f"victim.{suffix}")


# -- damages ---------------------------------------------------------------------------------------------------------


def put(folder: Path, content: bytes, suffix: str = "png") -> Path:
    """Replace the image by these bytes."""
    (folder / FOLDER / f"{VICTIM}.png").unlink()
    path = folder / FOLDER / f"{VICTIM}.{suffix}"
    path.write_bytes(content)
    return path


def flip_image(folder: Path, suffix: str, place: int, bit: int) -> None:
    """Flip a bit of an image file."""
    flip(put(folder, (folder / f"victim.{suffix}").read_bytes(), suffix), place, bit)


def cut_image(folder: Path, suffix: str, place: int) -> None:
    """Remove the end of an image file."""
    cut(put(folder, (folder / f"victim.{suffix}").read_bytes(), suffix), place)


def misname(folder: Path, suffix: str, name: str) -> None:
    """Give an image file the suffix of another format."""
    put(folder, (folder / f"victim.{suffix}").read_bytes(), name)


def png(width: int, height: int, bits: int = 8, colour: int = 0, rows: bytes = b"") -> bytes:
    """Write a PNG that declares a size, with or without its rows."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _black(width: int, height: int) -> bytes:
    packer = zlib.compressobj(9)
    row = bytes(width + 1)
    return b"".join(packer.compress(row) for _ in range(height)) + packer.flush()


def strange(folder: Path, what: str) -> None:
    """Write a file that is not an image, or an image of an unexpected kind."""
    content = io.BytesIO()
    suffix = "png"
    noise = np.random.default_rng(3).integers(0, 1 << 16, (28, 28), dtype=np.uint16)
    if what == "eps":
        eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n%%EOF\n"
        content.write(eps)
    elif what in ("60000x60000", "1x89000000", "0x0", "2000000000x1"):
        width, height = map(int, what.split("x"))
        content.write(png(width, height, rows=zlib.compress(bytes(1000))))
    elif what == "9000x9000":
        content.write(png(9000, 9000, rows=_black(9000, 9000)))
    elif what == "16-bit grey":
        Image.fromarray(noise).save(content, "png")
    elif what == "16-bit colour":
        content.write(png(28, 28, bits=16, colour=2, rows=zlib.compress((b"\0" + bytes(range(168))) * 28)))
    elif what == "float tiff":
        suffix = "tif"
        Image.fromarray(noise.astype(np.float32)).save(content, "tiff")
    elif what == "pages":
        suffix = "tif"
        page = Image.fromarray(noise.astype(np.uint8))
        page.save(content, "tiff", save_all=True, append_images=[page.resize((500, 500))] * 3)
    elif what == "animation":
        suffix = "gif"
        page = Image.fromarray(noise.astype(np.uint8))
        page.save(content, "gif", save_all=True, append_images=[page.rotate(90)] * 3)
    elif what in ("CMYK", "YCbCr"):
        suffix = "tif"
        Image.new(what, (28, 28)).save(content, "tiff")
    elif what in ("P", "LA", "RGBA", "1"):
        Image.new(what, (28, 28)).save(content, "png")
    elif what == "pickle":
        content.write(evil_pickle())
    elif what == "svg":
        content.write(b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>")
    put(folder, content.getvalue(), suffix)


STRANGE = among(
    "eps", "60000x60000", "1x89000000", "0x0", "2000000000x1", "9000x9000", "16-bit grey", "16-bit colour",
    "float tiff", "pages", "animation", "CMYK", "YCbCr", "P", "LA", "RGBA", "1", "pickle", "svg", "nothing",
)  # fmt: skip


def rearrange(folder: Path, how: str) -> None:
    """Rearrange the folder."""
    root = folder / FOLDER
    if how == "one class":
        for child in sorted(root.iterdir())[1:]:
            child.rename(folder / f"away{child.name}")
    elif how == "empty class":
        (root / "empty").mkdir()
    elif how == "flat":
        for path in list(root.rglob("*.png")):
            path.rename(root / f"{path.parent.name}{path.name}")
    elif how == "train and test":
        for part in ("train", "test"):
            (root / part).mkdir()
            for label in range(5):
                (root / f"{label + 5 * (part == 'test')}").rename(root / part / str(label))
    elif how == "train and val":
        for part in ("train", "val"):
            (root / part).mkdir()
            for label in range(5):
                (root / f"{label + 5 * (part == 'val')}").rename(root / part / str(label))
    elif how == "loop":
        (root / "0" / "again").symlink_to(root)
    elif how == "folder.png":
        (root / "0" / "folder.png").mkdir()
    elif how == "one image":
        for path in sorted((root / "0").iterdir())[1:]:
            path.unlink()
    elif how == "sizes":
        Image.new("L", (40, 30)).save(root / f"{VICTIM}.png")
    elif how == "fifo":
        os.mkfifo(root / "0" / "fifo.png")


LAYOUTS = among(
    "one class", "empty class", "flat", "train and test", "train and val", "loop", "folder.png", "one image", "sizes",
    "fifo",
)  # fmt: skip


def rename_class(folder: Path, name: str) -> None:
    """Give a class a name with a special meaning elsewhere."""
    (folder / FOLDER / "1").rename(folder / FOLDER / name)


CLASS_NAMES = among("[red]", "$x_$", "a" * 200, "\udcff", "<script>", "-x", "%s", "..x", "new\nline", "\u202e")


def change_arrays(folder: Path, how: str) -> None:
    """Write an .npz with other arrays."""
    with np.load(folder / ARRAYS) as file:
        arrays: dict[str, Any] = dict(file)
    images, labels = arrays["images"], arrays["labels"]
    changed: dict[str, dict[str, Any]] = {
        "no labels": {"labels": None},
        "no images": {"images": None},
        "scalar images": {"images": np.array(3, dtype=np.uint8)},
        "scalar labels": {"labels": np.array(3)},
        "scalar classes": {"classes": np.array("cat")},
        "few classes": {"classes": np.array(["a"])},
        "markup classes": {"classes": np.array(["[/red]", "$x_$", "<script>", *"abcdefg"])},
        "number classes": {"classes": np.arange(10)},
        "objects": {"labels": np.array([None] * len(labels), dtype=object)},
        "float labels": {"labels": labels + 0.5},
        "negative labels": {"labels": labels - 5},
        "large labels": {"labels": labels * 10**6},
        "bool images": {"images": images > 100},
        "float images": {"images": images / 255},
        "nan images": {"images": images * np.nan},
        "five axes": {"images": images[None, None]},
        "no pixels": {"images": images[:, :0, :0]},
        "one pixel": {"images": images[:, :1, :1]},
        "not square": {"images": images[:, :5]},
        "two channels": {"images": np.stack([images, images], 1)},
        "none at all": {"images": images[:0], "labels": labels[:0]},
        "structured": {"labels": np.zeros(len(labels), dtype=[("a", int)])},
        "complex": {"images": images * 1j},
    }
    arrays |= changed[how]
    np.savez(folder / ARRAYS, **{name: array for name, array in arrays.items() if array is not None})


ARRAY_CHANGES = among(
    "no labels", "no images", "scalar images", "scalar labels", "scalar classes", "few classes", "markup classes",
    "number classes", "objects", "float labels", "negative labels", "large labels", "bool images", "float images",
    "nan images", "five axes", "no pixels", "one pixel", "not square", "two channels", "none at all", "structured",
    "complex",
)  # fmt: skip


def bomb(folder: Path, array: str) -> None:
    """Write a small .npz that unpacks to gigabytes."""
    shutil.copy(folder / f"bomb-{array}.npz", folder / ARRAYS)


# -- attempts --------------------------------------------------------------------------------------------------------


def load(folder: Path, healthy: Path) -> None:
    """Load as a dataset, resized."""
    load_data(_damaged(folder, healthy), size=28)


def load_plain(folder: Path, healthy: Path) -> None:
    """Load as a dataset."""
    load_data(_damaged(folder, healthy))


def _damaged(folder: Path, healthy: Path) -> Path:
    intact = (folder / ARRAYS).read_bytes() == (healthy / ARRAYS).read_bytes()
    return folder / (FOLDER if intact else ARRAYS)


def train(folder: Path, healthy: Path) -> None:
    """Run ``coattend train --data``."""
    command(*train_command(folder / "runs2", "z2cnn:width=1", _damaged(folder, healthy)))


def evaluate(folder: Path, healthy: Path) -> None:
    """Run ``coattend evaluate --data``."""
    command("evaluate", folder / models.FILE, "--data", _damaged(folder, healthy))


def predict(folder: Path, _: Path) -> None:
    """Run ``coattend predict`` on the image."""
    command("predict", folder / models.FILE, *sorted((folder / FOLDER / "0").glob("*.*"))[:3])


KIND = Kind(
    share=150,
    prepare=prepare,
    damages={
        "strange": Damage(each(STRANGE), strange),
        "rearrange": Damage(each(LAYOUTS), rearrange),
        "change_arrays": Damage(each(ARRAY_CHANGES), change_arrays),
        "forge": Damage(
            each(among("images", "labels"), among(*NPY_HEADERS)),
            lambda folder, array, header: forge(folder / ARRAYS, array, header),
        ),
        "bomb": Damage(each(among("images", "labels")), bomb),
        "rename_class": Damage(each(CLASS_NAMES), rename_class),
        "misname": Damage(each(among(*FORMATS), among(*FORMATS)), misname),
        "replace": Damage(each(among(*CONTENTS)), lambda folder, content: replace(folder / ARRAYS, content)),
        "cut": Damage(each(PLACES), lambda folder, place: cut(folder / ARRAYS, place)),
        "flip": Damage(each(PLACES, BITS), lambda folder, place, bit: flip(folder / ARRAYS, place, bit)),
        "cut_image": Damage(each(among(*FORMATS), PLACES), cut_image),
        "flip_image": Damage(each(among(*FORMATS), PLACES, BITS), flip_image),
    },
    attempts={"load": load, "load_plain": load_plain, "train": train, "evaluate": evaluate, "predict": predict},
)
