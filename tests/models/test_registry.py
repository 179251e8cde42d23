from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.models import network_name
from coattend.models.options import parse_options, write_options
from coattend.models.paper import TABLE_1
from coattend.nn import CoAttention, SliceCoAttentiveConv2d


def test_wildcards_keep_the_order_of_table_1() -> None:
    assert ca.list_models()[:21] == list(TABLE_1)
    assert ca.list_models("a_*p4*") == ["a_p4cnn", "a_p4_allcnn", "a_p4m_allcnn", "a_p4m_resnet44"]
    assert ca.list_models("nothing*") == []


def test_entries_hold_what_the_paper_prints() -> None:
    entry = ca.model_entry("a_p4cnn")
    assert (entry.title, entry.dataset, entry.error, entry.spread) == ("a-p4-CNN", "rotated-mnist", 2.06, 0.0429)
    assert (ca.model_entry("nin").error, ca.model_entry("nin").own_error) == (10.41, 15.92)
    assert ca.model_entry("dren:width=3").published_count == "19.88k"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a_p4cn", {}, r"unknown model 'a_p4cn' \(did you mean a_p4cnn.*; the known ones are z2cnn, p4cnn"),
        ("zzz", {}, "unknown model 'zzz'; the known ones are z2cnn"),
        (
            "a_p4cnn",
            {"atention": "output"},
            r"no option 'atention' \(did you mean attention.*its options are group, width",
        ),
        ("p4cnn:hed=max", {}, r"no option 'hed' \(did you mean head"),
        ("p4cnn:head", {}, "expected option=value.*'head'"),
        ("p4cnn:head=min", {}, "head must be one of decycle, max, mean, sum, got 'min'"),
        ("a_p4cnn:attention=input", {}, "attention must be one of none, output, slice, slice_gate, .*got 'input'"),
        ("a_p4cnn:position=norm", {}, "attention=slice acts inside the convolution"),
        ("p4cnn:position=start", {}, "position must be one of conv, norm, relu"),
        ("p4_allcnn:downsample=crop", {}, "downsample must be one of stride, pool"),
        ("a_p4cnn:structure=circulant", {}, "structure must be one of group, paper, full"),
        ("p4cnn:group=p5", {}, "unknown group 'p5'"),
        ("resnet20:width=8-16", {}, "width must be one number or three"),
        ("nin:downsample=pool", {}, "nin has no strided convolution that downsample=pool could replace"),
        (None, {}, "expected a model's name such as 'p4cnn', got None"),
        ("p4m_allcnn:width=x", {}, "width must be a whole number from 1 to 1,048,576, got 'x'"),
        ("p4cnn:width=0", {}, "width must be a whole number from 1"),
        ("p4cnn", {"width": 10**20}, "width must be a whole number from 1"),
        ("p4cnn:width=1000000", {}, "p4cnn cannot be built so large .*choose a smaller width"),
        ("p4cnn", {"width": True}, "width must be a whole number"),
        ("p4m_resnet44:blocks=1000000000", {}, "blocks must be a whole number from 1 to 200"),
        ("p4cnn", {"dropout": "x"}, "dropout must be a finite number, got 'x'"),
        ("p4cnn:init_std=small", {}, "init_std must be one of fan_in, he, got 'small'"),
        ("p4cnn", {"init_std": None}, "init_std must be a finite number, got None"),
        ("p4cnn", {"norm_eps": float("nan")}, "norm_eps must be a finite number, got nan"),
        ("p4m_resnet44", {"attend_shortcuts": 3}, "attend_shortcuts must be true or false, got 3"),
    ],
)
def test_mistakes_are_answered(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.create_model(name, **options)


def test_options_after_the_name_and_as_keywords() -> None:
    text = "attention=none, dropout=0.3,width=11-23-45,flag=True,eps=1e-3,n=7"
    assert parse_options(text) == {
        "attention": None, "dropout": 0.3, "width": (11, 23, 45), "flag": True, "eps": 1e-3, "n": 7,
    }  # fmt: skip
    assert ca.create_model("p4cnn:width=3", width=5).feature_channels == (5, 5)
    assert ca.create_model("p4cnn", width=np.int64(5)).config.options["width"] == 5
    for without in (ca.create_model("a_p4cnn", attention="none"), ca.create_model("a_p4cnn:attention=none")):
        assert without.config.options["attention"] is None
        assert not any(isinstance(m, CoAttention) for m in without.modules())


def test_options_are_written_as_they_are_read() -> None:
    text = "attention=none,dropout=0.3,width=11-23-45,norm=true,group=C4 clockwise"
    assert write_options(parse_options(text)) == text
    assert write_options({"group": ca.dihedral(4), "relative": {"stages.0.layer2.conv": (0, 1)}}) == (
        "group=D4,relative=by-layer"
    )


def test_one_network_has_one_name() -> None:
    for name in ("p4cnn", "a_p4cnn:attention=output", "resnet44:width=11-23-45", "p4cnn:group=D4,norm_eps=0.1"):
        assert network_name(ca.create_model(name)) == name
    assert network_name(ca.create_model("p4cnn:norm_eps=0.1,head=decycle", group="D4")) == "p4cnn:group=D4,norm_eps=0.1"
    assert network_name(ca.create_model("p4cnn", group=ca.cyclic(4))) == "p4cnn"
    # what follows from the data is left out
    assert network_name(ca.create_model("p4cnn:width=2,num_classes=3,in_channels=3")) == "p4cnn:width=2"


def test_lists_of_models_want_a_pattern() -> None:
    with pytest.raises(ValueError, match="expects a pattern such as"):
        ca.list_models(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["C2", "C8", "D4", "D3"])
@pytest.mark.parametrize("name", ["a_p4cnn", "a_p4m_allcnn", "a_p4m_resnet44", "a_r_nin_x4", "a_r_resnet20_x4"])
def test_any_group_width_classes_and_channels(name: str, group: str) -> None:
    options = {"blocks": 1} if "resnet" in name else {}
    model = ca.create_model(name, group=group, width=4, num_classes=3, in_channels=2, **options)
    size = ca.model_entry(name).image_size
    assert model(torch.randn(2, 2, size, size)).shape == (2, 3)
    attentions = [m for m in model.modules() if isinstance(m, CoAttention)]
    assert {m.group for m in attentions} == {ca.get_group(group)}


def test_a_users_own_group_can_be_passed() -> None:
    quarter = ca.dihedral(4).restrict((0, 2, 4, 6))
    model = ca.create_model("a_p4cnn", group=quarter, width=4)
    ca.assert_equivariant(model, torch.randn(1, 1, 28, 28), quarter)
    assert ca.is_exact(model, 28)
    assert not ca.is_exact(ca.create_model("p4cnn", group="C8", width=2), 28)


@pytest.mark.parametrize("position", ["conv", "norm", "relu"])
def test_attention_sits_where_it_is_asked_to(position: str) -> None:
    model = ca.create_model("p4cnn:attention=output", position=position)
    names = [name for name, _ in model.stages[0].layer2.named_children()]
    expected = {
        "conv": ["conv", "attention", "norm", "act"],
        "norm": ["conv", "norm", "attention", "act"],
        "relu": ["conv", "norm", "act", "attention"],
    }
    assert names == expected[position]
    ca.assert_equivariant(model, torch.randn(1, 1, 28, 28), "p4")


@pytest.mark.parametrize("name", ["a_p4m_allcnn", "a_p4m_resnet44", "a_r_nin_x4", "a_r_resnet20_x4"])
@pytest.mark.parametrize("position", ["norm", "relu"])
def test_other_positions_keep_equivariance_in_every_family(name: str, position: str) -> None:
    options = {"blocks": 2} if "resnet" in name else {}
    model = ca.create_model(name, attention="output", position=position, width=4, **options)
    ca.assert_equivariant(
        model, torch.randn(1, 3, 33 if "nin" not in name else 32, 33 if "nin" not in name else 32), model.group
    )


def test_attention_is_in_every_layer_that_the_counts_ask_for() -> None:
    slices = ca.create_model("a_dren_maxpool")
    assert sum(isinstance(m, SliceCoAttentiveConv2d) for m in slices.modules()) == 6
    assert sum(isinstance(m, CoAttention) for m in slices.modules()) == 7
    assert sum(isinstance(m, CoAttention) for m in ca.create_model("a_p4m_allcnn").modules()) == 9
    # 1 + 6 * 7 convolutions and 2 shortcuts; the linear head has none
    assert sum(isinstance(m, CoAttention) for m in ca.create_model("a_p4m_resnet44").modules()) == 45
    assert sum(isinstance(m, CoAttention) for m in ca.create_model("a_r_resnet20_x4").modules()) == 22
    for name in ("p4cnn", "p4m_allcnn", "r_nin_x4"):
        assert not any(isinstance(m, CoAttention) for m in ca.create_model(name).modules())


def test_attention_vectors_are_drawn_like_the_weights_of_their_layer() -> None:
    torch.manual_seed(0)
    model = ca.create_model("a_p4m_allcnn")
    off = torch.cat([m.weight[:, 1:].flatten() for m in model.modules() if isinstance(m, CoAttention)])
    assert abs(off.std().item() / 0.035 - 1) < 0.05
    assert abs(model.stages[1].layer5.conv.weight.std().item() / 0.035 - 1) < 0.01
    resnet = ca.create_model("a_p4m_resnet44")
    block = resnet.stages[2].blocks[3]
    he = (2 / (45 * 8 * 9)) ** 0.5
    assert abs(block.conv1.conv.weight.std().item() / he - 1) < 0.01
    assert abs(block.conv1.attention.weight[:, 1:].std().item() / he - 1) < 0.15
    assert (block.conv1.attention.weight[:, 0] == 1).all()


@pytest.mark.parametrize("name", ["a_p4cnn", "p4m_allcnn", "a_r_resnet20_x4", "p4m_resnet44", "r_nin_x4"])
def test_features_only_returns_a_map_per_stage(name: str) -> None:
    options = {"blocks": 1} if "resnet" in name else {}
    backbone = ca.create_model(name, features_only=True, width=6, **options)
    size = ca.model_entry(name).image_size
    x = torch.randn(2, backbone.in_channels, size, size)
    features = backbone(x)
    assert [f.shape[1] for f in features] == list(backbone.feature_channels)
    assert all(f.shape[2] == backbone.group.order for f in features)
    if "cnn" not in name or "all" in name:
        assert [size // f.shape[-1] for f in features] == list(backbone.feature_reductions)
    assert not any(key.startswith("head") for key in backbone.state_dict())
    if ca.is_exact(backbone, size):
        ca.assert_equivariant(backbone, x, backbone.group)


def test_is_exact_for_models_of_ones_own() -> None:
    own = torch.nn.Sequential(ca.nn.LiftingConv2d(2, 4, 3, "p4"), ca.nn.SpatialMaxPool2d(2), ca.nn.GroupPool("p4"))
    assert ca.is_exact(own, 10)
    assert not ca.is_exact(own, 11)
    assert ca.is_exact(own, (10, 12))
    assert not ca.is_exact(own, (10, 13))
    assert not ca.is_exact(torch.nn.Sequential(own[0], ca.nn.CoAttention(4, "p4", "full")), 10)
    assert ca.is_exact(torch.nn.Sequential(own[0], ca.nn.CoAttention(4, "p4", "paper")), 10)
    assert not ca.is_exact(ca.create_model("a_p4m_allcnn:structure=paper,downsample=pool"), 32)
    with pytest.raises(ValueError, match="a model with a convolution"):
        ca.is_exact(torch.nn.ReLU(), 10)
