"""A p4 network as other people write it: rot90 and roll by hand, own names, no biases, a constant factor."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import coattend as ca
from coattend.models import convert_state_dict
from coattend.nn import estimate_norm_statistics

FACTOR = 2 * math.pi / 4
RENAME = {
    r"c([12])\.weight": r"stages.0.layer\1.conv.weight",
    r"c([3-6])\.weight": r"stages.1.layer\1.conv.weight",
    r"c7\.weight": r"head.layer7.conv.weight",
    r"bn([12])\.(.*)": r"stages.0.layer\1.norm.\2",
    r"bn([3-6])\.(.*)": r"stages.1.layer\1.norm.\2",
}


class ForeignConv(torch.nn.Module):
    def __init__(self, poses: int, cin: int, cout: int, k: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(cout, cin, poses, k, k) / math.sqrt(cin * poses * k * k))

    def forward(self, x: Tensor) -> Tensor:
        out = []
        for r in range(4):
            turned = torch.rot90(self.weight, r, (-2, -1)).roll(r, dims=2)
            bank = turned.flatten(1, 2) if x.ndim == 5 else turned[:, :, 0]
            y = F.conv2d(x.flatten(1, 2) if x.ndim == 5 else x, bank)
            out.append(y * FACTOR if x.ndim == 5 else y)
        return torch.stack(out, dim=2)


class ForeignP4CNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for i in range(1, 8):
            setattr(self, f"c{i}", ForeignConv(1 if i == 1 else 4, 1 if i == 1 else 10, 10, 4 if i == 7 else 3))
        for i in range(1, 7):
            setattr(self, f"bn{i}", torch.nn.BatchNorm3d(10, eps=2e-5))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, 7):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"c{i}")(x)))
            if i == 2:
                x = F.max_pool3d(x, (1, 2, 2))
        return self.c7(x).amax((2, 3, 4))


def foreign() -> ForeignP4CNN:
    model = ForeignP4CNN()
    for i in range(1, 7):
        torch.nn.init.uniform_(getattr(model, f"bn{i}").weight, 0.5, 1.5)
        torch.nn.init.normal_(getattr(model, f"bn{i}").bias)
    estimate_norm_statistics(model, [torch.randn(8, 1, 28, 28)])
    return model.eval()


def test_converted_weights_give_the_same_logits() -> None:
    theirs, ours = foreign(), ca.create_model("p4cnn:head=max").eval()
    ours.load_state_dict(convert_state_dict(theirs.state_dict(), ours, RENAME, group_conv_factor=FACTOR))
    x = torch.randn(5, 1, 28, 28)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)
    ours.load_state_dict(convert_state_dict(theirs.state_dict(), ours, RENAME))
    assert (ours(x) - theirs(x)).abs().max() > 1e-2  # without the factor they differ


def test_what_finds_no_place_is_listed() -> None:
    state, ours = foreign().state_dict(), ca.create_model("p4cnn:head=max")
    with pytest.raises(
        ValueError, match=r"no place for bn1.weight.*and more; give a pattern.*stages.0.layer1.conv.weight"
    ):
        convert_state_dict(state, ours, {k: v for k, v in RENAME.items() if k.startswith("c")})
    with pytest.raises(ValueError, match=r"no place for c1.weight -> stages.9.conv.weight"):
        convert_state_dict({"c1.weight": state["c1.weight"]}, ours, {r"c1\.weight": "stages.9.conv.weight"})
    with pytest.raises(ValueError, match=r"the model also has stages.0.layer1.norm.weight"):
        convert_state_dict({"c1.weight": state["c1.weight"]}, ours, RENAME)
    with pytest.raises(
        ValueError, match=r"c7.weight is \(10, 10, 4, 4, 4\), but head.layer7.conv.weight is \(10, 10, 4, 4\)"
    ):
        convert_state_dict(state, ca.create_model("p4cnn"), RENAME)
