"""The folder of kernels changes nothing but speed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

import coattend as ca

STEP = """
import sys, torch
import coattend as ca

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
images = torch.randn(2, 1, 28, 28)
results = []
for name in ("a_p4cnn", "a_dren_maxpool"):
    model = ca.create_model(name, width=3)
    y = model(images)
    y.square().sum().backward()
    results += [y.detach(), *(p.grad for p in model.parameters())]
# equal maxima: who gets the gradient
x = torch.zeros(1, 2, 4, 4, 4, requires_grad=True)
ca.nn.SpatialMaxPool2d(2)(ca.nn.CoAttention(2, "p4")(x)).sum().backward()
compiled = torch.compile(ca.nn.GroupConv2d(2, 2, 3, "p4"), backend="aot_eager", fullgraph=True)
results += [x.grad, compiled(torch.ones(1, 2, 4, 5, 5)).detach()]
has_operators = hasattr(torch.ops.coattend, "co_attention")
torch.save((ca.functional.build_kernels(), has_operators, results), sys.argv[1])
"""


def test_without_the_folder_networks_compute_the_same(tmp_path: Path) -> None:
    source = Path(ca.__file__).parent
    ignored = shutil.ignore_patterns("_kernels", "__pycache__", "weights", "explorer")
    shutil.copytree(source, tmp_path / "coattend", ignore=ignored)
    computed = []
    for root in (source.parent, tmp_path):
        file = tmp_path / "results.pt"
        command = [sys.executable, "-c", STEP, str(file)]
        subprocess.run(
            command, check=True, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
        )
        computed.append(torch.load(file))
    assert [(builds, has_operators) for builds, has_operators, _ in computed] == [(True, True), (False, False)]
    for fast, plain in zip(computed[0][2], computed[1][2], strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-11)
