"""Make a network that exists equivariant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from coattend.conversion.geometry import Window
from coattend.conversion.inflate import AGREEMENT, Inflated, inflate
from coattend.conversion.mismatch import first_mismatch
from coattend.conversion.pooled import with_pooling
from coattend.conversion.project import projected, require_common_frames
from coattend.conversion.refusal import ConversionError
from coattend.conversion.sizes import BATCH, channels_of, chosen_size, exact_sizes
from coattend.conversion.step import Record, Settings
from coattend.conversion.template import Match, narrowed
from coattend.conversion.tracing import TRACE_ERRORS, check_signature
from coattend.conversion.verification import orbit_mean, relative_difference, tensors_of
from coattend.equivariance.exactness import generic_copy
from coattend.export import freeze
from coattend.functional.checks import checked_relative
from coattend.groups import FiniteGroup, get_group
from coattend.models import model_entry
from coattend.models.network import EquivariantNetwork, ModelConfig
from coattend.nn import PoseConv2d
from coattend.nn.observe import evaluating

Mode = Literal["inflate", "project", "template"]
Strides = Literal["exact", "own-frame", "pool"]
Relative = Iterable[int] | None


class Equivariantized(nn.Module):
    """A converted network: the average over all poses of what the plain network computes, as a network on the group.

    - network: a ``torch.fx.GraphModule`` of layers of this library and of torch, named as in the plain network
    - group: what it is equivariant to
    - image_shape: channels, height and width of the images for which that was measured
    - records: what became of each convolution, norm and operation that is not applied to maps as it is
    - difference: of its outputs to the explicit orbit mean, relative, in float64 and with generic weights; None if it
      was not verified
    - options, config: the arguments of the conversion, and what built the plain network, if create_model did
    """

    def __init__(
        self,
        network: nn.Module,
        group: FiniteGroup,
        image_shape: tuple[int, int, int],
        records: Sequence[Record],
        difference: float | None,
        options: Mapping[str, Any] | None = None,
        config: ModelConfig | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.group = group
        self.in_channels = image_shape[0]
        self.image_shape = image_shape
        self.records = tuple(records)
        self.difference = difference
        self.options = dict(options or {})
        self.config = config

    def forward(self, x: Tensor) -> Any:
        return self.network(x)

    @property
    def in_own_frames(self) -> tuple[Record, ...]:
        """The layers and operations that no group convolution replaced: each pose computes them in its own frame."""
        return tuple(record for record in self.records if record.how == "own frame")

    def extra_repr(self) -> str:
        return f"group={self.group.name}, image_shape={self.image_shape}"


def equivariantize(
    model: nn.Module,
    group: FiniteGroup | str,
    mode: Mode = "inflate",
    *,
    relative: Relative | Mapping[str, Relative] = (0,),
    attention: bool = False,
    size: int | None = None,
    strides: Strides = "exact",
    match: Match = "params",
    example: Tensor | None = None,
    verify: bool = True,
) -> Equivariantized:
    """Return an equivariant network with the weights of a plain one.

    ``mode="inflate"``: a group convolution whose filter is zero for all relative poses but the identity computes the
    plain network on every pose of an image at once. Averaged over the poses, the result is the orbit mean
    ``1/n sum_g g.f(g^-1 x)`` of the network f: logits do not change when an image is turned, maps turn with it. The
    cost is n times that of f. The filters of other relative poses start at zero and can be learned, layers can attend,
    and the network can be restricted, frozen and exported like any other on a group.

    Operations that depend on directions (a Linear after Flatten, position embeddings, attention over patches) are
    computed for each pose in its own frame, which is exact as well: ``in_own_frames`` of the result lists them.
    What cannot be converted raises a :class:`ConversionError` that names the layer, the reason and the remedy.

    ``mode="project"``: every filter is replaced by its mean over all poses, so that each map turns with the image, at
    the cost of f. This loses what filters knew of directions: ``records`` say how much of each is left; measure the
    accuracy before use. ``mode="template"``: the same architecture with fewer channels and new weights over the group,
    filters for all relative poses, to be trained from the start.

    - model: a plain network that takes images (batch, channels, height, width); it is not changed
    - group: quarter turns and flips, ``"p4m"``, or one of its subgroups
    - relative: the relative poses for which filters exist; (0,) is the identity alone, None all of them. A mapping
      from patterns of layer names to poses chooses them by layer: ``{"layer4.*": None}``
    - attention: add co-attention after every convolution, which starts as the identity
    - size: height and width of the images; by default a size at which the network is exact
    - strides: what to do where a strided window does not cover a map evenly, so that it moves when the map is turned.
      ``"exact"`` refuses and names the nearest sizes at which it fits, ``"own-frame"`` computes such a layer for each
      pose in its own frame, exactly and without cross-pose filters, ``"pool"`` replaces the stride by average pooling,
      which changes what the network computes
    - match: what a template has as much of as the plain network, ``"params"`` or multiply-adds, ``"cost"``
    - example: images to convert with, for a network that takes no random ones; its shape replaces ``size``
    - verify: compare with the explicit orbit mean, in float64 and with generic weights that hide no fault: all poses of
      three images

    >>> plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> network = equivariantize(plain, "p4m")
    >>> network.network.get_submodule("0")
    LiftingConv2d(3, 8, kernel_size=3, stride=1, group=D4)
    """
    group = _checked_group(group)
    _check_choices(model, mode, strides, match)
    poses = _checked_poses(group, relative)
    _check_options(model, mode, poses, attention, strides, verify)
    check_signature(model)
    like = next(iter(model.parameters()), torch.empty(0))
    training = model.training
    config = model.config if isinstance(model, EquivariantNetwork) else None
    if isinstance(model, EquivariantNetwork) and model.group.order == 1:
        size = _size_of(model) if size is None else size
        model = _in_layers_of_torch(model)
    options = {"mode": mode, "relative": poses, "attention": attention, "strides": strides, "match": match}
    with evaluating(model):
        images = _images(model, example, size, like)
        if strides == "pool":
            model = with_pooling(model, images)
        if mode == "project":
            return _projected(model, group, images, options, config).train(training)
        if mode == "template":
            model, poses = narrowed(model, group, match, images).eval(), {"*": tuple(group.elements)}
        settings = Settings(group, poses, attention, strides)
        inflated = _inflated(model, settings, images)
        difference = _verified(model, settings, images) if verify else None
    if mode == "template":
        for layer in inflated.network.modules():
            if isinstance(layer, PoseConv2d):
                layer.reset_parameters()
    network = Equivariantized(inflated.network, group, _shape(images), inflated.records, difference, options, config)
    return network.train(training)


def _projected(
    model: nn.Module, group: FiniteGroup, images: Tensor, options: Mapping[str, Any], config: ModelConfig | None
) -> Equivariantized:
    """Project the filters of a network whose other operations have no direction, and measure that it commutes."""
    settings = Settings(group, {}, False, "exact")
    require_common_frames(_inflated(model, settings, images).records)
    network, records = projected(model, group)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exact = images.double()
        generic, _ = projected(generic_copy(model, exact).eval(), group)
    axes = inflate(generic, settings, exact).output_axes
    with torch.no_grad():
        difference = relative_difference(tensors_of(generic(exact)), orbit_mean(generic, exact, group, axes))
    if not difference <= AGREEMENT:
        raise ConversionError(
            type(model).__name__,
            f"with symmetric filters it still differs from its orbit mean by {difference:.1e}",
            'use mode="inflate"',
        )
    return Equivariantized(network, group, _shape(images), records, difference, options, config)


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width


def _in_layers_of_torch(model: EquivariantNetwork) -> nn.Module:
    """Return a network over the trivial group as one without a group."""
    with evaluating(model):
        plain = freeze(model).requires_grad_(True)
    setattr(plain, "in_channels", model.in_channels)  # noqa: B010 - torch types attributes as modules
    return plain


def _size_of(model: EquivariantNetwork) -> int | None:
    """Return the image size that a network was trained on, else that of its dataset in the paper."""
    if model.image_shape is not None:
        return model.image_shape[1]
    return None if model.config is None else model_entry(model.config.model).image_size


def _checked_group(group: FiniteGroup | str) -> FiniteGroup:
    group = get_group(group)
    if group.planar is None or not group.is_exact:
        raise ValueError(
            f"equivariantize expects a group of quarter turns and flips, p4m or a subgroup of it, got {group.name}: a "
            "turn by another angle interpolates, so that the result would not be the average of the network."
        )
    return group


def _checked_poses(group: FiniteGroup, relative: Relative | Mapping[str, Relative]) -> dict[str, tuple[int, ...]]:
    by_layer = relative if isinstance(relative, Mapping) else {"*": relative}
    poses = {p: tuple(sorted(checked_relative("equivariantize", group, r))) for p, r in by_layer.items()}
    for chosen in poses.values():
        if 0 not in chosen:
            raise ValueError(f"relative must hold 0, the identity, where the weights of the network go, got {chosen}.")
    return poses


def _check_choices(model: object, mode: object, strides: object, match: object) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"equivariantize expects a network, an nn.Module, got {type(model).__name__}.")
    choices_of = {"mode": (mode, Mode), "strides": (strides, Strides), "match": (match, Match)}
    for name, (value, kind) in choices_of.items():
        choices = get_args(kind)
        if value not in choices:
            raise ValueError(
                f"equivariantize expects {name} to be one of {', '.join(map(repr, choices))}, got {value!r}."
            )


def _check_options(
    model: nn.Module, mode: Mode, poses: Mapping[str, tuple[int, ...]], attention: bool, strides: Strides, verify: bool
) -> None:
    """Refuse options that have no effect."""
    given = {
        "relative": (poses != {"*": (0,)}, ("project", "template")),
        "attention": (attention, ("project",)),
        "strides": (strides == "own-frame", ("project",)),
        "verify": (not verify, ("project",)),
    }
    ignored = [name for name, (differs, modes) in given.items() if differs and mode in modes]
    if ignored:
        raise ValueError(f"equivariantize with mode={mode!r} has no {' and no '.join(ignored)}; leave it out.")
    names = [name for name, _ in model.named_modules() if name]
    for pattern in poses:
        if pattern != "*" and not any(fnmatch(name, pattern) for name in names):
            raise ValueError(
                f"relative has poses for {pattern!r}, which no layer is called; the network's layers are "
                f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}."
            )


def _images(model: nn.Module, example: Tensor | None, size: int | None, like: Tensor) -> Tensor:
    if example is not None:
        if not isinstance(example, Tensor) or example.ndim != 4:
            raise ValueError("example must be images (batch, channels, height, width), as a tensor.")
        return example
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ValueError(f"equivariantize expects size to be a whole number of pixels, at least 1, got {size!r}.")
    channels = channels_of(model)
    pixels = chosen_size(model, channels, like) if size is None else size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.randn(BATCH, channels, pixels, pixels, dtype=torch.float64)
    return images.to(like.device, like.dtype)


def _inflated(model: nn.Module, settings: Settings, images: Tensor) -> Inflated:
    inflated = inflate(model, settings, images)
    if inflated.uneven:
        raise _uneven(model, inflated.uneven, images)
    return inflated


def _uneven(model: nn.Module, uneven: Sequence[tuple[str, Window]], images: Tensor) -> ConversionError:
    name, window = uneven[0]
    pixels = images.shape[-1]
    sizes = exact_sizes(model, images.shape[1], pixels)
    exact = (
        f"nearest exact sizes: {' and '.join(map(str, sizes))}; pass size={sizes[-1]}" if sizes else "pass another size"
    )
    return ConversionError(
        name,
        f"its windows of {window.size} with stride {window.stride} do not cover the map evenly at image size {pixels}, "
        "and move when the image is turned",
        f'{exact}, or strides="own-frame", or strides="pool"',
    )


def _verified(model: nn.Module, settings: Settings, images: Tensor) -> float:
    """Convert a copy with generic weights and return how far it is from the orbit mean; refuse it if it is not that."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exact = images.double()
        copied = generic_copy(model, exact).eval()
    inflated = _inflated(copied, settings, exact)
    try:
        outputs = tensors_of(inflated.network.eval()(exact))
    except TRACE_ERRORS as error:
        layer = first_mismatch(inflated, exact, settings.group)
        raise ConversionError(
            layer, f"it fails on a batch of all poses ({str(error).splitlines()[0]})", "see its code for fixed sizes"
        ) from error
    difference = relative_difference(outputs, orbit_mean(copied, exact, settings.group, inflated.output_axes))
    if not difference <= AGREEMENT:
        raise ConversionError(
            first_mismatch(inflated, exact, settings.group),
            f"what it computes for all poses at once differs from the plain network by {difference:.1e}",
            "it may combine images of a batch, keep a state, draw random numbers, or overwrite a value that is read "
            "elsewhere",
        )
    return difference
