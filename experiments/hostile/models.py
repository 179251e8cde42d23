"""Model files: safetensors with the options of the network in their header."""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from hypothesis import strategies as st
from torch import Tensor

import coattend as ca
from experiments.hostile.examples import MODEL, digit, trained_run
from experiments.hostile.kinds import Damage, Kind, SilentAcceptanceError, command
from experiments.hostile.mutations import (
    BITS,
    CONTENTS,
    DISPLACEMENTS,
    NAMES,
    PLACES,
    VALUES,
    among,
    at,
    cut,
    displace,
    each,
    edited,
    flip,
    replace,
)

FILE, IMAGE = "model.safetensors", "digit.png"
DTYPES = ("uint8", "bool", "int64", "float16", "bfloat16", "float64", "float8_e4m3fn", "complex64")
FIELDS = ("format", "format_version", "coattend_version", "model", "options", "preprocessing", "classes", "image_shape")
OPTIONS = (
    "width",
    "group",
    "num_classes",
    "in_channels",
    "dropout",
    "head",
    "relative",
    "name",
    "pretrained",
    "unknown",
)
HUGE_OPTIONS = (
    {"group": "C2000"},
    {"group": "C100000"},
    {"group": "D1000000000"},
    {"width": 3000},
    {"width": 10**9},
    {"width": 10**30},
    {"num_classes": 10**12},
    {"in_channels": 10**9},
    {"group": {"product": [[0] * 3] * 3, "planar": None, "name": "x"}},
    {"group": {"product": [[0]], "planar": [[[1e300, 0], [0, 1]]], "name": "x"}},
    {"relative": {"stages.0.layer2.conv": [0.0, 1.0]}},
    {"relative": {"stages": [10**9]}},
)


def prepare(folder: Path) -> None:
    """Make a trained network and an image for it."""
    run = trained_run(folder)
    (folder / FILE).write_bytes((run / "last.safetensors").read_bytes())
    digit(folder / IMAGE)


# -- damages ---------------------------------------------------------------------------------------------------------


def header_end(path: Path) -> int:
    """Return the position of the first number."""
    return 8 + int(struct.unpack("<Q", path.read_bytes()[:8])[0])


def flip_data(folder: Path, place: int, bit: int) -> None:
    """Flip a bit of a weight."""
    flip(folder / FILE, place, bit, start=header_end(folder / FILE))


def flip_header(folder: Path, place: int, bit: int) -> None:
    """Flip a bit of names, shapes, options or the length of the header."""
    flip(folder / FILE, place, bit, end=header_end(folder / FILE))


def rewrite(path: Path, metadata: dict[str, str], tensors: dict[str, Tensor], *, sealed: bool = False) -> None:
    """Write the safetensors file again: with its digest, or without one, as a hostile or an old file."""
    kept = {key: value for key, value in metadata.items() if sealed or key != "digest"}
    path.write_bytes(safetensors.torch.save(tensors, kept))


def parts(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return header and tensors of the file."""
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata()), {name: file.get_tensor(name) for name in sorted(file.keys())}


def edit_options(folder: Path, options: dict[str, Any]) -> None:
    """Replace the options of the network."""
    metadata, tensors = parts(folder / FILE)
    metadata["options"] = json.dumps({**json.loads(metadata["options"]), **options})
    rewrite(folder / FILE, metadata, tensors)


def edit_header(folder: Path, field: str, value: Any) -> None:
    """Replace or remove the text of one field."""
    metadata, tensors = parts(folder / FILE)
    metadata[field] = CONTENTS.get(value, value) if isinstance(value, str) else json.dumps(value)
    rewrite(folder / FILE, {k: v.encode("utf-8", "replace").decode() for k, v in metadata.items()}, tensors)


def drop_header(folder: Path, field: str) -> None:
    """Remove a field."""
    metadata, tensors = parts(folder / FILE)
    metadata.pop(field, None)
    rewrite(folder / FILE, metadata, tensors)


def edit_json_field(folder: Path, field: str, place: int, value: Any) -> None:
    """Replace a value inside a field that contains JSON."""
    metadata, _ = parts(folder / FILE)
    document = json.loads(metadata.get(field, "[0]"))
    edit_header(folder, field, edited(document, place, value) if document else value)


def change_tensor(folder: Path, place: int, how: str, argument: Any, sealed: bool = True) -> None:
    """Change type, shape, values or name of one tensor, or remove it."""
    metadata, tensors = parts(folder / FILE)
    name = list(tensors)[at(place, len(tensors))]
    tensor = tensors[name]
    if how == "dtype":
        tensors[name] = tensor.to(getattr(torch, argument))
    elif how == "fill":
        tensors[name] = torch.full_like(tensor.float(), argument).to(tensor.dtype)
    elif how == "transpose":
        tensors[name] = tensor.reshape(-1, *tensor.shape[:1]) if argument else tensor.flatten()[None]
    elif how == "drop":
        del tensors[name]
    elif how == "rename":
        tensors[argument or "other"] = tensors.pop(name)
    elif how == "swap":
        same = [n for n, t in tensors.items() if n != name and t.shape == tensor.shape and t.dtype == tensor.dtype]
        if same:
            tensors[name], tensors[same[0]] = tensors[same[0]].clone(), tensor.clone()
    rewrite(folder / FILE, metadata, tensors, sealed=sealed)


def retype_all(folder: Path, dtype: str) -> None:
    """Convert the whole network to another type."""
    metadata, tensors = parts(folder / FILE)
    retyped = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    rewrite(folder / FILE, metadata, retyped, sealed=True)


MISFITS = st.one_of(  # wrong whatever a digest says
    each(PLACES, st.just("dtype"), among("uint8", "bool", "int64", "float8_e4m3fn", "complex64")),
    each(PLACES, st.just("fill"), among(float("nan"), float("inf"), -float("inf"))),
    each(PLACES, st.just("transpose"), among(0, 1)),
    each(PLACES, st.just("drop"), st.none()),
    each(PLACES, st.just("rename"), among("x", "stages")),
)
CHANGES = st.one_of(
    MISFITS,
    each(PLACES, st.just("dtype"), among("float16", "bfloat16", "float64")),
    each(PLACES, st.just("fill"), among(0.0, 1e38)),
    each(PLACES, st.just("rename"), st.just("extra.x")),
    each(PLACES, st.just("swap"), st.none()),
)


# -- attempts --------------------------------------------------------------------------------------------------------


def unchanged(path: Path, healthy: Path) -> None:
    """Return whether an accepted file has every number of the healthy one, bit for bit."""
    (_, found), (_, expected) = parts(path), parts(healthy)
    different = [name for name in expected if name not in found or not same_bits(found[name], expected[name])]
    different += [name for name in found if name not in expected]
    if different:
        raise SilentAcceptanceError(f"accepted with other numbers in {', '.join(different[:3])}")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return equality of bits: -0 differs from 0, and NaN equals itself."""
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def load(folder: Path, healthy: Path) -> None:
    """Load as a network, whose tensors must be those of the healthy file."""
    found, expected = ca.load_model(folder / FILE).state_dict(), ca.load_model(healthy / FILE).state_dict()
    if set(found) != set(expected) or not all(same_bits(found[name], expected[name]) for name in expected):
        raise SilentAcceptanceError("load_model returned a network with other weights")


def load_into(folder: Path, healthy: Path) -> None:
    """Load into an existing network."""
    ca.load_model(folder / FILE, into=ca.create_model(MODEL))
    unchanged(folder / FILE, healthy / FILE)


def check(folder: Path, healthy: Path) -> None:
    """Run ``coattend check``."""
    command("check", folder / FILE)
    unchanged(folder / FILE, healthy / FILE)


def predict(folder: Path, healthy: Path) -> None:
    """Run ``coattend predict``."""
    command("predict", folder / FILE, folder / IMAGE)
    unchanged(folder / FILE, healthy / FILE)


def evaluate(folder: Path, healthy: Path) -> None:
    """Run ``coattend evaluate`` on a few images."""
    command("evaluate", folder / FILE, "--data", folder / "few.npz")
    unchanged(folder / FILE, healthy / FILE)


def certify(folder: Path, healthy: Path) -> None:
    """Run ``coattend export`` to a file with a certificate."""
    command("export", folder / FILE, "--to", folder / "certified.safetensors")
    unchanged(folder / FILE, healthy / FILE)


KIND = Kind(
    share=270,
    prepare=prepare,
    damages={
        "displace": Damage(each(DISPLACEMENTS), lambda folder, what: displace(folder / FILE, what)),
        "drop_header": Damage(each(among(*FIELDS)), drop_header),
        "retype_all": Damage(each(among(*DTYPES)), retype_all),
        "huge_options": Damage(each(among(*HUGE_OPTIONS)), edit_options),
        "cut": Damage(each(PLACES), lambda folder, place: cut(folder / FILE, place)),
        "replace": Damage(each(among(*CONTENTS)), lambda folder, content: replace(folder / FILE, content)),
        "flip_header": Damage(each(PLACES, BITS), flip_header),
        "edit_header": Damage(each(among(*FIELDS), among(*CONTENTS, *NAMES)), edit_header),
        "edit_json_field": Damage(
            each(among("options", "preprocessing", "classes", "image_shape", "recipe"), PLACES, VALUES),
            edit_json_field,
        ),
        "edit_options": Damage(each(st.dictionaries(among(*OPTIONS), VALUES, min_size=1, max_size=2)), edit_options),
        "change_tensor": Damage(CHANGES, change_tensor),
        "misfit": Damage(MISFITS, partial(change_tensor, sealed=False)),
        "flip_data": Damage(each(PLACES, BITS), flip_data),
    },
    attempts={
        "load": load,
        "load_into": load_into,
        "check": check,
        "predict": predict,
        "evaluate": evaluate,
        "certify": certify,
    },
)
