"""What is exported holds standard operations only; what is compiled for the CPU keeps the fused operator."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import coattend as ca
from coattend.functional._kernels import convolution, cpu

LAYERS = {
    "attention": lambda: ca.nn.CoAttention(3, "p4"),
    "slice": lambda: ca.nn.SliceCoAttentiveConv2d(3, 3, 3, "p4"),
    "projection": lambda: ca.nn.ProjectionConv2d(3, 2, 3, "p4", attention=True),
}


def namespaces(graph: torch.fx.Graph) -> set[str]:
    return {node.target.namespace for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_exported_graphs_need_no_coattend(name: str, strict: bool) -> None:
    layer, x = LAYERS[name]().eval(), torch.randn(2, 3, 4, 6, 6)
    program = torch.export.export(layer, (x,), strict=strict)
    assert namespaces(program.graph) == {"aten"}
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_graphs_keep_the_operator_forward_and_backward(name: str) -> None:
    torch._dynamo.reset()
    graphs: list[torch.fx.Graph] = []

    def record(module: torch.fx.GraphModule, _: object) -> object:
        graphs.append(module.graph)
        return make_boxed_func(module)

    layer, x = LAYERS[name](), torch.randn(2, 3, 4, 6, 6, requires_grad=True)
    backend = aot_autograd(fw_compiler=record, bw_compiler=record)
    torch.compile(layer, backend=backend, fullgraph=True)(x).sum().backward()
    assert len(graphs) == 2
    for graph in graphs:
        assert "coattend" in namespaces(graph)


def test_activations_are_saved_once_by_compiled_networks() -> None:
    """As the convolution's input; a boolean map of their signs beside it would cost more than all the rest."""
    torch._dynamo.reset()
    saved: list[torch.dtype] = []

    def record(module: torch.fx.GraphModule, _: object) -> object:
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        saved.extend(node.meta["val"].dtype for node in output.args[0] if node is not None)
        return make_boxed_func(module)

    network = torch.nn.Sequential(
        ca.nn.GroupConv2d(2, 3, 3, "p4"), torch.nn.ReLU(), ca.nn.GroupConv2d(3, 2, 3, "p4", bias=False)
    )
    x = torch.randn(2, 2, 4, 7, 7)
    backend = aot_autograd(fw_compiler=record, bw_compiler=lambda module, _: make_boxed_func(module))
    y = torch.compile(network, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(y, network(x), rtol=1e-12, atol=1e-12)
    assert torch.bool not in saved


@pytest.mark.parametrize("kernels", ["on", "off"])
def test_compiles_for_maps_in_any_layout(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor checks that results have the strides it was promised."""
    torch._dynamo.reset()
    monkeypatch.setenv("COATTEND_KERNELS", kernels)
    monkeypatch.setattr(cpu, "STATE", cpu.State())
    torch.set_default_dtype(torch.float32)
    network = torch.nn.Sequential(ca.nn.CoAttention(2, "p4"), ca.nn.GroupConv2d(2, 3, 3, "p4"))
    x = torch.randn(2, 7, 7, 2, 4).permute(0, 3, 4, 1, 2).detach().requires_grad_()
    y = torch.compile(network, fullgraph=True)(x)
    torch.testing.assert_close(y, network(x), rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(out.square().sum(), x)[0] for out in (y, network(x)))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("frozen", ["weights", "maps"])
def test_compiled_convolutions_compute_no_gradient_that_nobody_needs(
    frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    needs = mock.Mock(wraps=convolution.conv2d_gradients)
    monkeypatch.setattr(convolution, "conv2d_gradients", needs)
    layer = ca.nn.GroupConv2d(2, 3, 3, "p4").requires_grad_(frozen == "maps")
    x = torch.randn(2, 2, 4, 7, 7, requires_grad=frozen == "weights")
    leaves = [x] if frozen == "weights" else [*layer.parameters()]
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    ours, theirs = (torch.autograd.grad(net(x).square().sum(), leaves) for net in (compiled, layer))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    of_filters = frozen == "maps"
    assert [call.args[6] for call in needs.call_args_list] == [[not of_filters, of_filters, of_filters]]


def test_compiled_convolutions_follow_autocast() -> None:
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float32)
    layer, x = ca.nn.GroupConv2d(2, 3, 3, "p4"), torch.randn(2, 2, 4, 7, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_runs_what_was_exported(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch.set_default_dtype(torch.float32)
    layer, x = LAYERS["slice"]().eval(), torch.randn(2, 3, 4, 6, 6)
    path = tmp_path / "slice.onnx"
    torch.onnx.export(layer, (x,), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, layer(x).detach().numpy(), rtol=1e-4, atol=1e-5)
