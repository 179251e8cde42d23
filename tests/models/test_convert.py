"""Networks as other people write them: GrouPy's order spelt out, own names, no biases, a constant factor."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import coattend as ca
from coattend.models import convert_state_dict
from coattend.nn.observe import estimate_norm_statistics

FACTOR = 2 * math.pi / 4
RENAME = {
    r"c([12])\.weight": r"stages.0.layer\1.conv.weight",
    r"c([3-6])\.weight": r"stages.1.layer\1.conv.weight",
    r"c7\.weight": r"head.layer7.conv.weight",
    r"bn([12])\.(.*)": r"stages.0.layer\1.norm.\2",
    r"bn([3-6])\.(.*)": r"stages.1.layer\1.norm.\2",
}


# The slice of the filter through which output pose (row) sees input pose (column), as GrouPy has it for p4m; its upper
# left quarter is that of p4.
SLICES = [
    [0, 1, 2, 3, 4, 5, 6, 7], [3, 0, 1, 2, 5, 6, 7, 4], [2, 3, 0, 1, 6, 7, 4, 5], [1, 2, 3, 0, 7, 4, 5, 6],
    [4, 5, 6, 7, 0, 1, 2, 3], [5, 6, 7, 4, 3, 0, 1, 2], [6, 7, 4, 5, 2, 3, 0, 1], [7, 4, 5, 6, 1, 2, 3, 0],
]  # fmt: skip


def moved(filters: Tensor, g: int) -> Tensor:
    """GrouPy's element g: turn, then mirror the rows."""
    turned = torch.rot90(filters, g % 4, (-2, -1))
    return turned.flip(-2) if g >= 4 else turned


class ForeignConv(torch.nn.Module):
    def __init__(self, poses: int, slices: int, cin: int, cout: int, k: int) -> None:
        super().__init__()
        self.poses = poses
        self.weight = torch.nn.Parameter(torch.randn(cout, cin, slices, k, k) / math.sqrt(cin * slices * k * k))

    def forward(self, x: Tensor) -> Tensor:
        out = []
        for g in range(self.poses):
            if x.ndim == 4:
                out.append(F.conv2d(x, moved(self.weight[:, :, 0], g)))
                continue
            seen = (F.conv2d(x[:, :, h], moved(self.weight[:, :, SLICES[g][h]], g)) for h in range(self.poses))
            out.append(FACTOR * sum(seen))
        return torch.stack(out, dim=2)


class ForeignCNN(torch.nn.Module):
    def __init__(self, poses: int, width: int, eps: float) -> None:
        super().__init__()
        for i in range(1, 8):
            shape = (1, 1, width, 3) if i == 1 else (poses, width, 10 if i == 7 else width, 4 if i == 7 else 3)
            setattr(self, f"c{i}", ForeignConv(poses, *shape))
        for i in range(1, 7):
            setattr(self, f"bn{i}", torch.nn.BatchNorm3d(width, eps=eps))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, 7):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"c{i}")(x)))
            if i == 2:
                x = F.max_pool3d(x, (1, 2, 2))
        return self.c7(x).amax((2, 3, 4))


def foreign(poses: int = 4, width: int = 10, eps: float = 2e-5) -> ForeignCNN:
    model = ForeignCNN(poses, width, eps)
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


def test_the_order_of_groupy_follows_from_its_formula() -> None:
    """Output (m, r) sees input (m', r') through slice 4 mu + rho, mu = m + m', rho = r' - (-1)^mu r."""

    def seen(g: int, h: int) -> int:
        mu = (g // 4 + h // 4) % 2
        return 4 * mu + (h % 4 - (-1) ** mu * (g % 4)) % 4

    assert [[seen(g, h) for h in range(8)] for g in range(8)] == SLICES
    image = torch.randn(1, 1, 5, 5)
    for name, expected in (("p4", [0, 1, 2, 3]), ("p4m", [0, 1, 2, 3, 6, 5, 4, 7])):
        conv = ca.nn.GroupConv2d(1, 1, 3, name, bias=False)
        ours = [ca.groups.transform_image(image, name, g) for g in conv.group.elements]
        order = [next(i for i in range(8) if torch.equal(moved(image, i), element)) for element in ours]
        assert order == expected
        theirs = torch.randn_like(conv.weight)
        converted = convert_state_dict({"w": theirs}, torch.nn.Sequential(conv), {"w": "0.weight"})["0.weight"]
        assert torch.equal(converted, theirs[:, :, expected])
        table = conv.group.relative.tolist()
        assert [[order[t] for t in row] for row in table] == [[SLICES[g][h] for h in order] for g in order]


@pytest.mark.parametrize(("name", "eps"), [("p4cnn:head=max,group=p4m", 2e-5), ("dren_maxpool", 1e-3)])
def test_weights_that_keep_groupys_order_give_other_logits(name: str, eps: float) -> None:
    theirs, ours = foreign(8 if "p4m" in name else 4, 2, eps), ca.create_model(name, width=2).eval()
    state = convert_state_dict(theirs.state_dict(), ours, RENAME, group_conv_factor=FACTOR)
    for i in range(2, 8):
        stage = f"stages.{0 if i == 2 else 1}" if i < 7 else "head"
        state[f"{stage}.layer{i}.conv.weight"] = FACTOR * getattr(theirs, f"c{i}").weight
    ours.load_state_dict(state)
    x = torch.randn(2, 1, 28, 28)
    assert (ours(x) - theirs(x)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "poses", "eps"),
    [
        ("p4cnn:head=max", 4, 2e-5),
        ("p4cnn:head=max,group=p4m", 8, 2e-5),
        ("dren_maxpool", 4, 1e-3),  # the clockwise group
        ("z2cnn:head=max", 1, 2e-5),
    ],
)
def test_every_group_that_groupy_has_gives_the_same_logits(name: str, poses: int, eps: float) -> None:
    theirs, ours = foreign(poses, 2, eps), ca.create_model(name, width=2).eval()
    state = theirs.state_dict()
    if poses == 1:  # plain convolutions, in which nobody keeps an axis of length 1
        state = {key: tensor.squeeze(2) if tensor.ndim == 5 else tensor for key, tensor in state.items()}
    ours.load_state_dict(convert_state_dict(state, ours, RENAME, group_conv_factor=FACTOR))
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)


def groupy_attention(x: Tensor, c: Tensor) -> Tensor:
    """Eq. 10 with ``A[h, g] = c(g^-1 h)``, pose by pose in GrouPy's order."""
    logits = torch.stack([sum(x[:, :, h] * c[:, SLICES[g][h], None, None] for h in range(8)) for g in range(8)], 2) / 8
    return x * torch.exp(logits - logits.amax(2, keepdim=True))


@pytest.mark.parametrize("slices", [False, True])
def test_attention_is_put_into_our_order_too(slices: bool) -> None:
    lift, conv = ForeignConv(8, 1, 1, 2, 3), ForeignConv(8, 8, 2, 3, 3)
    c = torch.randn(3 * 8, 8) if slices else torch.randn(3, 8)
    x = torch.randn(2, 1, 7, 7)
    lifted = lift(x)
    if slices:
        total = 0
        for t in range(8):
            of_slice = [F.conv2d(lifted[:, :, SLICES[g].index(t)], moved(conv.weight[:, :, t], g)) for g in range(8)]
            total = total + groupy_attention(FACTOR * torch.stack(of_slice, 2), c.unflatten(0, (3, 8))[:, t])
        layers = [ca.nn.LiftingConv2d(1, 2, 3, "p4m"), ca.nn.SliceCoAttentiveConv2d(2, 3, 3, "p4m")]
        rename = {"lift": "0.weight", "conv": "1.weight", "c": "1.attention.weight"}
    else:
        total = groupy_attention(conv(lifted), c)
        layers = [ca.nn.LiftingConv2d(1, 2, 3, "p4m"), ca.nn.GroupConv2d(2, 3, 3, "p4m"), ca.nn.CoAttention(3, "p4m")]
        rename = {"lift": "0.weight", "conv": "1.weight", "c": "2.weight"}
    ours = torch.nn.Sequential(*layers)
    state = {"lift": lift.weight, "conv": conv.weight, "c": c}
    ours.load_state_dict(convert_state_dict(state, ours, rename, group_conv_factor=FACTOR))
    torch.testing.assert_close(ours(x).sum(2), total.sum(2), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(x)[:, :, 4], total[:, :, 6], rtol=1e-10, atol=1e-10)  # mirrored columns


def test_what_has_no_place_in_groupys_order_is_refused() -> None:
    for group in ("C8", "D2"):
        model = torch.nn.Sequential(ca.nn.GroupConv2d(1, 1, 3, group, bias=False))
        with pytest.raises(ValueError, match=f"z2, p4 and p4m in GrouPy, the model is over {group}"):
            convert_state_dict(model.state_dict(), model, {r"0\.weight": "0.weight"})
    model = torch.nn.Sequential(ca.nn.GroupConv2d(1, 1, 3, "p4m", bias=False, relative=(0, 1, 4)))
    with pytest.raises(ValueError, match="has 3 of the 8 relative poses; convert into the whole network and restrict"):
        convert_state_dict(model.state_dict(), model, {r"0\.weight": "0.weight"})
    model = torch.nn.Sequential(ca.nn.CoAttention(1, "p4m", "paper"))
    with pytest.raises(ValueError, match="Eq. 11 .*cannot be converted; use structure=group"):
        convert_state_dict(model.state_dict(), model, {r"0\.weight": "0.weight"})

    class Scale(ca.nn.PoseAttention):
        def __init__(self, channels: int, group: str) -> None:
            super().__init__(channels, group)
            self.weight = torch.nn.Parameter(torch.ones(channels, self.group.order))

    model = torch.nn.Sequential(Scale(1, "p4m"))
    with pytest.raises(ValueError, match="does not know how the weights of Scale depend on the order of poses"):
        convert_state_dict(model.state_dict(), model, {r"0\.weight": "0.weight"})


def test_factors_are_applied_in_the_precision_of_the_model() -> None:
    weight = torch.randn(2, 2, 4, 3, 3, dtype=torch.float32)
    model = torch.nn.Sequential(ca.nn.GroupConv2d(2, 2, 3, "p4", bias=False))
    found = convert_state_dict({"w": weight}, model, {"w": "0.weight"}, group_conv_factor=FACTOR)["0.weight"]
    assert torch.equal(found, weight.double() * FACTOR)


def test_filters_of_a_plain_network_get_the_axis_of_its_single_pose() -> None:
    model = ca.create_model("z2cnn")
    (name,) = [key for key, tensor in model.state_dict().items() if key.endswith("layer3.conv.weight")]
    assert model.state_dict()[name].shape == (20, 20, 1, 3, 3)
    layer = torch.nn.Sequential(model.get_submodule(name.removesuffix(".weight")))
    weight = torch.randn(20, 20, 3, 3)
    converted = convert_state_dict({"w": weight}, layer, {"w": "0.weight"})
    assert torch.equal(converted["0.weight"], weight[:, :, None])


def test_what_is_no_state_dict_is_refused() -> None:
    with pytest.raises(ValueError, match="expects a state dict and the network to fill, got NoneType and Sequential"):
        convert_state_dict(None, torch.nn.Sequential(), {})  # type: ignore[arg-type]


def test_what_finds_no_place_is_listed() -> None:
    state, ours = foreign().state_dict(), ca.create_model("p4cnn:head=max")
    with pytest.raises(
        ValueError, match=r"no parameter for bn1.weight.*and more; add a pattern.*stages.0.layer1.conv.weight"
    ):
        convert_state_dict(state, ours, {k: v for k, v in RENAME.items() if k.startswith("c")})
    with pytest.raises(ValueError, match=r"no parameter for c1.weight -> stages.9.conv.weight"):
        convert_state_dict({"c1.weight": state["c1.weight"]}, ours, {r"c1\.weight": "stages.9.conv.weight"})
    with pytest.raises(ValueError, match=r"the model also has stages.0.layer1.norm.weight"):
        convert_state_dict({"c1.weight": state["c1.weight"]}, ours, RENAME)
    with pytest.raises(
        ValueError, match=r"c7.weight is \(10, 10, 4, 4, 4\), but head.layer7.conv.weight is \(10, 10, 4, 4\)"
    ):
        convert_state_dict(state, ca.create_model("p4cnn"), RENAME)
