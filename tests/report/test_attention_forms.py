"""Pictures of every form of attention."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from coattend.report.attention_figure import attention_figure
from coattend.report.matrix_figure import has_matrices, matrices_figure
from coattend.report.views import has_attention, layer_picture, layer_views, posed


@pytest.mark.parametrize("form", ["gate", "slice_gate", "pose,heads=2", "output,heads=2"])
def test_what_is_drawn_moves_with_the_image(form: str) -> None:
    network = ca.create_model(f"p4cnn:width=2,attention={form}")
    images = posed(torch.randn(1, 28, 28), network.group)
    views = layer_views(network, images)
    assert has_attention(network)
    assert len(views) == (6 if form == "gate" else 7)
    for view in views:
        assert view.mask is not None
        assert view.multiplies == ("pose" not in form)
        assert layer_picture(view, network.group).difference < 1e-9
    assert has_matrices(network) == ("gate" not in form)


def test_shares_are_called_so() -> None:
    pytest.importorskip("matplotlib")
    network = ca.create_model("p4cnn:width=2,attention=pose,heads=2")
    images = posed(torch.randn(1, 28, 28), network.group)
    view = layer_views(network, images)[1]
    figure = attention_figure(view, images, ["row"] * 4, "title", network.group)
    texts = " ".join(text.get_text() for text in figure.texts)
    assert "Share: the attention that each response gets" in " ".join(texts.split())
    assert {axes.get_title() for axes in figure.axes} >= {"share", "shares brought back"}
    assert len(matrices_figure(network).axes) > 7


def test_attention_over_positions_has_pictures() -> None:
    network = ca.create_model("coat_vit:width=8,depth=1,token_heads=2,mlp=2").eval()
    views = layer_views(network, posed(torch.randn(3, 16, 16), network.group))
    attended = [view for view in views if view.name.endswith("block1.attention")]
    assert len(attended) == 1
    assert attended[0].mask is not None
    assert layer_picture(attended[0], network.group).difference < 1e-9
