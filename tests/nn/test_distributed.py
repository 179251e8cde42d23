"""Batch norm across processes: statistics and gradients of the joint batch, on CPU with gloo."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import coattend as ca

PATIENCE = timedelta(seconds=60)
SHARES = (3, 5)  # uneven: every process must weigh by what it holds


def make_net() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        ca.nn.LiftingConv2d(1, 3, 3, "p4"),
        ca.nn.CoAttention(3, "p4"),
        ca.nn.GroupBatchNorm2d(3),
        torch.nn.ReLU(),
        ca.nn.GroupConv2d(3, 3, 3, "p4"),
        ca.nn.GroupBatchNorm2d(3, momentum=None),
        ca.nn.SliceCoAttentiveConv2d(3, 2, 3, "p4"),
        ca.nn.GroupPool("p4", over=(0, 2)),
    )


def batch() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(sum(SHARES), 1, 8, 8) * torch.linspace(0.5, 3, sum(SHARES))[:, None, None, None]


def work(rank: int, folder: str) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(SHARES), timeout=PATIENCE
    )
    if rank == 0:
        make_net()(batch())  # a look of one process: nobody else is there to wait for
    net = make_net()
    ca.nn.GroupBatchNorm2d.convert_sync_batchnorm(net)
    x = batch().split(SHARES)[rank]
    net(x).square().sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    torch.save([p.grad for p in net.parameters()], f"{folder}/gradients{rank}.pt")
    torch.save(net.state_dict(), f"{folder}/state{rank}.pt")
    torch.save(sharded_difference(), f"{folder}/sharded{rank}.pt")
    dist.destroy_process_group()


def sharded_difference() -> torch.Tensor:
    """Build on the meta device, shard by FSDP2, fill, load; then compare with the network itself."""
    expected = make_net().eval()
    with torch.device("meta"):
        net = make_net().eval()
    for layer in net:
        fully_shard(layer, mesh=init_device_mesh("cpu", (len(SHARES),)))
    net.to_empty(device="cpu")
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    set_model_state_dict(net, expected.state_dict(), options=StateDictOptions(full_state_dict=True))
    return (net(batch()) - expected(batch())).abs().max().detach()


@pytest.mark.slow
@pytest.mark.ddp
def test_two_processes_see_the_joint_batch_and_share_a_network_built_on_the_meta_device() -> None:
    net = make_net()
    net(batch()).square().sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, args=(folder,), nprocs=len(SHARES))
        for rank in range(len(SHARES)):
            gradients = torch.load(Path(folder) / f"gradients{rank}.pt", weights_only=True)
            for mine, parameter in zip(gradients, net.parameters(), strict=True):
                torch.testing.assert_close(mine, parameter.grad, rtol=1e-10, atol=1e-10)
            assert torch.load(Path(folder) / f"sharded{rank}.pt", weights_only=True) == 0
            state = torch.load(Path(folder) / f"state{rank}.pt", weights_only=True)
            for name, value in net.state_dict().items():
                torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def test_no_collective_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", reduced.append)
    net = make_net()
    net(batch())
    assert not reduced
    ca.nn.GroupBatchNorm2d.convert_sync_batchnorm(net)
    assert "sync=True" in repr(net)
    net.eval()(batch())
    assert not reduced
    net.train()(batch())
    assert len(reduced) == 4  # sums and squares of two norms
    ca.nn.GroupBatchNorm2d.convert_sync_batchnorm(net, sync=False)
    net(batch())
    assert len(reduced) == 4
