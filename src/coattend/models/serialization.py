"""Networks on disk: safetensors with the arguments that build them."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from coattend._files import checked_path, write_whole
from coattend.models import hub
from coattend.models.container import Stored, packed, read_header, read_tensors, require_finite
from coattend.models.fit import differences, foreign_types, require_same_function
from coattend.models.network import EquivariantNetwork
from coattend.models.options import decoded_options, encoded_option
from coattend.models.registry import build_network, network_skeleton
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

    ``metadata`` and ``extra_tensors`` travel with it; :func:`read_model_file` gives them back. The header also holds a
    digest of everything in the file, which is verified on loading; equal networks give equal bytes.
    """
    target = checked_path(path)
    write_whole(target, model_file_content(model, metadata or {}, extra_tensors or {}))


def model_file_content(model: nn.Module, metadata: Mapping[str, str], extra_tensors: Mapping[str, Tensor]) -> bytes:
    """What :func:`save_model` writes."""
    if not isinstance(model, EquivariantNetwork) or model.config is None:
        raise ValueError(
            f"save_model writes networks built by create_model, got {type(model).__name__}; "
            "use safetensors.torch.save_model or torch.save(model.state_dict()) for others."
        )
    if not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must map strings to strings, got {metadata!r}.")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata must map strings to strings, got {key!r}: {value!r}; json.dumps writes others.")
    name, options = model.config["model"], model.config["options"]
    state = model.state_dict()
    _require_saveable(name, options, state)
    header = {
        **({} if model.image_shape is None else {"image_shape": json.dumps(model.image_shape)}),
        **metadata,
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "coattend_version": __version__,
        "model": name,
        "options": json.dumps({key: encoded_option(value) for key, value in options.items()}),
    }
    return packed({**state, **{f"{EXTRA}{name}": tensor for name, tensor in extra_tensors.items()}}, header)


def _require_saveable(name: str, options: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    if any(tensor.is_meta for tensor in state.values()):
        raise ValueError(
            "the network is on the meta device and has no weights to save; move it with to_empty and load some."
        )
    expected = network_skeleton(name, options).state_dict()
    wrong = differences(expected, {key: tuple(tensor.shape) for key, tensor in state.items()})
    if wrong:
        raise ValueError(
            f"save_model cannot write a {name} that was changed after create_model built it: {wrong}. Make weight "
            "norms and pruning permanent first, with torch.nn.utils.parametrize.remove_parametrizations or "
            "torch.nn.utils.prune.remove; save other changes as model.state_dict()."
        )
    require_finite(state, name)


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
    """Rebuild a network written by :func:`save_model`; with ``into``, load its weights into an existing network.

    ``path`` may be ``hf://owner/name``, a repository on the Hugging Face Hub written by :func:`push_model`. The network
    is in training mode, as create_model returns it; call ``.eval()`` to use it. ``into`` must compute what the file's
    network computes: options that act only in training, such as dropout, may differ.
    """
    return load_model_file(path, into)[0]


def load_model_file(
    path: str | Path, into: nn.Module | None = None
) -> tuple[EquivariantNetwork, dict[str, str], dict[str, Tensor]]:
    """Return the network as :func:`load_model` does, with the metadata and extra tensors of its file."""
    if into is not None and not isinstance(into, nn.Module):
        raise ValueError(f"load_model(into=...) expects a network, got {type(into).__name__}.")
    path = _located(path)
    metadata, stored = _header(path)
    name, options = metadata["model"], _options(path, metadata)
    described = _skeleton(path, name, options)
    fits = described if into is None else into
    if isinstance(into, EquivariantNetwork) and into.config is not None:
        require_same_function(path, name, options, into.config)
    found = {key: value for key, value in stored.items() if not key.startswith(EXTRA)}
    expected = fits.state_dict()
    wrong = differences(expected, {key: value.shape for key, value in found.items()}) or foreign_types(expected, found)
    if wrong:
        raise ValueError(
            f"{path} holds {name} ({metadata['options'][:200]}), which does not fit the network: {wrong}. "
            + ("Build the network with the same name and options." if into is not None else "The file is damaged.")
        )
    tensors, extra = _without_extra(read_tensors(path, metadata))
    model = build_network(name, options) if into is None else into
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if into is None and len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors)
    if isinstance(model, EquivariantNetwork):
        model.image_shape = _image_shape(path, metadata)
    return model, metadata, extra  # type: ignore[return-value]


def read_model_file(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor], dict[str, Tensor]]:
    """Metadata, weights and extra tensors of a file written by :func:`save_model`."""
    path = _located(path)
    metadata, _ = _header(path)
    return metadata, *_without_extra(read_tensors(path, metadata))


def _without_extra(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    extra = {name.removeprefix(EXTRA): t for name, t in tensors.items() if name.startswith(EXTRA)}
    return {name: t for name, t in tensors.items() if not name.startswith(EXTRA)}, extra


def _located(path: str | Path) -> Path:
    path = hub.download(str(path)) if hub.is_hub_address(path) else checked_path(path)
    if not os.path.isfile(path):
        what = f"{path} is a folder" if os.path.isdir(path) else f"there is no file {path}"
        raise ValueError(f"{what}; expected a .safetensors file written by save_model.")
    return path


def _header(path: Path) -> tuple[dict[str, str], dict[str, Stored]]:
    """Metadata and stored tensors of a file in a format that this version reads."""
    metadata, stored = read_header(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file, but not one written by coattend.save_model; "
            "coattend.models.convert_state_dict reads weights of G-CNNs trained elsewhere."
        )
    missing = [key for key in ("format_version", "model", "options") if key not in metadata]
    version = metadata.get("format_version", "")
    if missing or not (version.isascii() and version.isdigit()):
        what = f"lacks {' and '.join(missing)}" if missing else f"gives {version[:20]!r} as its format"
        raise ValueError(f"the header of {path} {what}; the file is damaged, copy or download it again.")
    if int(version[:9]) > FORMAT_VERSION:
        raise ValueError(
            f"{path} was written by coattend {metadata.get('coattend_version', 'of unknown version')} in format "
            f"{version[:9]}, this is coattend {__version__} and reads up to format {FORMAT_VERSION}; upgrade the "
            "library."
        )
    return metadata, stored


def _options(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        return decoded_options(metadata["options"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unbuildable(path, error) from error


def _skeleton(path: Path, name: str, options: Mapping[str, Any]) -> EquivariantNetwork:
    try:
        return network_skeleton(name, options)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise _unbuildable(path, error) from error


def _unbuildable(path: Path, error: Exception) -> ValueError:
    reason = str(error).partition("\n")[0][:300].rstrip(".")
    return ValueError(f"the header of {path} describes a network that cannot be built: {reason}. The file is damaged.")


def _image_shape(path: Path, metadata: Mapping[str, str]) -> tuple[int, int, int] | None:
    if "image_shape" not in metadata:
        return None
    try:
        channels, height, width = (operator.index(n) for n in json.loads(metadata["image_shape"]))
    except (ValueError, TypeError, RecursionError) as error:
        shown = metadata["image_shape"][:40]
        raise ValueError(f"the header of {path} gives {shown!r} as image_shape; the file is damaged.") from error
    return channels, height, width
