"""Files of the named datasets: MNIST, rotated MNIST and CIFAR-10, packed, pickled and stored."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.data import fakes

from coattend.data import cifar10, load_data, mnist, rotated_mnist
from experiments.hostile.kinds import Damage, Kind, SilentAcceptanceError, command
from experiments.hostile.mutations import (
    BITS,
    BLOCK,
    CONTENTS,
    NPY_HEADERS,
    PLACES,
    among,
    at,
    cut,
    each,
    evil_pickle,
    flip,
    forge,
    replace,
)

DATA_SETS = {"idx": "mnist", "wheel": "mnist", "binary": "cifar10", "pickled": "cifar10", "stored": "mnist"}
FORMS = among(*DATA_SETS)
GIGABYTE = 10**9


def expect_small() -> None:
    """Let the library expect small stand-ins instead of the real files."""
    fakes.expect_small_mnist(pytest.MonkeyPatch())
    fakes.expect_small_cifar(pytest.MonkeyPatch())


def prepare(folder: Path) -> None:
    """Write every form into its own folder, as a user would into ``COATTEND_DATA``."""
    expect_small()
    for form in DATA_SETS:
        (folder / form).mkdir()
    fakes.write_idx(folder / "idx")
    fakes.write_wheel(folder / "wheel" / mnist.WHEEL)
    fakes.write_bin(folder / "bin")
    fakes.write_tar(folder / "binary" / cifar10.BINARY_ARCHIVE, folder / "bin", "cifar-10-batches-bin")
    fakes.write_py(folder / "pickled" / "cifar-10-batches-py")
    fakes.write_idx(folder / "stored")
    load_data("mnist", folder / "stored")  # keeps it as original.npz
    for path in folder.glob("stored/*.gz"):
        path.unlink()
    _gzip_bomb(folder / "bomb.gz", b"\0\0\x08\3" + struct.pack(">3i", 60_000, 28, 28))
    _zip_bomb(folder / "bomb.zip")


def _gzip_bomb(path: Path, start: bytes) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(0, 2 * GIGABYTE, BLOCK):
            file.write(bytes(BLOCK))


def _zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in (rotated_mnist.TRAINING_FILE, rotated_mnist.TEST_FILE):
            with archive.open(name, "w", force_zip64=True) as member:
                for _ in range(0, GIGABYTE, BLOCK):
                    member.write(b"0 " * (BLOCK // 2))


# -- damages ---------------------------------------------------------------------------------------------------------


def chosen(folder: Path, form: str, place: int) -> Path:
    """Return one file of a form."""
    files = sorted(path for path in (folder / form).rglob("*") if path.is_file() and path.name != ".lock")
    return files[at(place, len(files))]


def repack(folder: Path, how: str) -> None:
    """Pack the CIFAR-10 archive in another way, or with other contents."""
    path = folder / "binary" / cifar10.BINARY_ARCHIVE
    content = io.BytesIO()
    modes = {"xz": "w:xz", "bz2": "w:bz2", "plain": "w"}
    with tarfile.open(fileobj=content, mode=modes.get(how, "w:gz")) as archive:  # type: ignore[call-overload]
        if how in ("up", "absolute"):
            name = "../../../escaped" if how == "up" else str(folder.parent.parent / "escaped")
            archive.addfile(_member(name, 3), io.BytesIO(b"out"))
        for file in sorted((folder / "bin").iterdir()):
            if how == "links":
                member = tarfile.TarInfo(f"x/{file.name}")
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(member)
            else:
                archive.add(file, f"x/{file.name}")
            if how == "twice":
                archive.add(file, f"y/{file.name}")
    path.write_bytes(content.getvalue())
    if how == "xz flipped":
        path.write_bytes(lzma.compress(gzip.decompress(content.getvalue())))
        flip(path, 400_000, 3)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


PACKINGS = among("xz", "bz2", "plain", "up", "absolute", "links", "twice", "xz flipped")
PICKLES = {
    "code": evil_pickle,
    "memo": lambda: b"\x80\x02Nr" + struct.pack("<I", 1 << 28) + b".",
    "length": lambda: b"\x80\x02T" + struct.pack("<i", -5) + b".",
    "deep": lambda: b"(" * 100_000,
    "frame": lambda: b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b".",
    "bytes": lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "loop": lambda: b"\x80\x02]q\0h\0a.",
    "none": lambda: b"N.",
    "nothing": lambda: b"",
}


def put_pickle(folder: Path, name: str) -> None:
    """Replace a CIFAR-10 batch by another pickle."""
    (folder / "pickled" / "cifar-10-batches-py" / "data_batch_1").write_bytes(PICKLES[name]())


def put_bomb(folder: Path, where: str) -> None:
    """Write a small file that unpacks to gigabytes."""
    if where == "idx":
        os.replace(folder / "bomb.gz", folder / "idx" / mnist.IDX_FILES[0])
    elif where == "rotated":
        os.replace(folder / "bomb.zip", folder / "stored" / rotated_mnist.ARCHIVE)
    elif where == "wheel":
        os.replace(folder / "bomb.zip", folder / "wheel" / mnist.WHEEL)


AMAT = ("", "nan " * 785, "1 2 3\n", "x", "0 " * 784 + "11\n", "1e999 " * 785, "0 " * 784 + "0.5\n", "\0" * 1000)


def put_amat(folder: Path, text: str) -> None:
    """Replace the numbers of rotated MNIST by other text."""
    for name in (rotated_mnist.TRAINING_FILE, rotated_mnist.TEST_FILE):
        (folder / "stored" / name).write_text(text)


# -- attempts --------------------------------------------------------------------------------------------------------


def load(folder: Path, healthy: Path) -> None:
    """List every form with ``coattend data list`` and load it; the dataset must be that of the healthy file."""
    expect_small()
    for form in DATA_SETS:
        os.environ["COATTEND_DATA"] = str(folder / form)
        command("data", "list")
    for form, name in {**DATA_SETS, "stored": "rotated-mnist" if _has_rotated(folder) else "mnist"}.items():
        dataset = load_data(name, folder / form)
        expected = load_data(DATA_SETS[form], healthy / form)
        for split in ("train", "valid", "test"):
            found, wanted = getattr(dataset, split), getattr(expected, split)
            if not (found.images.equal(wanted.images) and found.labels.equal(wanted.labels)):
                raise SilentAcceptanceError(f"{form} was read with other {split} images")


def _has_rotated(folder: Path) -> bool:
    return any((folder / "stored").glob("mnist_*"))


KIND = Kind(
    share=100,
    prepare=prepare,
    damages={
        "bomb": Damage(each(among("idx", "rotated", "wheel")), put_bomb),
        "amat": Damage(each(among(*AMAT)), put_amat),
        "pickle": Damage(each(among(*PICKLES)), put_pickle),
        "repack": Damage(each(PACKINGS), repack),
        "forge": Damage(
            each(among("train_images", "classes", "provenance", "sha256"), among(*NPY_HEADERS)),
            lambda folder, array, header: forge(folder / "stored" / "mnist" / "original.npz", array, header),
        ),
        "replace": Damage(
            each(FORMS, PLACES, among(*CONTENTS)),
            lambda folder, form, place, content: replace(chosen(folder, form, place), content),
        ),
        "cut": Damage(
            each(FORMS, PLACES, PLACES), lambda folder, form, which, place: cut(chosen(folder, form, which), place)
        ),
        "flip": Damage(
            each(FORMS, PLACES, PLACES, BITS),
            lambda folder, form, which, place, bit: flip(chosen(folder, form, which), place, bit),
        ),
    },
    attempts={"load": load},
)
