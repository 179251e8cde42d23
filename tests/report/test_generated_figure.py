"""Pictures of generated filters: they turn with the image, and the picture says so only if they do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.report.generated_figure import generated_figure, generated_filters
from coattend.report.style import save
from coattend.report.views import posed


def network(options: str = "") -> torch.nn.Module:
    torch.manual_seed(0)
    return ca.create_model(f"e4cnn:width=4{options}").double().eval()


@pytest.mark.parametrize("group", ["C4", "D4", "C8"])
def test_filters_turn_with_the_image(group: str, tmp_path: Path) -> None:
    model = network(f",group={group}" + (",filters=steerable" if group == "C8" else ""))
    images = posed(torch.rand(1, 28, 28).double(), model.group)
    made = generated_filters(model, images, model.group)
    assert len(made) == 6
    for layer in made:
        assert layer.elements == tuple(model.group.exact_elements)
        assert layer.difference < 1e-10
        assert float(layer.filters.std()) > 0
        # the first row is the image itself
        assert torch.equal(layer.filters[0], layer.back[0])
    names = [f"pose {g}" for g in model.group.elements]
    for path in save(generated_figure(made[0], 255 * images, names, "title", 1), tmp_path / "filters"):
        assert path.stat().st_size > 1000


def test_filters_that_do_not_turn_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    images = posed(torch.rand(1, 28, 28).double(), model.group)
    bank = ca.nn.DynamicGroupConv2d.bank

    def unturned(self: ca.nn.DynamicGroupConv2d) -> Tensor:
        return bank(self)[..., :1].expand(-1, -1, -1, self.group.order)

    monkeypatch.setattr(ca.nn.DynamicGroupConv2d, "bank", unturned)
    made = generated_filters(model, images, model.group)
    assert all(layer.difference > 0.05 for layer in made)


def test_constant_filters_have_no_picture() -> None:
    model = network(",generated=false")
    images = posed(torch.rand(1, 28, 28).double(), model.group)
    assert generated_filters(model, images, model.group) == []
    assert generated_filters(ca.create_model("p4cnn:width=2"), images, ca.get_group("p4")) == []
