"""The registry of networks: names, what they stand for, and the networks that they build."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, get_args

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from coattend._registry import Registry
from coattend._words import did_you_mean
from coattend.groups import FiniteGroup, GroupSequence
from coattend.models.blocks import Blocks, ConvBlock
from coattend.models.matching import Match, closest_widths
from coattend.models.network import EquivariantNetwork, ModelConfig
from coattend.models.options import Options, differing_options, verified_options, write_options
from coattend.models.paper import TABLE_1, Published
from coattend.models.restriction import restricted
from coattend.models.user_network import (
    UserNetwork,
    address_of,
    address_of_module,
    builder_of,
    builder_of_copies,
    import_definition,
    split_address,
)
from coattend.nn.observe import multiply_adds

Builder = TypeVar("Builder", bound=Callable[..., EquivariantNetwork])
SHARED = {f.name: f.default for f in fields(Blocks) if f.default is not MISSING and f.name != "groups"}
OF_THE_DATA = ("num_classes", "in_channels")
USER_IMAGE_SIZE = 32  # to check a network of the user's own on, where its images are not known


@dataclass(frozen=True)
class ModelEntry:
    """A registered network: what its name stands for, and what the paper prints about it.

    - title: what it is called in tables and pictures
    - dataset, image_size: the images that it is made for
    - builder: the family; called with :class:`Blocks` and the options of its signature
    - options: those that differ from the defaults of Blocks and of the builder, with the group
    - recipe: settings, "field=value", that this network changes in the default recipe of its dataset
    - published: its row of Table 1; None for a network that is not in the paper
    """

    name: str
    title: str
    dataset: str
    image_size: int
    builder: Callable[..., EquivariantNetwork]
    options: Options
    recipe: tuple[str, ...] = ()
    published: Published | None = None

    @property
    def group(self) -> str:
        """The name of the group."""
        group: FiniteGroup | str = self.options["group"]
        return group if isinstance(group, str) else group.name

    @property
    def defaults(self) -> Options:
        """All options with the values that the name stands for."""
        own = {p.name: p.default for p in _parameters(self.builder)[1:]}
        return {"group": None, **own, **SHARED, **self.options}

    @property
    def num_classes(self) -> int:
        """The number of classes unless an option says otherwise."""
        return int(self.defaults["num_classes"])

    @property
    def in_channels(self) -> int:
        """The channels of an image unless an option says otherwise."""
        return int(self.defaults["in_channels"])

    @property
    def error(self) -> float | None:
        """The published test error in percent."""
        return None if self.published is None else self.published.error

    @property
    def own_error(self) -> float | None:
        """The error of the authors' own run of a network by others."""
        return None if self.published is None else self.published.own_error

    @property
    def spread(self) -> float | None:
        """The published standard deviation of the error."""
        return None if self.published is None else self.published.spread

    @property
    def published_count(self) -> str | None:
        """The published number of parameters, as printed."""
        return None if self.published is None else self.published.count

    @property
    def note(self) -> str:
        """How the published count is reached."""
        return "" if self.published is None else self.published.note


MODELS: Registry[ModelEntry] = Registry("model")


def register_model(
    name: str | None = None,
    *,
    dataset: str,
    image_size: int,
    group: FiniteGroup | str,
    title: str | None = None,
    recipe: Sequence[str] = (),
    **options: Any,
) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a network under a name, by default that of the function it decorates.

    It decorates a function, or a subclass of :class:`EquivariantNetwork`, that takes :class:`Blocks` first, then
    ``num_classes``, ``in_channels`` and options of its own, all with defaults, and returns the network. Every field of
    Blocks (``group``, ``attention``, ``position``, ...) is an option of the network, too. ``options`` are those that
    the name stands for; one family can be registered under many names.

    Args:
        name: for :func:`create_model`, the command line and files.
        dataset: the dataset on which it is trained by default.
        image_size: height and width of the images.
        group: over which it is built unless an option says otherwise.
        title: for tables and pictures.
        recipe: settings such as ``"epochs=20"`` that it changes in the default recipe of the dataset.
        options: values of options other than their defaults.
    """

    def register(builder: Builder) -> Builder:
        key = builder.__name__ if name is None else name
        _check_signature(builder)
        row = TABLE_1.get(key)
        entry = ModelEntry(
            name=key,
            title=title or (key if row is None else row.title),
            dataset=dataset,
            image_size=image_size,
            builder=builder,
            options={"group": group, **options},
            recipe=tuple(recipe),
            published=row,
        )
        _check_known(entry, options)
        if not re.fullmatch(r"[\w.-]+", key):
            raise ValueError(f"a model's name consists of letters, digits, '_', '-' and '.', got {key!r}.")
        MODELS.add(key, entry, builder)
        return builder

    return register


def split_name(name: str) -> tuple[str, str]:
    """Return a model's name, or ``module:function``, and the text of the options after it."""
    if not isinstance(name, str):
        raise ValueError(f"expected a model's name such as 'p4cnn', got {name!r}; `coattend models` lists all.")
    own, _, options = name.partition(":")
    address = None if own in MODELS else split_address(name)
    return (own, options) if address is None else address


def model_entry(name: str) -> ModelEntry:
    """Return what a model's name stands for and what the paper prints about it; options after the name are ignored."""
    return MODELS[split_name(name)[0]]


def register_user_model(name: str, *, trusted: bool) -> None:
    """Register the network that ``module:function`` builds; do nothing for other names and those registered already.

    Unless ``trusted``, the module has to be in the current folder.
    """
    if not isinstance(name, str) or name.partition(":")[0] in MODELS:
        return
    address = split_address(name)
    if address is not None and address[0] not in MODELS:
        _add_user_model(address[0], builder_of(import_definition(address[0], trusted), address[0]))


def register_module(model: Callable[..., nn.Module] | nn.Module) -> str:
    """Register a function or class that builds a network, or one that is built; return its name."""
    if isinstance(model, nn.Module):
        key, builder = address_of_module(model), builder_of_copies(model)
    else:
        key = address_of(model)
        builder = builder_of(model, key)
    if key in MODELS:
        MODELS.remove(key)  # another of the same name, as in a notebook
    _add_user_model(key, builder)
    return key


def _add_user_model(key: str, builder: Callable[..., EquivariantNetwork]) -> None:
    title = key.rpartition(":")[2]
    MODELS.add(key, ModelEntry(key, title, "mini", USER_IMAGE_SIZE, builder, {"group": "z2"}), builder)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that match a pattern with wildcards: those of Table 1 in its order, then all others.

    Networks of the user's own, ``module:function``, have no name of their own and are not among them.

    >>> list_models("*p4m*")
    ['p4m_allcnn', 'a_p4m_allcnn', 'p4m_resnet44', 'a_p4m_resnet44']
    """
    if not isinstance(pattern, str):
        raise ValueError(f"list_models expects a pattern such as '*p4m*', got {pattern!r}.")
    return [name for name in MODELS if ":" not in name and fnmatch.fnmatchcase(name, pattern)]


def canonical_name(entry: ModelEntry, options: Options) -> str:
    """Return the one name of a network: that of its entry, with the options that differ, in alphabetical order."""
    text = write_options(differing_options(options, entry.defaults))
    return f"{entry.name}:{text}" if text else entry.name


def network_name(network: EquivariantNetwork) -> str:
    """Return the canonical name of a network without its classes and channels, which follow from the data."""
    if network.config is None:
        return type(network).__name__
    options = {key: value for key, value in network.config.options.items() if key not in OF_THE_DATA}
    return canonical_name(model_entry(network.config.model), options)


def build_network(entry: ModelEntry, options: Options) -> EquivariantNetwork:
    """Build a network from its entry and the options that differ from what its name stands for."""
    _check_known(entry, options)
    options = verified_options({**entry.options, **options}, entry.defaults)
    if (match := options.get("match")) is not None:
        given = {key: value for key, value in options.items() if key != "match"}
        options = {**given, "width": matched_widths(entry, given, match)}
    groups = GroupSequence.of(options["group"])
    layers = Blocks(groups.first, groups=groups, **{key: options[key] for key in SHARED if key in options})
    if layers.changes_group and not getattr(entry.builder, "group_changes_after", None):
        raise ValueError(
            f"{entry.name} has one group throughout, got group={groups}; networks whose group can change with depth "
            f"are {', '.join(n for n in MODELS if getattr(MODELS[n].builder, 'group_changes_after', None))}."
        )
    own = {p.name: options[p.name] for p in _parameters(entry.builder)[1:] if p.name in options}
    try:
        network = entry.builder(layers, **own)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{entry.name} cannot be built so large ({reason}); choose a smaller width.") from error
    if not isinstance(network, EquivariantNetwork):
        raise ValueError(
            f"the builder of {entry.name} must return a coattend.models.EquivariantNetwork, got "
            f"{type(network).__name__}; pass its stages and its head to EquivariantNetwork(layers.group, ...)."
        )
    if network.group != groups.last and not isinstance(network, UserNetwork):  # which chooses its own
        parts = getattr(entry.builder, "group_changes_after", "parts")
        raise ValueError(f"{entry.name} has too few {parts} for group={groups}; let the group change earlier.")
    pools = any(isinstance(block, ConvBlock) and hasattr(block, "pool") for block in network.modules())
    if layers.downsample == "pool" and not pools:
        raise ValueError(f"{entry.name} has no strided convolution that downsample=pool could replace; leave it out.")
    relative = options.get("relative")
    if not groups.is_exact:  # the default may change between versions, and a file must not change with it
        options = {**options, "filters": layers.filters}
    network.config = ModelConfig(entry.name, {key: value for key, value in options.items() if key != "relative"})
    return network if relative is None else restricted(network, relative)


def matched_widths(entry: ModelEntry, options: Options, match: str) -> tuple[int, ...]:
    """Return the channels per pose with which a network has the parameters, or the cost, of the plain network.

    The plain network is that over the trivial group, without attention, of the usual widths, or of the width among the
    options.
    """
    if match not in get_args(Match):
        raise ValueError(f"match must be one of {', '.join(get_args(Match))}, got {match!r}.")
    plain = entry.builder.usual_widths(options)  # type: ignore[attr-defined]

    def size(options: Options, widths: tuple[int, ...]) -> int:
        network = network_skeleton(entry, {**options, "width": widths})
        if match == "params":
            return sum(p.numel() for p in network.parameters())
        return sum(multiply_adds(network, (network.in_channels, entry.image_size, entry.image_size)).values())

    target = size({**options, "group": "z2", "attention": None}, plain)
    return closest_widths(plain, lambda widths: size(options, widths), target)


def network_skeleton(entry: ModelEntry, options: Options) -> EquivariantNetwork:
    """Build a network on the meta device: names and shapes of its tensors, without their memory."""
    with torch.device("meta"), _WithoutDrawing():
        return build_network(entry, options)


class _WithoutDrawing(TorchFunctionMode):
    """Skip nn.init.normal_, which loads a compiler on the meta device; that takes more than a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


def _parameters(builder: Callable[..., EquivariantNetwork]) -> list[inspect.Parameter]:
    return list(inspect.signature(builder).parameters.values())


def _check_signature(builder: Callable[..., EquivariantNetwork]) -> None:
    own = _parameters(builder)[1:]
    names = {p.name for p in own}
    unset = any(p.default is p.empty for p in own)
    if unset or not names.issuperset(OF_THE_DATA) or names & {*SHARED, "group", "relative"}:
        raise ValueError(
            f"register_model expects a function (layers, num_classes=..., in_channels=..., ...) whose options all have "
            f"defaults and are not those of Blocks, got {builder.__name__}{inspect.signature(builder)}."
        )


def _check_known(entry: ModelEntry, options: Options) -> None:
    match = ["match"] if hasattr(entry.builder, "usual_widths") else []
    known = ["group", *(p.name for p in _parameters(entry.builder)[1:]), *SHARED, "relative", *match]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{entry.name} has no option {option!r}{did_you_mean(option, known)}; its options are "
                f"{', '.join(known)}."
            )
