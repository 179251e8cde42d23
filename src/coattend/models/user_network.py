"""Networks of the user's own: any function or class ``module:name`` that returns a torch module."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from coattend.groups import FiniteGroup, get_group
from coattend.models.blocks import Blocks
from coattend.models.network import EquivariantNetwork

ADDRESS = re.compile(r"(?P<key>[A-Za-z_][\w.]*:[A-Za-z_]\w*)(?::(?P<options>.*))?")
GIVEN = "given"
OF_THE_DATA = {"num_classes": 2, "in_channels": 3}
TAKEN = {"layers", "group", "relative", *Blocks.__dataclass_fields__}


class UserNetwork(EquivariantNetwork):
    """A module of the user's own in the form that training, files and reports expect.

    Its group is the largest of its layers', or that of its attribute ``group``; without any it is a plain network.
    """

    def __init__(self, module: nn.Module, num_classes: int, in_channels: int) -> None:
        super().__init__(
            group_of(module),
            [module],
            nn.Identity(),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(),
            feature_reductions=(),
        )

    @property
    def module(self) -> nn.Module:
        """The module as the user built it."""
        return self.stages[0]


def group_of(module: nn.Module) -> FiniteGroup:
    """Return the group of a module: its own, else the largest of its layers', else the trivial one."""
    own = getattr(module, "group", None)
    groups = [own] if isinstance(own, FiniteGroup) else [getattr(layer, "group", None) for layer in module.modules()]
    known = [group for group in groups if isinstance(group, FiniteGroup)]
    return max(known, key=lambda group: group.order, default=get_group("z2"))


def split_address(name: str) -> tuple[str, str] | None:
    """Return ``module:function`` and the options after it; None for the name of a registered network.

    >>> split_address("my_networks:small:width=8"), split_address("p4cnn:width=8")
    (('my_networks:small', 'width=8'), None)
    """
    match = ADDRESS.fullmatch(name)
    if match is None or match["key"].rpartition(":")[2] + "=" in name:
        return None
    return match["key"], match["options"] or ""


def import_definition(address: str, trusted: bool) -> Callable[..., Any]:
    """Import ``module:name``; unless ``trusted``, only from the current folder.

    A file of weights names what builds its network: it must not make this process import any module there is, nor call
    any function of one that has been imported.
    """
    module_name, _, attribute = address.partition(":")
    if module_name == GIVEN:
        raise ValueError(
            f"the network was trained as a module, a {attribute}, and nothing says how to build it; call "
            "coattend.models.register_module(module) first, or train a function that builds it."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not trusted and not _is_below(module_name, Path(here)):
        raise ValueError(
            f"the network is built by {address}, which is not in this folder; run this where {module_name} is, or "
            f"import it and call coattend.models.register_module({attribute}) first."
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{module_name} of {address} cannot be imported ({error}); run this in its folder.") from error
    definition = getattr(module, attribute, None)
    if not callable(definition):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"{module_name} has no function or class {attribute!r}; it has {', '.join(known) or 'none'}.")
    return definition


def _is_below(module_name: str, folder: Path) -> bool:
    """Return whether a module is in a folder or its packages; nothing outside of the folder is imported to find out."""
    parts = module_name.split(".")  # to find a.b imports a
    return all(_has_origin_below(".".join(parts[: number + 1]), folder) for number in range(len(parts)))


def _has_origin_below(module_name: str, folder: Path) -> bool:
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None or not spec.has_location:  # the origin of frozen modules is no path
        return False
    return Path(spec.origin).resolve().is_relative_to(folder.resolve())


def builder_of(definition: Callable[..., Any], address: str) -> Callable[..., UserNetwork]:
    """Return a builder for the registry; its options are the parameters of the user's function that have defaults.

    ``num_classes`` and ``in_channels`` are passed if the function takes them.
    """
    parameters = inspect.signature(definition).parameters
    passed = [name for name in OF_THE_DATA if name in parameters]
    options = {
        name: parameter
        for name, parameter in parameters.items()
        if name not in (*OF_THE_DATA, *TAKEN) and parameter.default is not parameter.empty
    }
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]  # fmt: skip  # noqa: E501
    missing = [name for name in needed if name not in OF_THE_DATA]
    if missing:
        raise ValueError(
            f"{address} needs {', '.join(missing)}; expected a function of num_classes, in_channels and options with "
            "defaults, which returns a torch module."
        )

    def build(layers: Blocks, num_classes: int = 2, in_channels: int = 3, **own: Any) -> UserNetwork:
        of_the_data = {"num_classes": num_classes, "in_channels": in_channels}
        module = definition(**{name: of_the_data[name] for name in passed}, **own)
        return wrapped(module, address, num_classes, in_channels)

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fixed = [inspect.Parameter("layers", positional)]
    fixed += [inspect.Parameter(name, positional, default=default) for name, default in OF_THE_DATA.items()]
    named = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values()]
    build.__signature__ = inspect.Signature([*fixed, *named])  # type: ignore[attr-defined]
    return build


def check_user_options(address: str, options: Mapping[str, Any]) -> None:
    """Refuse options of the library's networks, which a function of the user's own does not get."""
    ignored = sorted({*options} & (TAKEN - {"relative"}))
    if ignored:
        raise ValueError(
            f"{address} does not get the {'options' if len(ignored) > 1 else 'option'} {', '.join(ignored)}, which the "
            "networks of coattend have; give the function a parameter of another name, such as symmetry instead of "
            "group."
        )


def builder_of_copies(module: nn.Module) -> Callable[..., UserNetwork]:
    """Return a builder of copies of a module, with the weights it has."""

    def build(layers: Blocks, num_classes: int = 2, in_channels: int = 3) -> UserNetwork:
        return wrapped(copy.deepcopy(module), address_of_module(module), num_classes, in_channels)

    return build


def wrapped(module: object, address: str, num_classes: int, in_channels: int) -> UserNetwork:
    """Return a module as a network; raise if it is none."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"{address} must return a torch module, got {type(module).__name__}.")
    if next(module.parameters(), None) is None:
        raise ValueError(f"{address} returned a {type(module).__name__} without parameters; there is nothing to train.")
    return UserNetwork(module, num_classes, in_channels)


def address_of_module(module: nn.Module) -> str:
    """Return the name of a network that was passed as a module, which other processes cannot build."""
    return f"{GIVEN}:{type(module).__name__}"


def address_of(definition: Any) -> str:
    """Return ``module:name`` of a function or class."""
    return f"{definition.__module__}:{definition.__qualname__.replace('<locals>.', '').replace('.', '_')}"
