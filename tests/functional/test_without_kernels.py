"""The folder of kernels changes nothing but speed."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

import coattend as ca


def step() -> tuple[bool, list[torch.Tensor]]:
    """Whether there are operators; logits and gradients of networks, tied maxima and a compiled layer."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    images = torch.randn(2, 1, 28, 28)
    results = []
    for name in ("a_p4cnn", "a_dren_maxpool"):
        model = ca.create_model(name, width=3)
        y = model(images)
        y.square().sum().backward()
        results += [y.detach(), *(p.grad for p in model.parameters())]
    x = torch.zeros(1, 2, 4, 4, 4, requires_grad=True)
    ca.nn.SpatialMaxPool2d(2)(ca.nn.CoAttention(2, "p4")(x)).sum().backward()
    compiled = torch.compile(ca.nn.GroupConv2d(2, 2, 3, "p4"), backend="aot_eager", fullgraph=True)
    results += [x.grad, compiled(torch.ones(1, 2, 4, 5, 5)).detach()]
    return hasattr(torch.ops.coattend, "co_attention"), results


def test_without_the_folder_networks_compute_the_same(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("_kernels", "__pycache__", "weights", "explorer")
    shutil.copytree(Path(ca.__file__).parent, tmp_path / "coattend", ignore=ignored)
    code = f"""
from __future__ import annotations
import sys, torch, coattend as ca
{inspect.getsource(step)}
assert ca.__file__.startswith(sys.argv[1])
assert not ca.functional.build_kernels()
torch.save(step(), sys.argv[1] + "/results.pt")
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment)
    has_operators, plain = torch.load(tmp_path / "results.pt")
    assert not has_operators
    has_operators, fast = step()
    assert has_operators
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
