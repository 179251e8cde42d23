"""How functions of torch and methods of tensors are converted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from coattend.conversion.layer_rules import convert_adaptive_pool, convert_padding, convert_pool
from coattend.conversion.refusal import ConversionError
from coattend.conversion.reshaping import reshaped
from coattend.conversion.step import Step, dimensions, out_of_place
from coattend.conversion.values import IMAGE_AXES, Axes, Form, Value
from coattend.export.freeze import POINTWISE_FUNCTIONS, POINTWISE_METHODS

POINTWISE = POINTWISE_FUNCTIONS | {
    F.hardsigmoid, F.sigmoid, F.tanh, F.relu_, F.logsigmoid, F.selu, F.celu, F.softsign, F.dropout, F.softshrink,
    operator.itruediv, operator.pow, torch.pow, torch.log, torch.rsqrt, torch.reciprocal, torch.where, torch.lerp,
    torch.clone, torch.sign, torch.erf, torch.sin, torch.cos,
}  # fmt: skip
POINTWISE_NAMES = POINTWISE_METHODS | {
    "add_", "sub_", "mul_", "div_", "relu_", "sigmoid_", "tanh_", "clamp_", "clone", "detach", "float", "double",
    "half", "to", "type", "type_as", "pow", "rsqrt", "log", "sign", "reciprocal", "clamp_min", "clamp_max",
}  # fmt: skip
READ = {"size", "dim", "numel", "ndimension"}


def convert_operation(step: Step) -> Value:
    """Convert a function or a method."""
    node = step.node
    if any(isinstance(value.shape, list) for value in step.tensors) and node.target is not operator.getitem:
        raise ConversionError(step.name, "it takes several tensors as one", "pass them one by one")
    if node.target is getattr or (node.op == "call_method" and node.target in READ):
        form = Form.OWN if step.x.form is Form.OWN else Form.TURNED
        arguments = fx.map_arg((node.args, node.kwargs), lambda n: step.builder.as_form(step.inputs[n], form))
        return step.result(step.builder.graph.create_node(node.op, node.target, *arguments), Form.SHARED, None)
    key = node.target if node.op == "call_function" else str(node.target)
    if key in POINTWISE or (node.op == "call_method" and key in POINTWISE_NAMES):
        return pointwise(step)
    rule = RULES.get(key)
    if rule is None:
        return step.own_frame(None, "no rule for this operation")
    return rule(step)


def pointwise(step: Step) -> Value:
    """Combine values element by element; a parameter that differs between positions is in the frame of each pose."""
    values = step.tensors
    axes = values[0].axes
    if any(value.axes != axes for value in values) or axes is None or len(step.shape) != len(axes):
        return step.own_frame(None, "its inputs have different axes") if axes is not None else step.verbatim(None)
    parameters = [v for v in step.inputs.values() if v.form is Form.SHARED and isinstance(v.shape, tuple)]
    per_position = any(
        n > 1 and axis in "hw"
        for parameter in parameters
        for n, axis in zip(reversed(parameter.shape), reversed(axes), strict=False)
    )
    if per_position:
        return step.own_frame(axes, "it has a parameter per position")
    if step.node.target == "contiguous" and step.x.form in (Form.MAP, Form.IMAGE):
        return Value(step.x.form, step.shape, axes, dict(step.x.nodes))
    if any(value.form is Form.OWN for value in values):
        return step.verbatim(axes)
    forms = {value.form for value in values}
    if Form.MAP not in forms:
        return _combined(step, forms.pop() if len(forms) == 1 else Form.TURNED, axes)
    has_batch = any(len(parameter.shape) == len(axes) and parameter.shape[0] > 1 for parameter in parameters)
    return _combined(step, Form.TURNED if has_batch else Form.MAP, axes)


def _combined(step: Step, form: Form, axes: Axes) -> Value:
    node, builder = step.node, step.builder

    def argument(n: fx.Node) -> fx.Node:
        value = step.inputs[n]
        if value.form is not Form.SHARED:
            return builder.as_form(value, form)
        if form is Form.MAP and isinstance(value.shape, tuple) and value.shape:
            shape = (1,) * (len(axes) - len(value.shape)) + value.shape
            return builder.method("reshape", value.node, (*shape[:2], 1, *shape[2:]))
        return value.node

    arguments, named = fx.map_arg((node.args, node.kwargs), argument)
    if "inplace" in named:
        named = {**named, "inplace": False}
    return step.result(builder.graph.create_node(node.op, out_of_place(node), arguments, named), form, axes)


def _permuted(step: Step) -> Value:
    axes = step.x.axes
    dims = step.node.args[1:] or (step.node.kwargs["dims"],)
    order = dimensions(step.x, dims[0] if len(dims) == 1 else dims)
    return step.verbatim(None if axes is None or order is None else tuple(axes[n] for n in order))


def _transposed(step: Step) -> Value:
    pair = dimensions(step.x, tuple(_argument(step.node, n, f"dim{n - 1}") for n in (1, 2)))
    if step.x.axes is None or pair is None or len(pair) != 2:
        return step.verbatim(None)
    axes = list(step.x.axes)
    axes[pair[0]], axes[pair[1]] = axes[pair[1]], axes[pair[0]]
    return step.verbatim(tuple(axes))


def _argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _reduced(step: Step) -> Value:
    axes = step.x.axes
    dims = dimensions(step.x, _argument(step.node, 1, "dim"))
    keeps = bool(_argument(step.node, 2, "keepdim", False))
    if axes is None or dims is None:
        return step.own_frame(None, "it reduces axes that are not known")
    reduced = {axes[n] for n in dims}
    if "b" in reduced or len(reduced & {"h", "w"}) == 1:
        return step.own_frame(None, "it reduces rows or columns alone, or the batch")
    rest = axes if keeps else tuple(axis for n, axis in enumerate(axes) if n not in dims)
    if step.x.form is not Form.MAP or reduced != {"h", "w"}:
        return step.verbatim(rest)
    name = step.node.target if step.node.op == "call_method" else step.node.target.__name__  # type: ignore[union-attr]
    node = step.builder.method(str(name), step.x.node, (3, 4), keeps)
    if keeps:
        return step.result(node, Form.MAP, rest)
    by_pose = step.builder.method("flatten", step.builder.method("transpose", node, 1, 2), 0, 1)
    return step.result(by_pose, Form.TURNED, rest)


def _over_channels(step: Step) -> Value:
    axes = step.x.axes
    dims = dimensions(step.x, _argument(step.node, 1, "dim"))
    if axes is not None and dims is not None and all(axes[n] == "c" for n in dims):
        return step.verbatim(axes)
    return step.own_frame(axes, "it acts along rows, columns or unknown axes")


def _joined(step: Step) -> Value:
    values = step.tensors
    axes = values[0].axes
    dims = dimensions(values[0], _argument(step.node, 1, "dim", 0))
    if axes is None or dims is None or any(v.axes != axes for v in step.inputs.values()):
        return step.own_frame(None, "it joins values with different or unknown axes")
    if axes[dims[0]] != "c":
        return step.own_frame(axes if axes[dims[0]] in "hw" else None, "it joins along rows, columns or the batch")
    is_map = axes == IMAGE_AXES and all(value.form in (Form.MAP, Form.IMAGE) for value in values)
    if not is_map:
        return step.verbatim(axes)
    nodes = fx.map_arg(_argument(step.node, 0, "tensors"), lambda n: step.builder.as_form(step.inputs[n], Form.MAP))
    return step.result(step.builder.call(torch.cat, nodes, 1), Form.MAP, axes)


def _divided(step: Step) -> Value:
    axes = step.x.axes
    dims = dimensions(step.x, _argument(step.node, 2, "dim", 0))
    if axes is None or dims is None or axes[dims[0]] != "c":
        return step.own_frame(axes, "it divides rows, columns or unknown axes")
    if step.x.form is not Form.MAP:
        return step.verbatim(axes)
    chunks = "chunk" in str(step.node.target)
    sizes = ("chunks",) if chunks else ("split_size", "split_size_or_sections")
    number = next(value for key in sizes if (value := _argument(step.node, 1, key)) is not None)
    node = step.builder.method("chunk" if chunks else "split", step.x.node, number, 1)
    return step.result(node, Form.MAP, axes)


def _item(step: Step) -> Value:
    x, index = step.x, step.node.args[1]
    if isinstance(x.shape, list):
        node = step.builder.call(operator.getitem, x.node, index)
        return step.result(node, x.form, x.axes if isinstance(index, int) else None)
    entries = index if isinstance(index, tuple) else (index,)
    slices = all(isinstance(entry, slice) for entry in entries)
    if not slices or x.axes is None or x.axes[0] != "b" or entries[0] != slice(None):
        return step.own_frame(None, "it selects elements of the batch, rows, columns or unknown axes")
    cut = [axis for axis, entry in zip(x.axes, entries, strict=False) if entry != slice(None)]
    if any(axis in "hw" for axis in cut):
        return step.own_frame(x.axes, "it selects rows or columns")
    if x.form in (Form.MAP, Form.IMAGE) and len(entries) <= 2:
        return step.result(step.builder.call(operator.getitem, x.node, index), x.form, x.axes)
    return step.verbatim(x.axes)


def _layer_norm(step: Step) -> Value:
    shape = _argument(step.node, 1, "normalized_shape")
    if isinstance(shape, fx.Node):
        return step.own_frame(step.x.axes, "it normalizes axes that follow from the size of the image")
    if step.x.axes is not None and all(axis == "c" for axis in step.x.axes[-len(shape) :]):
        return step.verbatim(step.x.axes)
    return step.own_frame(step.x.axes, "it has parameters per position")


def _linear(step: Step) -> Value:
    axes = step.x.axes
    if axes is None or axes[-1] != "c":
        return step.own_frame(None, "it maps rows, or unknown axes")
    return step.verbatim((*axes[:-1], "c"))


def _norm_of_images(step: Step) -> Value:
    if step.x.is_map_like:
        return step.verbatim(step.x.axes)
    return step.own_frame(step.x.axes, "its input is not known to be an image")


def _interpolated(step: Step) -> Value:
    if not step.x.is_map_like:
        return step.own_frame(None, "its input is not known to be an image")
    if any(new % old for new, old in zip(step.shape[-2:], step.x.shape[-2:], strict=True)):
        return step.own_frame(IMAGE_AXES, "it does not enlarge by a whole factor")
    return step.verbatim(IMAGE_AXES)


def _convolved(step: Step) -> Value:
    axes = IMAGE_AXES if step.x.is_map_like else None
    return step.own_frame(axes, "its filter is computed in the forward, not the weight of a layer")


def _as_layer(kind: type[nn.Module], rule: Callable[[Any, Step], Value], *names: str) -> Callable[[Step], Value]:
    """Return the rule of a function that computes what a layer does."""

    def convert(step: Step) -> Value:
        given = dict(zip(names, step.node.args[1:], strict=False))
        named = {**given, **{key: value for key, value in step.node.kwargs.items() if key != "input"}}
        if any(isinstance(value, fx.Node) for value in named.values()):
            return step.own_frame(IMAGE_AXES if step.x.is_map_like else None, "its sizes are computed in the forward")
        return rule(kind(**{key: value for key, value in named.items() if value is not None}), step)

    return convert


def _padded(step: Step) -> Value:
    pads = _argument(step.node, 1, "pad")
    mode = _argument(step.node, 2, "mode", "constant")
    value = _argument(step.node, 3, "value", None)
    layers = {"reflect": nn.ReflectionPad2d, "replicate": nn.ReplicationPad2d, "circular": nn.CircularPad2d}
    if not isinstance(pads, (tuple, list)) or len(pads) != 4 or not all(isinstance(n, int) for n in pads):
        return step.own_frame(None, "it pads other axes than rows and columns")
    layer = nn.ConstantPad2d(tuple(pads), float(value or 0)) if mode == "constant" else layers[mode](tuple(pads))
    return convert_padding(layer, step)


POOL = ("kernel_size", "stride", "padding")
RULES: dict[Any, Callable[[Step], Value]] = {
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.unflatten), reshaped),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten"), reshaped),
    **dict.fromkeys((torch.permute, "permute"), _permuted),
    **dict.fromkeys((torch.transpose, torch.swapaxes, "transpose", "swapaxes"), _transposed),
    **dict.fromkeys((torch.mean, torch.sum, torch.amax, torch.amin, "mean", "sum", "amax", "amin"), _reduced),
    **dict.fromkeys((F.softmax, torch.softmax, F.log_softmax, torch.log_softmax, "softmax"), _over_channels),
    **dict.fromkeys((torch.cat, torch.concat), _joined),
    **dict.fromkeys((torch.chunk, torch.split, "chunk", "split"), _divided),
    **dict.fromkeys((F.batch_norm, F.group_norm, F.instance_norm, F.local_response_norm), _norm_of_images),
    **dict.fromkeys((F.conv2d, torch.conv2d, F.conv_transpose2d), _convolved),
    operator.getitem: _item,
    F.layer_norm: _layer_norm,
    F.linear: _linear,
    F.interpolate: _interpolated,
    F.pad: _padded,
    F.adaptive_avg_pool2d: _as_layer(nn.AdaptiveAvgPool2d, convert_adaptive_pool, "output_size"),
    F.adaptive_max_pool2d: _as_layer(nn.AdaptiveMaxPool2d, convert_adaptive_pool, "output_size"),
    F.avg_pool2d: _as_layer(nn.AvgPool2d, convert_pool, *POOL, "ceil_mode", "count_include_pad", "divisor_override"),
    torch.max_pool2d: _as_layer(nn.MaxPool2d, convert_pool, *POOL, "dilation", "ceil_mode"),
    F.max_pool2d: _as_layer(nn.MaxPool2d, convert_pool, *POOL, "dilation", "ceil_mode", "return_indices"),
}
