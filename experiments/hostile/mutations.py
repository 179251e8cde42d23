"""Damage to any file: flipped bits, missing ends, foreign contents, JSON with other values."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from experiments.hostile.kinds import Arguments

CANARY = "COATTEND_FUZZ_CANARY"  # names a file that only code of a hostile file would write
BLOCK = 1 << 24
NAMES = ("", "x", "[/red]", "$x_$", "../../outside", "\u0000", "\ud800", "a" * 300)
NUMBERS = (0, -1, 1, 0.5, 1e9, 10**30, float("nan"), float("inf"))
MILLION = 1_000_000
# Places in a file or a list, in parts per million of its length. Hypothesis prefers small numbers: spread them out.
PLACES = st.integers(0, MILLION - 1).map(lambda number: number * 618_033 % MILLION)
BITS = st.integers(0, 7)
VALUES = st.sampled_from((None, True, *NUMBERS, *NAMES, [], {}, [0], [[1.5]], {"a": 1}, [None] * 3)) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
CONTENTS = {
    "nothing": "",
    "null": "null",
    "list": "[]",
    "object": "{}",
    "number": "0",
    "text": '"x"',
    "nonsense": "nonsense",
    "half": "{",
    "mark": "\ufeff{}",
    "deep lists": "[" * 100_000,
    "deep objects": '{"a":' * 50_000,
    "two lines": "[{}]\n[{}]",
}


class Touch:
    """An object whose unpickling creates the canary file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ[CANARY]}",)


def evil_pickle() -> bytes:
    """Return a pickle that runs a command."""
    return pickle.dumps(Touch())


def among(*choices: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for one of some values."""
    return st.sampled_from(choices)


def each(*parts: st.SearchStrategy[Any]) -> Arguments:
    """Return a strategy for one of some lists of arguments."""
    return st.tuples(*parts).map(list)


def at(place: int, length: int) -> int:
    """Return the index that a position refers to."""
    return place * length // MILLION


def flip(path: Path, place: int, bit: int, start: int = 0, end: int | None = None) -> None:
    """Flip one bit between two positions."""
    content = bytearray(path.read_bytes())
    end = len(content) if end is None else end
    content[start + at(place, end - start)] ^= 1 << bit
    path.write_bytes(content)


def cut(path: Path, place: int) -> None:
    """Remove the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: at(place, len(content))])


def replace(path: Path, content: str) -> None:
    """Replace a file by one of some contents."""
    path.write_text(CONTENTS[content], encoding="utf-8")


def displace(path: Path, what: str) -> None:
    """Replace a file by something that is not a file."""
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    elif what == "dangling":
        path.symlink_to(path.with_name("nowhere"))
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "zeros":
        path.symlink_to("/dev/zero")
    elif what == "memory":
        path.symlink_to("/proc/self/mem")


DISPLACEMENTS = among("folder", "loop", "dangling", "fifo", "zeros", "memory", "nothing")


def edited(document: Any, place: int, value: Any) -> Any:
    """Return a JSON document with one of its values, at any depth, replaced."""
    return _changed(document, place, lambda container, key: container.__setitem__(key, value))


def without(document: Any, place: int) -> Any:
    """Return a JSON document with one of its fields or items removed."""
    return _changed(document, place, lambda container, key: container.__delitem__(key))


def _changed(document: Any, place: int, change: Callable[[Any, Any], None]) -> Any:
    document = json.loads(json.dumps(document))
    places = list(_places(document))
    change(*places[at(place, len(places))])
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(document) if isinstance(document, dict) else range(min(1, len(document)))  # items are alike
    for key in keys:
        yield document, key
        if isinstance(document[key], (dict, list)):
            yield from _places(document[key])


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> str:
    """Return the header that numpy writes before the numbers of an array."""
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"


NPY_HEADERS = {  # what the arrays of an .npz may claim about themselves
    "huge": npy_header((10**12,)),
    "large": npy_header((1_500_000_000, 1, 1)),
    "beyond": npy_header((10**30, 1)),
    "negative": npy_header((-1, 28, 28)),
    "half": "{",
    "code": "__import__('os').system('touch x')",
    "object": npy_header((3,), "|O"),
    "text": npy_header((3,), "<U1000000000"),
    "no keys": "{}",
    "number": "3",
    "deep": "(" * 5000,
    "type": npy_header((3,), "zzz"),
}


def forge(path: Path, array: str, header: str, size: int = 1000) -> None:
    """Write an .npz with an array whose header contradicts its bytes, or whose bytes are endless zeros."""
    with np.load(path) as file:
        others: dict[str, Any] = {name: file[name] for name in file.files if name != array}
    np.savez(path, **others)
    text = NPY_HEADERS.get(header, header).encode() + b"\n"
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{array}.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text)
        for start in range(0, size, BLOCK):
            member.write(bytes(min(size - start, BLOCK)))
