"""The arrays behind the pictures: under a turn of the input they turn and are relabelled, in every layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coattend as ca
from coattend.data import load_data
from coattend.groups.action import transform_image, transform_map
from coattend.nn import CoAttention
from coattend.report.attention_figure import arrow_field, attention_figure, mosaic, shown_elements
from coattend.report.views import (
    LayerView,
    brought_back,
    dominant_pose,
    layer_picture,
    layer_views,
    pose_name,
    posed,
)


def network(name: str, **options: object) -> nn.Module:
    """With attention vectors large enough to matter."""
    model = ca.create_model(name, width=3, **options).double()
    for module in model.modules():
        if isinstance(module, CoAttention):
            module.reset_parameters(std=1.0)
    return model.eval()


def views_of(model: nn.Module, group: ca.FiniteGroup) -> list[LayerView]:
    return layer_views(model, posed(torch.randn(1, 28, 28), group))


@pytest.mark.parametrize("name", ["C4", "D4"])
@pytest.mark.parametrize("attention", ["output", "slice"])
def test_drawn_masks_turn_and_are_relabelled_with_the_input(name: str, attention: str) -> None:
    G = ca.get_group(name)
    views = views_of(network("a_p4cnn", group=name, attention=attention), G)
    assert len(views) == 7
    for view in views:
        drawn = layer_picture(view, G)
        assert drawn.mask is not None
        assert drawn.mask.amax(dim=1).eq(1).all()
        assert drawn.mask.min() < 0.99  # a mask of ones would prove nothing
        for g in G.elements:
            for array in (drawn.mask, drawn.responses):
                expected = transform_map(array[None, :1], G, g)[0, 0]
                torch.testing.assert_close(array[g], expected, rtol=0, atol=1e-11)
            torch.testing.assert_close(drawn.back[g], drawn.mask[0], rtol=0, atol=1e-11)
        assert drawn.difference < 1e-10


def test_a_matrix_without_structure_is_seen_not_to_move_in_step() -> None:
    views = views_of(network("a_p4cnn", attention="output", structure="full"), ca.get_group("p4"))
    assert all(layer_picture(view, view.group).difference > 1e-2 for view in views)


def test_networks_without_attention_show_responses() -> None:
    G = ca.get_group("p4")
    for view in views_of(network("p4cnn"), G):
        assert view.mask is None
        assert layer_picture(view, G).difference < 1e-10
    plain = views_of(network("z2cnn"), G)
    assert {view.group.order for view in plain} == {1}
    assert all(layer_picture(view, G).difference > 1e-2 for view in plain)
    assert len(arrow_field(plain[0], G, 28, 0)) == 0


@pytest.mark.parametrize("name", ["p4cnn", "a_p4cnn"])
def test_rows_of_steerable_filters_differ_little_between_quarter_turns(name: str) -> None:
    G = ca.get_group("C8")
    digit = load_data("mini").test.images[0].double() / 255
    views = layer_views(network(name, group="C8", filters="steerable", head="max"), posed(digit, G))
    assert len(views) == 7
    for view in views:
        drawn = layer_picture(view, G)
        assert drawn.difference < 1e-10
        assert 1e-10 < drawn.interpolated_difference < 0.5


def test_interpolation_reads_nothing_outside_of_the_frame() -> None:
    """A constant map stays the same where its turned frame covers it; corners that a turn moves out are left out."""
    G = ca.get_group("C16")
    for size in (1, 2, 4, 5, 9):
        back = brought_back(torch.full((16, 1, 16, size, size), 0.7), G)
        seen = back[~back.isnan()]
        torch.testing.assert_close(seen, torch.full_like(seen, 0.7))
        assert not back[0::4].isnan().any()
        assert not back[:, :, :, size // 2, size // 2].isnan().any()
        assert back[2, :, :, 0, 0].isnan().all() == (size > 2)


def test_the_dominant_pose_turns_with_the_image() -> None:
    G = ca.get_group("D4")
    for view in views_of(network("a_p4cnn", group="D4", attention="output"), G)[:6]:
        pose, strength = dominant_pose(view)
        for g in G.elements:
            relabelled = torch.tensor(G.product[g])[pose[:1]]
            assert torch.equal(pose[g : g + 1], transform_image(relabelled, G, g))
            torch.testing.assert_close(strength[g : g + 1], transform_image(strength[:1], G, g))


def made_up(strongest: int, group: ca.FiniteGroup, size: int = 4, reduction: int = 2) -> LayerView:
    x = torch.zeros(1, 1, group.order, size, size)
    x[0, 0, strongest, 0, size - 1] = 1  # top right
    return LayerView("made up", group, x, None, (), reduction)


@pytest.mark.parametrize(
    ("g", "direction", "mirrored"),
    [(0, (0, -1), 0), (1, (-1, 0), 0), (2, (0, 1), 0), (3, (1, 0), 0), (4, (0, -1), 1), (5, (-1, 0), 1)],
)
def test_arrows_point_where_the_pose_sends_up(g: int, direction: tuple[int, int], mirrored: int) -> None:
    G = ca.get_group("D4")
    (arrow,) = arrow_field(made_up(g, G), G, image_size=28, row=0)
    assert arrow[:2].tolist() == [13.5 + 3, 13.5 - 3]  # positions are two pixels apart, about the centre
    assert np.allclose(arrow[2:4], direction)
    assert arrow[4] == mirrored


def test_reductions_slices_and_names() -> None:
    G = ca.get_group("p4")
    views = views_of(network("a_p4cnn", attention="slice"), G)
    assert [view.reduction for view in views] == [1, 1, 2, 2, 2, 2, 2]
    assert views[0].channel_name(2) == "channel 2"
    assert views[1].slices == (0, 1, 2, 3)
    assert views[1].channel_name(9) == "channel 2, slice 90°"
    D = ca.get_group("D4")
    assert [pose_name(D, g) for g in D.elements] == [f"{m}{a}°" for m in ("", "m ") for a in (0, 90, 180, 270)]
    assert [ca.get_group("C8").angle(g) for g in range(8)] == [45 * g for g in range(8)]
    assert pose_name(ca.get_group("C4 clockwise"), 1) == "270°"


def test_looking_leaves_the_model_as_it_was() -> None:
    model = network("a_p4cnn", attention="slice").train()
    views_of(model, ca.get_group("p4"))
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_brought_back_undoes_every_element() -> None:
    G = ca.get_group("D4")
    x = torch.randn(1, 2, 8, 5, 5)
    turned: Tensor = torch.cat([transform_map(x, G, g) for g in G.elements])
    assert torch.equal(brought_back(turned, G), x.expand(8, -1, -1, -1, -1))


@pytest.mark.parametrize(("name", "shown"), [("C16", 16), ("C24", 12), ("D16", 16), ("C128", 16)])
def test_figures_of_large_groups_show_evenly_spaced_poses(name: str, shown: int) -> None:
    G = ca.get_group(name)
    view = LayerView("layer", G, torch.rand(G.order, 1, G.order, 4, 4), None, (), 1)
    names = [f"row {g}" for g in G.elements]
    elements = shown_elements(G)
    assert len(elements) == shown
    assert elements == list(range(0, G.order, G.order // shown))
    figure = attention_figure(view, torch.rand(G.order, 1, 4, 4), names, "title", G)
    assert [axes.get_title() for axes in figure.axes[:shown]] == [names[g] for g in elements]
    responses = figure.axes[shown + 1]
    assert [label.get_text() for label in responses.get_xticklabels()] == [pose_name(G, g) for g in elements]
    tiles = view.responses[elements][:, 0, elements].numpy()
    assert np.array_equal(np.asarray(responses.images[0].get_array().filled(np.nan)), mosaic(tiles), equal_nan=True)
    text = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert (f"{shown} of the {G.order} poses are shown." in text) == (G.order > 16)


def test_a_mosaic_keeps_every_number() -> None:
    tiles = np.random.default_rng(0).random((2, 3, 8, 8))
    whole = mosaic(tiles)
    assert whole.shape == (2 * 8 + 1, 3 * 8 + 2)
    assert np.array_equal(whole[9:, 18:], tiles[1, 2])
    assert np.isnan(whole[8]).all()


@pytest.mark.parametrize("width", [16, 17, 28, 33, 96])
def test_arrows_are_few_evenly_spaced_and_symmetric(width: int) -> None:
    G = ca.get_group("p4")
    responses = torch.zeros(1, 1, G.order, width, width)
    responses[:, :, 0] = 1
    view = LayerView("layer", G, responses, None, (), 1)
    places = np.unique(arrow_field(view, G, width, 0)[:, 0])
    assert width / 32 < len(places) <= 17
    assert len(set(np.diff(places))) == 1
    assert np.allclose(places + places[::-1], width - 1)
