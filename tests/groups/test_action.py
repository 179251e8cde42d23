# ruff: noqa: E501 (one mistake, one line)
from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.groups import transform_image, transform_map
from tests.example_groups import EXACT, quaternions


def moved_by_coordinates(x: torch.Tensor, matrix: np.ndarray) -> torch.Tensor:
    """(g.x)(u) = x(g^-1 u), pixel by pixel."""
    height, width = x.shape[-2:]
    corner = np.abs(matrix @ np.array([width - 1, height - 1])) / 2
    new_width, new_height = (round(2 * c) + 1 for c in corner)
    y = torch.empty(*x.shape[:-2], new_height, new_width)
    for row in range(new_height):
        for column in range(new_width):
            u = np.array([column - (new_width - 1) / 2, (new_height - 1) / 2 - row])
            source = matrix.T @ u
            y[..., row, column] = x[..., round((height - 1) / 2 - source[1]), round(source[0] + (width - 1) / 2)]
    return y


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [(4, 4), (5, 5), (3, 6), (5, 2)])
def test_images_move_pixel_by_pixel_as_defined(name: str, size: tuple[int, int]) -> None:
    G, x = ca.get_group(name), torch.randn(2, *size)
    for g in G.elements:
        assert torch.equal(transform_image(x, G, g), moved_by_coordinates(x, G.planar[g]))


def test_quarter_turns_and_mirrors_are_those_of_torch() -> None:
    x = torch.randn(2, 3, 5, 7)
    C4, D4 = ca.cyclic(4), ca.dihedral(4)
    for r in range(4):
        assert torch.equal(transform_image(x, C4, r), torch.rot90(x, r, (-2, -1)))
        assert torch.equal(transform_image(x, D4, 4 + r), torch.rot90(torch.flip(x, (-1,)), r, (-2, -1)))


@pytest.mark.parametrize("name", [*EXACT, "C4 clockwise"])
def test_actions_are_homomorphisms(name: str) -> None:
    G = ca.cyclic(4, clockwise=True) if name == "C4 clockwise" else ca.get_group(name)
    image, map_ = torch.randn(1, 2, 4, 6), torch.randn(1, 2, G.order, 4, 6)
    for K in G.subgroups():
        quotient = torch.randn(1, 2, G.order // len(K), 4, 6)
        for g in G.elements:
            for h in G.elements:
                gh = int(G.product[g, h])
                assert torch.equal(transform_image(transform_image(image, G, h), G, g), transform_image(image, G, gh))
                assert torch.equal(transform_map(transform_map(map_, G, h), G, g), transform_map(map_, G, gh))
                twice = transform_map(transform_map(quotient, G, h, over=K), G, g, over=K)
                assert torch.equal(twice, transform_map(quotient, G, gh, over=K))


def test_a_map_moves_as_documented() -> None:
    G, x = ca.dihedral(4), torch.randn(1, 2, 8, 5, 5)
    for g in G.elements:
        moved = transform_map(x, G, g)
        for h in G.elements:
            source = int(G.product[G.inverse[g], h])
            assert torch.equal(moved[:, :, h], transform_image(x[:, :, source], G, g))


def test_a_bare_group_moves_poses_only() -> None:
    G, x = quaternions(), torch.randn(1, 2, 8, 3, 4)
    for g in G.elements:
        assert torch.equal(transform_map(x, G, g), x[:, :, G.relative[g].tolist()])
    assert transform_image(x, G, 3) is x


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_other_angles_turn_smooth_images_correctly(interpolation: str) -> None:
    """A blob at a known place goes where the matrix says."""
    G = ca.cyclic(8)
    y, x = torch.meshgrid(20 - torch.arange(41.0), torch.arange(41.0) - 20, indexing="ij")

    def blob(cx: float, cy: float) -> torch.Tensor:
        return torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 18)[None, None]

    for g in G.elements:
        cx, cy = G.planar[g] @ np.array([9.0, 3.0])
        # Linear interpolation is off by at most f'' / 8 per axis, f'' being 1 / 9 at the blob's top.
        torch.testing.assert_close(transform_image(blob(9, 3), G, g, interpolation), blob(cx, cy), rtol=0, atol=1 / 36)


IMAGE, MAP = torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 4, 6, 6)


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda: transform_image(IMAGE, "p4", 9), "C4 has elements 0 to 3, got 9"),
        (lambda: transform_image(IMAGE, "p4", None), "elements 0 to 3, got None"),
        (lambda: transform_image(IMAGE, None, 1), "expected a group or a group's name, got NoneType"),
        (lambda: transform_image(None, "p4", 1), r"expected an image \(..., height, width\) as a tensor, got NoneType"),
        (lambda: transform_image(IMAGE[0, 0, 0], "p4", 1), r"expected an image.*got \(6,\)"),
        (lambda: transform_image(IMAGE, "C8", 1, "area"), r"interpolation must be one of \('bilinear', 'bicubic'\), got 'area'"),
        (lambda: transform_image(IMAGE.long(), "C8", 1), "turn 45° interpolates.*got torch.int64"),
        (lambda: transform_image(IMAGE.bool(), "C8", 1), "real numbers.*got torch.bool"),
        (lambda: transform_image(IMAGE[..., :0], "C8", 1), r"at least one pixel.*got torch.float32 \(1, 1, 6, 0\)"),
        (lambda: transform_map(MAP, "p4", 9), "C4 has elements 0 to 3, got 9"),
        (lambda: transform_map(MAP, "p4", None), "elements 0 to 3, got None"),
        (lambda: transform_map(MAP, "p4m", 1), r"group axis of 8 for D4, got \(1, 1, 4, 6, 6\)"),
        (lambda: transform_map(None, "p4", 1), r"expected a map \(..., group, height, width\) as a tensor, got NoneType"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(move: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        move()


def test_a_group_may_be_named_and_quarter_turns_take_any_numbers() -> None:
    x = torch.arange(12).reshape(1, 1, 3, 4)
    assert torch.equal(transform_image(x, "p4", 1), torch.rot90(x, 1, (-2, -1)))
    y = torch.randn(1, 1, 4, 5, 5)
    assert torch.equal(transform_map(y, "p4", np.int64(3)), transform_map(y, ca.cyclic(4), 3))


@pytest.mark.parametrize("group", ["p4", "C8"])
@pytest.mark.parametrize(
    "x",
    [
        torch.eye(5).to_sparse(),
        torch.rand(1, 1, 5, 5, dtype=torch.float32).to_mkldnn(),
    ],
    ids=["sparse", "mkldnn"],
)
def test_tensors_that_are_not_dense_are_refused(group: str, x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="as a dense tensor, got a .* one; convert it first"):
        transform_image(x, group, 1)
