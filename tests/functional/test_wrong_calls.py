"""Whatever is passed by mistake is refused with a sentence that says what was expected, what came and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import coattend as ca
from coattend import functional as F
from coattend.functional import attention as FA
from coattend.functional import filter_bank as FB
from coattend.functional.pose_blocks import pose_blocks
from coattend.groups import filter_turns

G = ca.cyclic(4)
X, A, M = torch.randn(2, 3, 4, 6, 6), torch.randn(3, 4), torch.randn(3, 4, 4)
PLANES, MATRICES, ROWS = torch.randn(2, 24, 5, 5), torch.randn(6, 4, 4), list(range(8))
TURNS, RELATIVE = filter_turns(G, 3), torch.tensor(G.relative)
FILTER, FILTERS = torch.randn(2, 2, 3, 3), torch.randn(2, 2, 4, 3, 3)
SIGNALS, BARE = ca.FiniteGroup([[0, 1], [1, 0]], action=[[[1]], [[-1]]]), ca.FiniteGroup([[0, 1], [1, 0]])
IMAGE, MAP, SLICES = torch.randn(1, 2, 5, 5), torch.randn(1, 2, 4, 5, 5), torch.randn(8, 4)
PAIRS = torch.ones(1, 2, 2)

UNSUITABLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "None": lambda x: None,
    "numpy": lambda x: x.numpy(),
    "number": lambda x: 1.0,
    "list": lambda x: x.tolist(),
    "sparse": lambda x: x.to_sparse(),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "complex": lambda x: x + 0j,
    "bool": lambda x: x > 0,
    "no axes": lambda x: x.flatten()[0],
}
INTEGERS: dict[str, Callable[[torch.Tensor], Any]] = {"int64": lambda x: x.long(), "uint8": lambda x: x.byte()}

CALLS: dict[str, tuple[Callable[[Any], object], torch.Tensor]] = {
    "co_attention x": (lambda x: F.co_attention(x, A, G), X),
    "co_attention weights": (lambda a: F.co_attention(X, a, G), A),
    "co_attention_mask": (lambda x: F.co_attention_mask(x, A, G), X),
    "attention_matrix": (lambda a: FA.attention_matrix(a, FA.attention_index(G)), A),
    "attend x": (lambda x: FA.attend(x, M), X),
    "attend matrix": (lambda m: FA.attend(X, m), M),
    "attention_mask x": (lambda x: FA.attention_mask(x, M), X),
    "attention_mask matrix": (lambda m: FA.attention_mask(X, m), M),
    "attend_slices planes": (lambda p: FA.attend_slices(p, MATRICES, ROWS, 8), PLANES),
    "attend_slices matrix": (lambda m: FA.attend_slices(PLANES, m, ROWS, 8), MATRICES),
    "plane_index": (lambda p: FA.plane_index(p, ROWS, 8), PLANES),
    "turn_filters": (lambda w: FB.turn_filters(w, TURNS), FILTER),
    "group_filters": (lambda w: FB.group_filters(w, TURNS, RELATIVE), FILTERS),
    "lifting_conv2d x": (lambda x: F.lifting_conv2d(x, FILTER, None, G), IMAGE),
    "lifting_conv2d weight": (lambda w: F.lifting_conv2d(IMAGE, w, None, G), FILTER),
    "group_conv2d x": (lambda x: F.group_conv2d(x, FILTERS, None, G), MAP),
    "group_conv2d weight": (lambda w: F.group_conv2d(MAP, w, None, G), FILTERS),
    "group_conv_transpose2d x": (lambda x: F.group_conv_transpose2d(x, FILTERS, None, G), MAP),
    "group_conv_transpose2d weight": (lambda w: F.group_conv_transpose2d(MAP, w, None, G), FILTERS),
    "orientation_field x": (lambda x: F.orientation_field(x, PAIRS, G), MAP),
    "orientation_field weight": (lambda w: F.orientation_field(MAP, w, G), PAIRS),
    "orientation_angle": (lambda v: F.orientation_angle(v), IMAGE),
    "dynamic_group_conv2d v": (lambda v: F.dynamic_group_conv2d(v, MAP, FILTER, None, G), MAP),
    "dynamic_group_conv2d z": (lambda z: F.dynamic_group_conv2d(MAP, z, FILTER, None, G), MAP),
    "dynamic_group_conv2d weight": (lambda w: F.dynamic_group_conv2d(MAP, MAP, w, None, G), FILTER),
    "group_self_attention q": (lambda q: F.group_self_attention(q, MAP, MAP, torch.ones(1, 1, 2), G), MAP),
    "group_self_attention frequencies": (lambda f: F.group_self_attention(MAP, MAP, MAP, f, G), torch.ones(1, 1, 2)),
    "projection_conv2d": (lambda x: F.projection_conv2d(x, FILTER, None, G), MAP),
    "slice_attentive_conv2d x": (lambda x: F.slice_attentive_conv2d(x, FILTERS, None, G, SLICES), MAP),
    "slice_attentive_conv2d attention": (lambda a: F.slice_attentive_conv2d(MAP, FILTERS, None, G, a), SLICES),
}


@pytest.mark.filterwarnings("ignore")  # prototypes of torch warn: nested and quantised tensors
@pytest.mark.parametrize("kind", [*UNSUITABLE, *INTEGERS])
@pytest.mark.parametrize("name", CALLS)
def test_tensors_of_the_wrong_kind(name: str, kind: str) -> None:
    call, right = CALLS[name]
    call(right)
    with pytest.raises(ValueError, match=r"expects .* to be a dense floating-point tensor \(.*got .*; "):
        call((UNSUITABLE | INTEGERS)[kind](right))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNSUITABLE)
def test_unsuitable_tensors_are_not_pooled(kind: str) -> None:
    with pytest.raises(ValueError, match="max_pool_2x2 expects x"):
        F.max_pool_2x2(UNSUITABLE[kind](X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in UNSUITABLE if kind != "no axes"])
def test_unsuitable_tensors_are_not_dropped(kind: str) -> None:
    with pytest.raises(ValueError, match="dropout expects x"):
        F.dropout(UNSUITABLE[kind](X), 0.5, training=True)


@pytest.mark.parametrize("order", [2, 4, 8])
def test_integers_are_pooled(order: int) -> None:
    x = torch.randint(0, 100, (1, 2, order, 4, 4))
    assert torch.equal(F.max_pool_2x2(x), F.max_pool_2x2(x.double()).long())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.co_attention(X, A, "p4"), "expects a FiniteGroup, got 'p4'; pass coattend.get_group"),
        (lambda: F.co_attention(X, A, None), "expects a FiniteGroup, got None"),
        (lambda: FA.attention_index("p4"), "attention_index expects a FiniteGroup"),
        (lambda: FA.attention_matrix(A, RELATIVE.double()), "index to be a tensor of integers"),
        (lambda: FA.attention_matrix(A, RELATIVE + 1), "indices from 0 to 3.*got others"),
        (lambda: FA.attention_matrix(A, None), "index to be a tensor of integers.*got None"),
        (lambda: F.co_attention(X, torch.randn(3, 4, 4, 1), G), r"weights of co-attention .*got \(3, 4, 4, 1\)"),
        (lambda: FA.attention_mask(X, torch.randn(3, 4, 1)), r"got \(3, 4, 1\)"),
        (lambda: FA.attention_mask(X[:, :, :0], torch.randn(3, 0, 0)), "at least one pose"),
        (lambda: F.co_attention(X, A.to("meta"), G), "one device, got cpu and meta"),
        (lambda: ca.nn.CoAttention(3, "p4").to("meta", X.dtype)(X), "parameters on meta and got an input on cpu"),
        (lambda: FA.attend_slices(PLANES, MATRICES, [], 8), "0 rows.*a multiple of 4 rows"),
        (lambda: FA.attend_slices(PLANES, MATRICES, None, 8), "rows to be a list of whole numbers.*got None"),
        (lambda: FA.attend_slices(PLANES, MATRICES, [0.0, *ROWS[1:]], 8), "rows to be a list of whole numbers"),
        (lambda: FA.attend_slices(PLANES, MATRICES, ROWS, 8.0), "channel_step to be another, got .* 8.0"),
        (lambda: FA.attend_slices(PLANES, MATRICES, [*ROWS[1:], 8], 8), "name each of the 24 planes once"),
        (lambda: FA.plane_index(PLANES, [], 8), "at least one row"),
        (lambda: FA.plane_index(PLANES, None, 8), "at least one row"),
        (lambda: F.max_pool_2x2(torch.zeros(1, 1, 3, 4)), "even height and width .*got 3 x 4"),
        (lambda: F.max_pool_2x2(torch.zeros(1, 1, 0, 4)), "at least 2, got 0 x 4"),
        (lambda: F.dropout(X, float("nan"), True), "probability p from 0 to 1, got nan"),
        (lambda: F.dropout(X, 1e300, True), "probability p from 0 to 1, got 1e"),
        (lambda: F.dropout(X, None, True), "probability p from 0 to 1, got None"),
        (lambda: F.dropout(X, "x", False), "probability p from 0 to 1, got 'x'"),
        (lambda: FB.turn_filters(torch.randn(2, 2, 5, 5), TURNS), r"turns \(4, 9\).*kernel_size=5"),
        (lambda: FB.turn_filters(torch.randn(2, 2, 3, 5), TURNS), "square filters"),
        (lambda: FB.turn_filters(FILTER, None), "turns None"),
        (lambda: FB.turn_filters(FILTER, TURNS.double()), "turns of such filters"),
        (lambda: FB.turn_filters(FILTER, TURNS + 9), "turn_filters expects indices from 0 to 8"),
        (lambda: FB.group_filters(torch.randn(2, 2, 4, 5, 5), TURNS, RELATIVE), "kernel_size=5"),
        (lambda: FB.group_filters(FILTERS, TURNS, RELATIVE + 1), "indices from 0 to 3"),
        (lambda: FB.group_filters(FILTERS, TURNS, torch.tensor(ca.dihedral(4).relative)), "4 poses .* poses of 8"),
        (lambda: FB.group_filters(FILTERS, TURNS, RELATIVE.double()), "relative to be a tensor of integers"),
        (lambda: FB.group_filters(FILTERS, TURNS, None), "relative to be a tensor of integers.*got None"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, "p4"), "lifting_conv2d expects a FiniteGroup, got 'p4'"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, SIGNALS), "lifting_conv2d moves images, and .* 1 dimensions"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, BARE), "is a bare table"),
        (lambda: F.lifting_conv2d(IMAGE[:, :1], FILTER, None, G), r"expects 2 channels in x .*got x \(1, 1, 5, 5\)"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER[:0], None, G), r"at least one number, got \(0, 2, 3, 3\)"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, torch.zeros(3), G), "one bias for each of 2 output channels, got 3"),
        (lambda: F.lifting_conv2d(IMAGE.float(), FILTER.double(), None, G), "dtype of the weight.*got torch.float32"),
        (lambda: F.lifting_conv2d(IMAGE.to("meta"), FILTER, None, G), "one device, got meta and cpu"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, G, stride=0), "lifting_conv2d expects stride to be a whole"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, G, padding=(1, 2)), "same padding along height and width"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, G, padding_mode="wrap"), "padding_mode to be one of"),
        (lambda: F.lifting_conv2d(IMAGE, FILTER, None, G, dilation=4), "kernel that covers 9 pixels"),
        (lambda: F.group_conv2d(IMAGE, FILTERS, None, G), "to be a dense floating-point tensor .*add, merge or remove"),
        (lambda: F.group_conv2d(MAP[:, :, :3], FILTERS, None, G), "2 channels and 4 poses in x"),
        (lambda: F.group_conv2d(MAP, FILTERS[:, :, :3], None, G), "one slice for each of 4 relative poses, got 3"),
        (lambda: F.group_conv2d(MAP, FILTERS, None, G, relative=(0, 0)), "different elements of C4"),
        (lambda: F.group_conv2d(MAP, FILTERS[:1], None, G, groups=2), "a multiple of 2 filters"),
        (lambda: F.slice_attentive_conv2d(MAP, FILTERS, None, G, A), r"\(channels=8, group=4\).*got \(3, 4\)"),
        (lambda: pose_blocks("p4", (0, 1)), "pose_blocks expects a FiniteGroup, got 'p4'"),
        (lambda: pose_blocks(None, (0, 1)), "pose_blocks expects a FiniteGroup, got None"),
        (lambda: pose_blocks(G, ()), "at least one, got"),
        (lambda: pose_blocks(G, (0, 4)), "numbers from 0 to 3"),
        (lambda: pose_blocks(G, (0, 0)), "different elements"),
        (lambda: pose_blocks(G, (0.0, 1.0)), "tuple of different elements"),
        (lambda: pose_blocks(G, (True,)), "tuple of different elements"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("relative", [(2, 0), (3, 1), (1, 0, 2), (2, 3, 1, 0)])
def test_blocks_name_the_right_slices_in_any_order(relative: tuple[int, ...]) -> None:
    blocks = pose_blocks(G, relative)
    for inputs, outputs in zip(blocks.inputs.tolist(), blocks.outputs.tolist(), strict=True):
        for h, output in enumerate(outputs):
            for t, pose in enumerate(inputs):
                assert relative[blocks.slices[h, t]] == G.relative[output, pose]


def test_arrays_are_named_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"got a numpy\.ndarray; torch\.as_tensor"):
        FA.attend(np.zeros((1, 3, 4, 2, 2)), M)
