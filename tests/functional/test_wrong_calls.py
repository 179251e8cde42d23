"""Whatever is passed by mistake is refused with a sentence that says what was expected, what came and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import coattend as ca
from coattend import functional as F
from coattend.groups import filter_turns

G = ca.cyclic(4)
X, A, M = torch.randn(2, 3, 4, 6, 6), torch.randn(3, 4), torch.randn(3, 4, 4)
PLANES, MATRICES, ROWS = torch.randn(2, 24, 5, 5), torch.randn(6, 4, 4), list(range(8))
TURNS, RELATIVE = filter_turns(G, 3), torch.tensor(G.relative)
FILTER, FILTERS = torch.randn(2, 2, 3, 3), torch.randn(2, 2, 4, 3, 3)

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
    "attention_matrix": (lambda a: F.attention_matrix(a, F.attention_index(G)), A),
    "attend x": (lambda x: F.attend(x, M), X),
    "attend matrix": (lambda m: F.attend(X, m), M),
    "attention_mask x": (lambda x: F.attention_mask(x, M), X),
    "attention_mask matrix": (lambda m: F.attention_mask(X, m), M),
    "attend_slices planes": (lambda p: F.attend_slices(p, MATRICES, ROWS, 8), PLANES),
    "attend_slices matrix": (lambda m: F.attend_slices(PLANES, m, ROWS, 8), MATRICES),
    "plane_index": (lambda p: F.plane_index(p, ROWS, 8), PLANES),
    "turn_filters": (lambda w: F.turn_filters(w, TURNS), FILTER),
    "group_filters": (lambda w: F.group_filters(w, TURNS, RELATIVE), FILTERS),
    "padded_conv2d": (lambda x: F.padded_conv2d(x, FILTER, None, 1, 0, 1, 1, "zeros"), torch.randn(1, 2, 5, 5)),
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
        (lambda: F.attention_index("p4"), "attention_index expects a FiniteGroup"),
        (lambda: F.attention_matrix(A, RELATIVE.double()), "index to be a tensor of integers"),
        (lambda: F.attention_matrix(A, RELATIVE + 1), "indices from 0 to 3.*got others"),
        (lambda: F.attention_matrix(A, None), "index to be a tensor of integers.*got None"),
        (lambda: F.co_attention(X, torch.randn(3, 4, 4, 1), G), r"weights must be .*got \(3, 4, 4, 1\)"),
        (lambda: F.attention_mask(X, torch.randn(3, 4, 1)), r"got \(3, 4, 1\)"),
        (lambda: F.attention_mask(X[:, :, :0], torch.randn(3, 0, 0)), "at least one pose"),
        (lambda: F.co_attention(X, A.to("meta"), G), "one device, got cpu and meta"),
        (lambda: ca.nn.CoAttention(3, "p4").to("meta", X.dtype)(X), "parameters on meta and got an input on cpu"),
        (lambda: F.attend_slices(PLANES, MATRICES, [], 8), "0 rows.*a multiple of 4 rows"),
        (lambda: F.attend_slices(PLANES, MATRICES, None, 8), "rows to be a list of whole numbers.*got None"),
        (lambda: F.attend_slices(PLANES, MATRICES, [0.0, *ROWS[1:]], 8), "rows to be a list of whole numbers"),
        (lambda: F.attend_slices(PLANES, MATRICES, ROWS, 8.0), "channel_step to be another, got .* 8.0"),
        (lambda: F.attend_slices(PLANES, MATRICES, [*ROWS[1:], 8], 8), "name each of the 24 planes once"),
        (lambda: F.plane_index(PLANES, [], 8), "at least one row"),
        (lambda: F.plane_index(PLANES, None, 8), "at least one row"),
        (lambda: F.max_pool_2x2(torch.zeros(1, 1, 3, 4)), "even height and width .*got 3 x 4"),
        (lambda: F.max_pool_2x2(torch.zeros(1, 1, 0, 4)), "at least 2, got 0 x 4"),
        (lambda: F.dropout(X, float("nan"), True), "probability p from 0 to 1, got nan"),
        (lambda: F.dropout(X, 1e300, True), "probability p from 0 to 1, got 1e"),
        (lambda: F.dropout(X, None, True), "probability p from 0 to 1, got None"),
        (lambda: F.dropout(X, "x", False), "probability p from 0 to 1, got 'x'"),
        (lambda: F.turn_filters(torch.randn(2, 2, 5, 5), TURNS), r"turns \(4, 9\).*kernel_size=5"),
        (lambda: F.turn_filters(torch.randn(2, 2, 3, 5), TURNS), "square filters"),
        (lambda: F.turn_filters(FILTER, None), "turns None"),
        (lambda: F.turn_filters(FILTER, TURNS.double()), "turns of such filters"),
        (lambda: F.turn_filters(FILTER, TURNS + 9), "turn_filters expects indices from 0 to 8"),
        (lambda: F.group_filters(torch.randn(2, 2, 4, 5, 5), TURNS, RELATIVE), "kernel_size=5"),
        (lambda: F.group_filters(FILTERS, TURNS, torch.tensor(ca.dihedral(4).relative)), "indices from 0 to 3"),
        (lambda: F.group_filters(FILTERS, TURNS, RELATIVE.double()), "relative to be a tensor of integers"),
        (lambda: F.group_filters(FILTERS, TURNS, None), "relative to be a tensor of integers.*got None"),
        (lambda: F.pose_blocks("p4", (0, 1)), "pose_blocks expects a FiniteGroup, got 'p4'"),
        (lambda: F.pose_blocks(None, (0, 1)), "pose_blocks expects a FiniteGroup, got None"),
        (lambda: F.pose_blocks(G, ()), "at least one, got"),
        (lambda: F.pose_blocks(G, (0, 4)), "numbers from 0 to 3"),
        (lambda: F.pose_blocks(G, (0, 0)), "different elements"),
        (lambda: F.pose_blocks(G, (0.0, 1.0)), "tuple of different elements"),
        (lambda: F.pose_blocks(G, (True,)), "tuple of different elements"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("relative", [(2, 0), (3, 1), (1, 0, 2), (2, 3, 1, 0)])
def test_blocks_name_the_right_slices_in_any_order(relative: tuple[int, ...]) -> None:
    blocks = F.pose_blocks(G, relative)
    for inputs, outputs in zip(blocks.inputs.tolist(), blocks.outputs.tolist(), strict=True):
        for h, output in enumerate(outputs):
            for t, pose in enumerate(inputs):
                assert relative[blocks.slices[h, t]] == G.relative[output, pose]


def test_arrays_are_named_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"got a numpy\.ndarray; torch\.as_tensor"):
        F.attend(np.zeros((1, 3, 4, 2, 2)), M)
