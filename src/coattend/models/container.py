"""Containers of tensors: safetensors files with a digest in the header, equal bytes for equal content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

DIGEST = "digest"


class Stored(NamedTuple):
    """Type and shape of a tensor in a file, as its header gives them: ``("F32", (10, 1, 3, 3))``."""

    dtype: str
    shape: tuple[int, ...]


def packed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return tensors, metadata and their digest as the content of a file."""
    whole: dict[str, Tensor] = {}
    stored: set[int] = set()
    for name, tensor in tensors.items():
        whole[name] = tensor.detach().cpu().contiguous()
        if (memory := whole[name].untyped_storage().data_ptr()) in stored:  # of one module under two names
            whole[name] = whole[name].clone()
        stored.add(memory)
    content = safetensors.torch.save(whole, {**metadata, DIGEST: content_digest(whole, metadata)})
    # safetensors writes metadata in random order; the offsets in a header count from its end.
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]


def content_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the metadata and of names, types, shapes and bytes of the tensors, sorted by name."""
    described = {key: metadata[key] for key in sorted(metadata) if key != DIGEST}
    total = hashlib.sha256(json.dumps(described).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"\n{json.dumps(name)} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_header(path: Path) -> tuple[dict[str, str], dict[str, Stored]]:
    """Return the metadata of a file and the types and shapes of its tensors, without reading the tensors."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            stored = {name: Stored(s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
            return file.metadata() or {}, stored
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}); copy or download it again.") from error


def read_tensors(path: Path, metadata: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors, which must be finite and match the digest; files of early versions have no digest."""
    with safetensors.safe_open(path, framework="pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if DIGEST in metadata and content_digest(tensors, metadata) != metadata[DIGEST]:
        raise ValueError(
            f"the content of {path} does not match the digest in its header: it is damaged, or was changed after it "
            "was written; copy or download it again."
        )
    require_finite(tensors, str(path))
    return tensors


def require_finite(tensors: Mapping[str, Tensor], whose: str) -> None:
    """Raise if a tensor holds NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} of {whose} holds NaN or infinity; train the network again, or use an older file.")
