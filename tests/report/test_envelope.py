from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.groups.action import transform_image
from coattend.report import co_occurrence
from coattend.report.envelope import envelope_figure
from coattend.report.style import svg
from coattend.report.views import layer_views
from tests.report.test_views import network


@pytest.mark.parametrize(("name", "attention"), [("C4", "output"), ("C4", "slice"), ("D4", "output")])
def test_envelopes_do_not_depend_on_how_the_images_are_turned(name: str, attention: str) -> None:
    G = ca.get_group(name)
    model = network("a_p4cnn", group=name, attention=attention)
    images = torch.randn(2, 1, 28, 28)
    first = co_occurrence(model, images)
    assert len(first) == 7
    for g in G.elements:
        for layer, envelope in co_occurrence(model, transform_image(images, G, g)).items():
            np.testing.assert_allclose(envelope.attention, first[layer].attention, atol=1e-9)
            np.testing.assert_allclose(envelope.responses, first[layer].responses, atol=1e-9)


def test_an_envelope_that_counts_absolute_poses_would_depend_on_it() -> None:
    """The control: the mean mask by absolute pose moves with the input, so the invariance above is not for free."""
    G = ca.get_group("p4")
    model = network("a_p4cnn", attention="output")
    image = torch.randn(1, 1, 28, 28)
    masks = [layer_views(model, transform_image(image, G, g))[0].mask.mean(dim=(0, 3, 4)) for g in (0, 1)]
    assert (masks[0] - masks[1]).abs().max() > 1e-3


def test_envelopes_are_what_their_definition_says() -> None:
    G = ca.get_group("D4")
    model = network("a_p4cnn", group="D4", attention="output")
    images = torch.randn(1, 1, 28, 28)
    view = layer_views(model, images)[5]
    found = co_occurrence(model, images)[view.name]
    x, mask = view.responses[0].numpy(), view.mask[0].numpy()
    channels, n, height, width = x.shape
    for c in range(channels):
        attention, responses, weight = np.zeros(n), np.zeros(n), 0.0
        for i in range(height):
            for j in range(width):
                along = x[c, :, i, j]
                g0, w = int(along.argmax()), along.max() - along.min()
                weight += w
                for t in range(n):
                    g = G.product[g0, t]
                    attention[t] += w * mask[c, g, i, j]
                    responses[t] += along[g] - along.min()
        np.testing.assert_allclose(found.attention[c], attention / weight)
        np.testing.assert_allclose(found.responses[c], responses / weight)


def test_without_attention_all_poses_count_alike() -> None:
    for envelope in co_occurrence(network("p4cnn"), torch.randn(3, 1, 28, 28)).values():
        assert not envelope.has_attention
        assert (envelope.attention == 1).all()
        np.testing.assert_allclose(envelope.responses[:, 0], 1)
        assert (envelope.responses[:, 1:] < 1).all()
    assert co_occurrence(network("z2cnn"), torch.randn(1, 1, 28, 28)) == {}


def test_images_of_nothing_attend_to_all_poses_alike() -> None:
    first = next(iter(co_occurrence(network("a_p4cnn", attention="output"), torch.zeros(1, 1, 28, 28)).values()))
    np.testing.assert_allclose(first.mean(first.attention), 1)


def test_what_is_not_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expects images \(n, channels, height, width\), at least one, got \(1, 28"):
        co_occurrence(network("p4cnn"), torch.randn(1, 28, 28))


def test_the_figure_is_the_same_each_time() -> None:
    images = torch.randn(2, 1, 28, 28)
    both = {
        "conventional": {"a": co_occurrence(network("p4cnn"), images)},
        "co-attentive, mirrors": {"a": co_occurrence(network("a_p4cnn", group="D4", attention="output"), images)},
    }
    assert svg(envelope_figure(both), "envelopes") == svg(envelope_figure(both), "envelopes")
