"""Restriction to a subgroup: a permutation of planes that commutes with the subgroup, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coattend as ca
from coattend.equivariance.exactness import remaining_groups
from coattend.export import freeze
from tests.example_groups import quaternions

PAIRS = [("D4", "C4"), ("D4", "D2"), ("D4", "D1"), ("D4", "C2"), ("D4", "C1"), ("C4", "C2"), ("D4", "C4 clockwise"),
         ("D8", "C8"), ("C8", "C4"), ("D4", "D4")]  # fmt: skip


@pytest.mark.parametrize(("name", "to"), PAIRS)
def test_commutes_with_the_subgroup_without_rounding(name: str, to: str) -> None:
    G, K = ca.get_group(name), ca.get_group(to)
    layer = ca.nn.RestrictGroup(name, to=to)
    x = torch.randn(2, 3, G.order, 5, 6)
    y = layer(x)
    assert y.shape == (2, 3 * G.order // K.order, K.order, 5, 6)
    for k, g in enumerate(layer.elements):
        if k in K.exact_elements:
            assert torch.equal(layer(ca.groups.transform_map(x, G, g)), ca.groups.transform_map(y, K, k))
    exact = [error for k, error in ca.equivariance_error(layer, x, K).items() if k in K.exact_elements]
    assert max(exact) == 0


def test_is_the_formula_and_loses_nothing() -> None:
    """y[c * cosets + i, k] = x[c, k r_i], r_i the smallest element of the i-th right coset."""
    G = ca.dihedral(4)
    for subgroup in G.subgroups():
        layer = ca.nn.RestrictGroup(G, to=subgroup)
        x = torch.randn(1, 2, 8, 1, 1)
        y = layer(x)
        assert torch.equal(y.flatten().sort().values, x.flatten().sort().values)
        for c in range(2):
            for i, coset in enumerate(G.right_cosets(subgroup)):
                for number, k in enumerate(subgroup):
                    assert y[0, c * layer.cosets + i, number] == x[0, c, G.product[k, coset[0]]]


def test_reading_left_cosets_instead_is_not_equivariant() -> None:
    """k r_i, not r_i k: for a subgroup that is not normal the two differ."""
    G = ca.dihedral(4)
    mirror = (0, 4)
    table = torch.tensor(G.left_cosets(mirror)).flatten()

    class Left(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.index_select(2, table).unflatten(2, (4, 2)).flatten(1, 2)

    x = torch.randn(1, 2, 8, 5, 5)
    y = Left()(ca.groups.transform_map(x, G, 4))
    assert not torch.allclose(y, ca.groups.transform_map(Left()(x), "D1", 1))


def changing() -> nn.Sequential:
    return nn.Sequential(
        ca.nn.LiftingConv2d(1, 3, 3, "D4", padding=1),
        ca.nn.GroupConv2d(3, 3, 3, "D4", padding=1),
        ca.nn.RestrictGroup("D4", to="C4"),
        ca.nn.GroupBatchNorm2d(6),
        nn.ReLU(),
        ca.nn.GroupConv2d(6, 4, 3, "C4", padding=1),
        ca.nn.GroupPool("C4"),
    )


def test_a_network_commutes_with_the_subgroup_only_and_is_exact_for_it() -> None:
    model = changing()
    x = torch.randn(2, 1, 9, 9)
    assert max(ca.equivariance_error(model, x, "C4").values()) < 1e-12
    assert max(ca.equivariance_error(model, x, "D4").values()) > 0.01
    assert remaining_groups(model) == [ca.cyclic(4)]
    assert ca.is_exact(model, 9)


def test_a_restriction_to_another_group_than_that_of_the_next_layer_is_found() -> None:
    model = changing()
    model[2] = ca.nn.RestrictGroup("D4", to="D2")
    model[5] = ca.nn.GroupConv2d(6, 4, 3, "C4", padding=1)
    assert not ca.is_exact(model, 9)


def test_diagnose_measures_the_layers_before_it_as_well() -> None:
    model = changing()
    assert ca.diagnose(model, torch.randn(1, 1, 9, 9), "C4").is_equivariant
    model[1].padding = 0
    model.insert(2, nn.ZeroPad3d((1, 1, 2, 0, 0, 0)))
    diagnosis = ca.diagnose(model, torch.randn(1, 1, 9, 9), "C4")
    assert diagnosis.fault.name == "2"
    errors = {report.name: report.error for report in diagnosis.layers}
    assert max(errors["0"], errors["1"]) < 1e-12
    model = changing()
    model[1].register_forward_hook(lambda m, i, y: y * torch.arange(1.0, 9)[:, None, None])
    assert ca.diagnose(model, torch.randn(1, 1, 9, 9), "C4").fault.name == "1"


@pytest.mark.parametrize("to", ["C4", "D2", "C1"])
def test_freezes(to: str) -> None:
    model = nn.Sequential(
        ca.nn.LiftingConv2d(1, 3, 3, "D4"), ca.nn.RestrictGroup("D4", to=to), nn.ReLU(),
        ca.nn.GroupConv2d(24 // ca.get_group(to).order, 2, 3, to), ca.nn.GroupPool(to),
    ).eval()  # fmt: skip
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ca.nn.RestrictGroup("C4", to="D4"), "D4 is not a subgroup of C4, which has no 'mirror'"),
        (lambda: ca.nn.RestrictGroup("C4", to="C8"), "C8 is not a subgroup of C4, which has no 'turn 45°'"),
        (lambda: ca.nn.RestrictGroup("C4", to=(0, 1)), "not a subgroup of C4"),
        (lambda: ca.nn.RestrictGroup(quaternions(), to="C4"), "do not act on the same space.*name the elements"),
        (lambda: ca.nn.RestrictGroup("D4", to="C4")(torch.zeros(1, 2, 4, 3, 3)), "group axis of 4"),
    ],
)
def test_wrong_calls(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_bare_tables_are_restricted_by_their_elements() -> None:
    layer = ca.nn.RestrictGroup(quaternions(), to=(0, 2))
    assert layer(torch.zeros(1, 1, 8, 2, 2)).shape == (1, 4, 2, 2, 2)
