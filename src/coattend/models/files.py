"""Networks on disk: safetensors with the arguments that build them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor, nn

from coattend.groups import FiniteGroup, get_group
from coattend.models import hub
from coattend.models.network import EquivariantNetwork
from coattend.models.registry import create_model
from coattend.version import __version__

FORMAT = "coattend-model"
FORMAT_VERSION = 1


EXTRA = "extra."  # tensors that are not the network's: what its input has to go through, for example


def save_model(
    model: nn.Module,
    path: str | Path,
    *,
    metadata: Mapping[str, str] | None = None,
    extra_tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights, building arguments and library version into one safetensors file, whole or not at all.

    ``metadata`` and ``extra_tensors`` travel with it; :func:`read_model_file` gives them back.
    """
    write_atomically(Path(path), model_file_content(model, metadata or {}, extra_tensors or {}))


def model_file_content(model: nn.Module, metadata: Mapping[str, str], extra_tensors: Mapping[str, Tensor]) -> bytes:
    """What :func:`save_model` writes."""
    if not isinstance(model, EquivariantNetwork) or model.config is None:
        raise ValueError(
            f"save_model writes networks built by create_model, got {type(model).__name__}; "
            "use safetensors.torch.save_model or torch.save(model.state_dict()) for others."
        )
    options = {key: encoded_option(value) for key, value in model.config["options"].items()}
    header = {
        **metadata,
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "coattend_version": __version__,
        "model": model.config["model"],
        "options": json.dumps(options),
    }
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    tensors |= {f"{EXTRA}{name}": tensor.contiguous() for name, tensor in extra_tensors.items()}
    return safetensors.torch.save(tensors, header)


def push_model(
    model: nn.Module,
    address: str,
    *,
    card: str = "",
    metadata: Mapping[str, str] | None = None,
    extra_tensors: Mapping[str, Tensor] | None = None,
    private: bool = False,
) -> str:
    """Write a network to ``hf://owner/name`` on the Hugging Face Hub, with a model card; returns the commit's address.

    What :func:`save_model` would write becomes ``model.safetensors``; :func:`load_model` reads it by the same address.
    Needs the extra ``coattend[hub]`` and an account that ``hf auth login`` knows.
    """
    content = model_file_content(model, metadata or {}, extra_tensors or {})
    usage = f'\n\n```python\nimport coattend\n\nmodel = coattend.load_model("{address}").eval()\n```\n'
    return hub.upload(address, content, f"---\nlibrary_name: coattend\n---\n{card}{usage}", private)


def load_model(path: str | Path, into: nn.Module | None = None) -> EquivariantNetwork:
    """Rebuild a network written by :func:`save_model`; with ``into``, load its weights into a network you have.

    ``path`` may be ``hf://owner/name``, a repository on the Hugging Face Hub written by :func:`push_model`.
    """
    metadata, tensors, _ = read_model_file(path)
    model = create_model(metadata["model"], **_decoded_options(metadata)) if into is None else into
    expected = model.state_dict()
    wrong = _differences(expected, tensors)
    if wrong:
        whose = f"{metadata['model']} ({metadata['options']})"
        raise ValueError(
            f"{path} holds {whose}, which does not fit the network: {'; '.join(wrong)}. "
            + ("Build the network with the same name and options." if into is not None else "The file is damaged.")
        )
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if into is None and len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors)
    return model  # type: ignore[return-value]


def read_model_file(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor], dict[str, Tensor]]:
    """Metadata, weights and extra tensors of a file written by :func:`save_model`."""
    path = hub.download(str(path)) if hub.is_hub_address(path) else Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected a .safetensors file written by save_model.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); copy or download it again.") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file, but not one written by coattend.save_model; "
            "coattend.models.convert_state_dict reads p4 weights trained elsewhere."
        )
    if int(metadata["format_version"]) > FORMAT_VERSION:
        raise ValueError(
            f"{path} was written by coattend {metadata['coattend_version']} in format {metadata['format_version']}, "
            f"this is coattend {__version__} and reads up to format {FORMAT_VERSION}; upgrade the library."
        )
    extra = {name.removeprefix(EXTRA): t for name, t in tensors.items() if name.startswith(EXTRA)}
    return metadata, {name: t for name, t in tensors.items() if not name.startswith(EXTRA)}, extra


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one piece: a reader, or a crash, sees the old content or the new, never half of it."""
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into; make it first.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _differences(expected: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is not part of it" for name in found if name not in expected]
    wrong += [
        f"{name} is {tuple(found[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    return wrong if len(wrong) <= 3 else [*wrong[:3], f"and {len(wrong) - 3} more"]


def encoded_option(value: Any) -> Any:
    """A building argument for JSON: a group as its name where the name says all, else as its tables."""
    if not isinstance(value, FiniteGroup):
        return value
    if _is_named(value):
        return value.name
    planar = None if value.planar is None else value.planar.tolist()
    return {"product": value.product.tolist(), "planar": planar, "name": value.name}


def _is_named(group: FiniteGroup) -> bool:
    try:
        return get_group(group.name) == group
    except ValueError:
        return False


def _decoded_options(metadata: dict[str, str]) -> dict[str, Any]:
    options = json.loads(metadata["options"])
    for key, value in options.items():
        if isinstance(value, list):
            options[key] = tuple(value)
        elif key == "relative":
            options[key] = {layer: tuple(poses) for layer, poses in value.items()}
        elif isinstance(value, dict):
            options[key] = decoded_group(value)
    return options


def decoded_group(value: Any) -> FiniteGroup:
    """The group behind what :func:`encoded_option` made of it."""
    if isinstance(value, str):
        return get_group(value)
    return FiniteGroup(np.array(value["product"]), value["planar"], name=value["name"])
