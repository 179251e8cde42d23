"""Networks as files: safetensors with the arguments that build them."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from coattend._files import checked_path, write_whole
from coattend.groups import FiniteGroup, GroupSequence
from coattend.models import hub
from coattend.models.container import Stored, packed, read_header, read_tensors, require_finite
from coattend.models.network import EquivariantNetwork, ModelConfig
from coattend.models.options import Options, decoded_options, differing_options, encoded_option
from coattend.models.registry import MODELS, build_network, model_entry, network_skeleton
from coattend.version import __version__

FORMAT = "coattend-model"
FORMAT_VERSION = 1
EXTRA = "extra."  # tensors that are not the network's, for example those of its preprocessing
FLOATING = ("F16", "BF16", "F32", "F64")
OF_TRAINING_ONLY = {"dropout", "input_dropout", "init_std", "norm_momentum", "diagonal"}


def save_model(
    model: nn.Module,
    path: str | Path,
    *,
    metadata: Mapping[str, str] | None = None,
    extra_tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights, the arguments that build the network, and the library's version into one safetensors file.

    ``metadata`` and ``extra_tensors`` are stored with it; :func:`read_model_file` returns them. The header also holds a
    digest of everything in the file, which is verified on loading; equal networks give equal bytes. The file appears
    when it is complete.
    """
    target = checked_path(path)
    write_whole(target, model_file_content(model, metadata or {}, extra_tensors or {}))


def model_file_content(model: nn.Module, metadata: Mapping[str, str], extra_tensors: Mapping[str, Tensor]) -> bytes:
    """Return what :func:`save_model` writes."""
    if not isinstance(model, EquivariantNetwork) or model.config is None:
        raise ValueError(
            f"save_model writes networks built by create_model, got {type(model).__name__}, which a file could not "
            "rebuild; register the function that builds it with coattend.register_model and create it by its name, "
            "or save its state_dict."
        )
    if not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must map strings to strings, got {metadata!r}.")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata must map strings to strings, got {key!r}: {value!r}; json.dumps writes others.")
    config, state = model.config, model.state_dict()
    _require_saveable(config, state)
    header = {
        **({} if model.image_shape is None else {"image_shape": json.dumps(model.image_shape)}),
        **metadata,
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "coattend_version": __version__,
        "model": config.model,
        "options": json.dumps({key: encoded_option(value) for key, value in config.options.items()}),
    }
    return packed({**state, **{f"{EXTRA}{name}": tensor for name, tensor in extra_tensors.items()}}, header)


def _require_saveable(config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    if any(tensor.is_meta for tensor in state.values()):
        raise ValueError(
            "the network is on the meta device and has no weights to save; move it with to_empty and load some."
        )
    expected = network_skeleton(model_entry(config.model), config.options).state_dict()
    wrong = _differences(expected, {key: tuple(tensor.shape) for key, tensor in state.items()})
    if wrong:
        raise ValueError(
            f"save_model cannot write a {config.model} that was changed after create_model built it: {wrong}. Make "
            "weight norms and pruning permanent first, with torch.nn.utils.parametrize.remove_parametrizations or "
            "torch.nn.utils.prune.remove; save other changes as model.state_dict()."
        )
    require_finite(state, config.model)


def push_model(
    model: nn.Module,
    address: str,
    *,
    card: str = "",
    metadata: Mapping[str, str] | None = None,
    extra_tensors: Mapping[str, Tensor] | None = None,
    private: bool = False,
) -> str:
    """Write a network to ``hf://owner/name`` on the Hugging Face Hub with a model card; return the commit's address.

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
    config = _config(path, metadata)
    skeleton = _skeleton(path, config)
    if isinstance(into, EquivariantNetwork) and into.config is not None:
        _require_same_function(path, config, into.config)
    weights = {key: value for key, value in stored.items() if not key.startswith(EXTRA)}
    expected = (skeleton if into is None else into).state_dict()
    wrong = _differences(expected, {key: value.shape for key, value in weights.items()})
    wrong = wrong or _foreign_types(expected, weights)
    if wrong:
        raise ValueError(
            f"{path} holds {config.model} ({metadata['options'][:200]}), which does not fit the network: {wrong}. "
            + ("Build the network with the same name and options." if into is not None else "The file is damaged.")
        )
    tensors, extra = _without_extra(read_tensors(path, metadata))
    model = build_network(model_entry(config.model), config.options) if into is None else into
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if into is None and len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors)
    if isinstance(model, EquivariantNetwork):
        model.image_shape = _image_shape(path, metadata)
    return model, metadata, extra  # type: ignore[return-value]


def read_model_file(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor], dict[str, Tensor]]:
    """Return metadata, weights and extra tensors of a file written by :func:`save_model`."""
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
    """Return metadata and stored tensors of a file in a format that this version reads."""
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


def _config(path: Path, metadata: Mapping[str, str]) -> ModelConfig:
    if metadata["model"] not in MODELS:
        raise ValueError(
            f"{path} holds a network that is not registered: {MODELS.unknown(metadata['model'])} Import the module "
            "that registers it first."
        )
    try:
        options = {**decoded_options(metadata["options"])}
        group: str | FiniteGroup = {**model_entry(metadata["model"]).defaults, **options}["group"]
        if not GroupSequence.of(group).is_exact:
            options.setdefault("filters", "bicubic")  # a file written before filters could be chosen
        return ModelConfig(metadata["model"], options)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unbuildable(path, error) from error


def _skeleton(path: Path, config: ModelConfig) -> EquivariantNetwork:
    try:
        return network_skeleton(model_entry(config.model), config.options)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise _unbuildable(path, error) from error


def _unbuildable(path: Path, error: Exception) -> ValueError:
    reason = str(error).partition("\n")[0][:300].rstrip(".")
    return ValueError(
        f"the header of {path} describes a network that cannot be built: {reason}. The file is damaged, or names "
        "what is not registered here."
    )


def _image_shape(path: Path, metadata: Mapping[str, str]) -> tuple[int, int, int] | None:
    if "image_shape" not in metadata:
        return None
    try:
        channels, height, width = (operator.index(n) for n in json.loads(metadata["image_shape"]))
    except (ValueError, TypeError, RecursionError) as error:
        shown = metadata["image_shape"][:40]
        raise ValueError(f"the header of {path} gives {shown!r} as image_shape; the file is damaged.") from error
    return channels, height, width


def _require_same_function(path: Path, config: ModelConfig, other: ModelConfig) -> None:
    """Refuse networks of equal shapes that compute something else: over a group that turns the other way, say."""
    builder, into = model_entry(config.model).builder, model_entry(other.model).builder
    if builder is not into:
        different = [f"it is a {builder.__name__} and not a {into.__name__}"]
    else:
        ours, theirs = _computed_with(config), _computed_with(other)
        keys = {*differing_options(ours, theirs), *differing_options(theirs, ours)}
        different = [f"{key} is {_text(ours.get(key))} instead of {_text(theirs.get(key))}" for key in sorted(keys)]
    if different:
        raise ValueError(
            f"{path} holds {config.model}, which does not fit the network: {_shortened(different)}. Build the network "
            "with the same name and options."
        )


def _computed_with(config: ModelConfig) -> Options:
    options = {**model_entry(config.model).defaults, **config.options}
    computed = {key: value for key, value in options.items() if key not in OF_TRAINING_ONLY}
    return {**computed, "group": GroupSequence.of(options["group"])}


def _text(value: object) -> str:
    return str(value)


def _differences(expected: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return how names and shapes of tensors differ from those of a network; empty if they do not."""
    wrong = [f"{name} is missing" for name in expected if name not in shapes]
    wrong += [f"{name} is not part of it" for name in shapes if name not in expected]
    wrong += [
        f"{name} is {shapes[name]} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in shapes and shapes[name] != tuple(expected[name].shape)
    ]
    return _shortened(wrong)


def _foreign_types(expected: Mapping[str, Tensor], stored: Mapping[str, Stored]) -> str:
    """Return which weights are of types that hold none; loading would cast them silently."""
    return _shortened(
        f"{name} is stored as {stored[name].dtype} instead of {' or '.join(allowed)}"
        for name, tensor in expected.items()
        if stored[name].dtype not in (allowed := FLOATING if tensor.is_floating_point() else ("I64",))
    )


def _shortened(wrong: Iterable[str]) -> str:
    wrong = list(wrong)
    return "; ".join(wrong if len(wrong) <= 3 else [*wrong[:3], f"and {len(wrong) - 3} more"])
