"""Torch's tools on the operators: derivatives forward, FLOP counters, DTensor, tracing and the older ONNX exporter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import coattend as ca
from coattend.functional import co_attention, dropout, max_pool_2x2, memory_format
from coattend.functional.attention import attend, attend_slices

ROWS = ca.nn.SliceCoAttentiveConv2d(1, 2, 1, "p4").rows
FUNCTIONS = {
    "attend": (attend, (2, 3, 4, 5, 5), (3, 4, 4)),
    "slices": (lambda planes, matrix: attend_slices(planes, matrix, ROWS, 4), (2, 32, 5, 5), (8, 4, 4)),
    "pool": (max_pool_2x2, (2, 3, 4, 6, 6)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself, when it is first used
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_derivatives_are_those_of_differences(name: str, learns: bool) -> None:
    function, *shapes = FUNCTIONS[name]
    points = [torch.randn(shape, requires_grad=learns) for shape in shapes]
    directions = [torch.randn(shape) for shape in shapes]
    with forward_ad.dual_level():
        y = function(*(forward_ad.make_dual(p, d) for p, d in zip(points, directions, strict=True)))
        value, tangent = forward_ad.unpack_dual(y)
        assert tangent is not None
        tangent = tangent.clone()
    torch.testing.assert_close(value, function(*points))
    step = 1e-6
    ends = [function(*(p + s * d for p, d in zip(points, directions, strict=True))) for s in (step, -step)]
    torch.testing.assert_close(tangent, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_forward_derivatives_of_dropout() -> None:
    x = torch.ones(1000)
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(dropout(forward_ad.make_dual(x, x), 0.5, training=True))
    assert torch.equal(value, tangent)
    assert 0 < int((value == 0).sum()) < 1000


def test_forward_over_reverse() -> None:
    """Half of the graph before the level: the gradient's gradient comes through the operator's own formula."""
    x, matrix = torch.randn(1, 2, 4, 3, 3, requires_grad=True), torch.randn(2, 4, 4)
    up, direction = torch.randn(1, 2, 4, 3, 3), torch.randn(1, 2, 4, 3, 3)
    y = attend(x, matrix)
    with forward_ad.dual_level():
        (grad,) = torch.autograd.grad(y, x, forward_ad.make_dual(up, direction))
        tangent = forward_ad.unpack_dual(grad).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, torch.autograd.grad(attend(x, matrix), x, direction)[0])


@pytest.mark.parametrize("of_images", [False, True])
@pytest.mark.parametrize("attentive", [False, True])
def test_forward_over_reverse_of_layers_whose_gradients_have_kernels(attentive: bool, of_images: bool) -> None:
    conv = ca.nn.LiftingConv2d(1, 2, 3, "p4").float()
    layers = [conv, ca.nn.CoAttention(2, "p4").float(), ca.nn.GroupBatchNorm2d(2).float()]
    network = ca.nn.FusedSequential(*layers) if attentive else conv
    x = torch.randn(2, 1, 6, 6, dtype=torch.float32, requires_grad=of_images)
    leaves = [*([x] if of_images else []), conv.weight]
    with memory_format("channels_last"):
        y = network(x)
    up, direction = torch.randn_like(y), torch.randn_like(y)
    expected = torch.autograd.grad(y, leaves, direction, retain_graph=True)
    with forward_ad.dual_level():
        gradients = torch.autograd.grad(y, leaves, forward_ad.make_dual(up, direction))
        tangents = [forward_ad.unpack_dual(grad).tangent for grad in gradients]
    for tangent, exact in zip(tangents, expected, strict=True):
        assert tangent is not None
        torch.testing.assert_close(tangent, exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


@pytest.mark.parametrize("name", ["co_attention", "max_pool"])
def test_the_bare_operators_lose_no_tangent_in_silence(name: str) -> None:
    operator = getattr(torch.ops.coattend, name)
    rest = (torch.randn(3, 4, 4),) if name == "co_attention" else ()
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(1, 3, 4, 2, 2), torch.ones(1, 3, 4, 2, 2))
        with pytest.raises(ValueError, match=f"{name} expects tensors without tangents"):
            operator(x, *rest)


def test_flop_counters_count_the_products() -> None:
    x, a = torch.randn(2, 3, 4, 5, 5, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        y = co_attention(x, a, ca.cyclic(4))
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    with FlopCounterMode(display=False) as slices:
        attend_slices(torch.randn(2, 32, 5, 5), torch.randn(8, 4, 4), ROWS, 4)
    logits = 2 * 2 * 3 * 4**2 * 5**2
    assert forward.get_total_flops() == logits
    assert backward.get_total_flops() == 3 * logits
    assert slices.get_total_flops() == 2 * 2 * 8 * 4**2 * 5**2


SHARD = """
import sys
import torch
import torch.distributed as dist
import coattend as ca
from coattend.functional.attention import attend_slices
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(4, 2, 4, 6, 6)
attention = ca.nn.CoAttention(2, "p4")
network = torch.nn.Sequential(attention, ca.nn.SpatialMaxPool2d(2))
y = network(x)
y.square().sum().backward()
exact = attention.weight.grad.clone()
attention.weight.grad = None
distribute_module(network, mesh)
for placement in (Shard(0), Replicate()):
    z = network(distribute_tensor(x, mesh, [placement]))
    assert z.placements == (placement,), z.placements
    torch.testing.assert_close(z.full_tensor(), y)
    z.square().sum().backward()
    torch.testing.assert_close(attention.weight.grad.full_tensor(), exact)
    attention.weight.grad = None
rows = ca.nn.SliceCoAttentiveConv2d(1, 2, 1, "p4").rows
planes, matrix = torch.randn(4, 32, 3, 3), torch.randn(8, 4, 4)
whole = attend_slices(planes, matrix, rows, 4)
parts = attend_slices(
    distribute_tensor(planes, mesh, [Shard(0)]), distribute_tensor(matrix, mesh, [Replicate()]), rows, 4
)
torch.testing.assert_close(parts.full_tensor(), whole)
assert parts.placements == (Shard(0),), parts.placements
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.ddp
def test_distributed_tensors_are_attended_to_and_pooled_where_they_are(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARD, tmp_path / "meeting", str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends[0][1]


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "attention": lambda: ca.nn.CoAttention(3, "p4"),
    "slices": lambda: ca.nn.SliceCoAttentiveConv2d(3, 2, 3, "p4"),
    "pool": lambda: ca.nn.SpatialMaxPool2d(2),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_traced_graphs_need_no_coattend(name: str) -> None:
    layer, x = LAYERS[name]().eval(), torch.randn(2, 3, 4, 6, 6)
    traced = torch.jit.trace(layer, x)
    assert "coattend::" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_the_older_onnx_exporter_writes_what_runs(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch.set_default_dtype(torch.float32)
    layer, x = LAYERS[name]().eval(), torch.randn(2, 3, 4, 6, 6)
    torch.onnx.export(layer, (x,), tmp_path / "layer.onnx", dynamo=False)
    session = runtime.InferenceSession(tmp_path / "layer.onnx")
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, layer(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_transforms_stay_right() -> None:
    group, x, a = ca.cyclic(4), torch.randn(1, 2, 4, 2, 2), torch.randn(2, 4)

    def loss(a: Tensor) -> Tensor:
        return co_attention(x, a, group).square().sum()

    hessian = torch.func.hessian(loss)(a)
    again = torch.autograd.functional.hessian(loss, a)
    torch.testing.assert_close(hessian, again)
