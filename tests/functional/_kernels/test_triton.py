"""The GPU kernels: in Triton's interpreter against the plain formula, and through its compiler. Neither needs a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional._kernels.attention import attend_slices_gradients
from coattend.functional.attention import attend_slices_formula, plane_index

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

# Triton reads its kernels from files and decides on import whether to interpret them: both ask for another process.
INTERPRETED = """
import sys, warnings
import torch, triton, triton.language as tl

warnings.filterwarnings("ignore", "All-NaN slice")  # numpy, which is what interprets; one case has them

@triton.jit
def probe(x):
    tl.store(x, tl.load(x) + 1)

one = torch.zeros(1)
try:
    probe[(1,)](one)
except Exception as reason:
    sys.exit(f"no interpreter: {reason!r}")
assert one.item() == 1

from coattend.functional._kernels import attention, triton as kernels
assert attention.gpu_kernels(torch.device("cpu")) is kernels
results = {}
for name, (planes, matrices, rows, channel_step, up) in torch.load(sys.argv[1]).items():
    y = kernels.forward(planes, matrices, rows, channel_step)
    results[name] = y, *kernels.backward(up, planes, matrices, rows, channel_step)
torch.save(results, sys.argv[2])
"""

COMPILED = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coattend.functional._kernels import triton as kernels

for dtype in ("fp32", "bf16"):
    for kernel in (kernels._forward, kernels._backward):
        constants = {"order": 3, "poses": 4, "wide": tl.float32, "width": 512, "tiles": 2}
        types = {"matrices": "*fp32", "sums": "*fp32", "rows": "*i64", **dict.fromkeys(constants, "constexpr")}
        types |= dict.fromkeys(("y", "planes", "grad", "grad_planes"), "*" + dtype)
        signature = {name: types.get(name, "i32") for name in kernel.arg_names}
        constants = {name: value for name, value in constants.items() if name in signature}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False})
        assert built.asm["cubin"]
        print(kernel.__name__)
"""


class Case(NamedTuple):
    planes: Tensor
    matrices: Tensor
    rows: list[int]
    channel_step: int
    up: Tensor

    def to(self, dtype: torch.dtype) -> Case:
        return self._replace(planes=self.planes.to(dtype), matrices=self.matrices.to(dtype), up=self.up.to(dtype))


def case(order: int, size: tuple[int, int], channels: int = 2, slices: int = 1, batch: int = 2) -> Case:
    """Rows in any order within each channel."""
    count = slices * order
    planes = torch.randn(batch, channels * count, *size, dtype=torch.float64)
    matrices = torch.randn(channels, slices, order, order, dtype=torch.float64)
    up = torch.randn(batch, channels, order, *size, dtype=torch.float64)
    return Case(planes, matrices, torch.randperm(count).tolist(), count, up)


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    found = {f"order {order}": case(order, (3, 5)) for order in (1, 2, 3, 4, 8, 12, 16)}
    found["order 32, two tiles"] = case(32, (5, 17), channels=1, batch=1)
    found["order 16, two parts of two tiles"] = case(16, (17, 19), channels=1, batch=1)  # the last tile is empty
    found["order 4, two parts"] = case(4, (23, 25))
    found["order 2, one pixel"] = case(2, (1, 1))
    found["order 3, two slices"] = case(3, (4, 4), slices=2)
    layer = ca.nn.SliceCoAttentiveConv2d(1, 2, 1, "p4m")
    found["slices of a layer"] = case(8, (3, 3), slices=8, batch=1)._replace(rows=layer.rows, channel_step=8)
    zeros = case(4, (3, 5))
    found["all poses tie"] = zeros._replace(matrices=torch.zeros_like(zeros.matrices))
    some = case(3, (3, 5))
    some.matrices[..., 1:] = -1.0  # every target but the first alike
    found["some poses tie"] = some
    plain = case(4, (5, 6))
    turned = {name: getattr(plain, name).mT.contiguous().mT for name in ("planes", "matrices", "up")}
    found["strided"] = plain._replace(**turned)
    found["no images"] = case(4, (3, 3), batch=0)
    found["no pixels"] = case(4, (0, 3))
    return found


def exact(example: Case) -> tuple[Tensor, Tensor, Tensor]:
    planes, matrices, rows, channel_step, up = example
    index, slices = plane_index(planes, rows, channel_step), matrices.shape[1]
    y = attend_slices_formula(planes, matrices.flatten(0, 1), index, slices)
    grad_planes, grad_matrix = attend_slices_gradients(up, planes, matrices.flatten(0, 1), index, slices)
    return y, grad_planes, grad_matrix.reshape(matrices.shape)


CASES = cases()
WIDE = {torch.float32: 1e-5, torch.float64: 1e-12}
NARROW = {dtype: 4 * torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}


def run(folder: Path, script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, "-W", "error", path, *map(str, arguments)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """What the interpreted kernels make of all the cases: y, grad_planes, grad_matrices."""
    folder = tmp_path_factory.mktemp("triton")
    given = {f"{name} {dtype}": tuple(example.to(dtype)) for dtype in WIDE for name, example in CASES.items()}
    given |= {f"order 4 {dtype}": tuple(CASES["order 4"].to(dtype)) for dtype in NARROW}
    unknown = CASES["order 4"].to(torch.float32)
    unknown = unknown._replace(planes=unknown.planes.clone())
    unknown.planes[0, 2, 1, 1] = float("nan")
    given["not a number"] = tuple(unknown)
    unknown = CASES["order 4"].to(torch.float32)
    unknown = unknown._replace(matrices=unknown.matrices.clone())
    unknown.matrices[0, 0, 1, 2] = float("nan")
    given["not a number in a matrix"] = tuple(unknown)
    torch.save(given, folder / "given.pt")
    ended = run(folder, INTERPRETED, folder / "given.pt", folder / "results.pt", TRITON_INTERPRET="1")
    if ended.stderr.startswith("no interpreter"):
        pytest.skip(f"Triton's interpreter does not work here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    return torch.load(folder / "results.pt")


def assert_near(ours: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float) -> None:
    for mine, other in zip(ours, wanted, strict=True):
        scale = max(float(other.abs().max()), 1.0) if other.numel() else 1.0
        torch.testing.assert_close(mine.double(), other.double(), rtol=0, atol=tolerance * scale)


@needs_triton
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_equal_the_formula(name: str, dtype: torch.dtype, results: dict) -> None:
    ours = results[f"{name} {dtype}"]
    assert {t.dtype for t in ours} == {dtype}
    assert all(t.is_contiguous() for t in ours)
    assert_near(ours, exact(CASES[name]), WIDE[dtype])


@needs_triton
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_types_compute_in_single(dtype: torch.dtype, results: dict) -> None:
    ours = results[f"order 4 {dtype}"]
    assert {t.dtype for t in ours} == {dtype}
    assert_near(ours, exact(CASES["order 4"].to(dtype).to(torch.float32)), NARROW[dtype])


@needs_triton
def test_not_a_number_is_not_swallowed(results: dict) -> None:
    y, grad_planes, grad_matrices = results["not a number"]
    assert y[0, 0, :, 1, 1].isnan().all()
    assert y.isnan().sum() == 4
    assert grad_planes.isnan().sum() == 4
    assert grad_matrices[0].isnan().all()


@needs_triton
def test_a_matrix_that_is_not_a_number_spreads_to_all_poses_of_its_channel(results: dict) -> None:
    y, grad_planes, _ = results["not a number in a matrix"]
    assert y[:, 0].isnan().all()
    assert grad_planes[:, :4].isnan().all()
    assert not y[:, 1].isnan().any()


@needs_triton
def test_the_compiler_accepts_the_kernels(tmp_path: Path) -> None:
    ended = run(tmp_path, COMPILED, TRITON_INTERPRET="0")
    assert ended.stdout.split() == ["_forward", "_backward"] * 2, ended.stderr


NOTICE = """
import sys, torch
if sys.argv[1] == "without":
    sys.modules["triton"] = None
from coattend.functional._kernels import attention
assert [attention.gpu_kernels(torch.device("cpu")) for _ in range(2)] == [None, None]
"""


@pytest.mark.parametrize("triton", ["without", pytest.param("with", marks=needs_triton)])
def test_where_triton_cannot_serve_one_notice_says_so(triton: str, tmp_path: Path) -> None:
    ended = run(tmp_path, NOTICE, triton, TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("fused co-attention kernel for GPUs is not available") == 1
    assert "install triton and a C compiler" in ended.stderr
    assert run(tmp_path, NOTICE, triton, TRITON_INTERPRET="0", COATTEND_KERNELS="off").stderr == ""
