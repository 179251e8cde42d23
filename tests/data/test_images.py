from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.data import DataError
from coattend.data.fitting import Fit, fit_images
from coattend.data.images import image_facts, image_size, read_image

Image = pytest.importorskip("PIL.Image")


def pixels(shape: tuple[int, ...] = (6, 9, 3)) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def png(width: int, height: int, bits: int, colour: int, content: bytes) -> bytes:
    """A PNG by hand; Pillow writes no 16-bit colours."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content, 9)) + chunk(b"IEND", b"")
    )


def tiff16(width: int, height: int) -> bytes:
    """An uncompressed TIFF of 16-bit colours."""
    content = pixels((height, width, 6)).tobytes()
    bits_at, content_at = 8 + 2 + 10 * 12 + 4, 8 + 2 + 10 * 12 + 4 + 6
    tags = [
        (256, 3, 1, width),
        (257, 3, 1, height),
        (258, 3, 3, bits_at),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, content_at),
        (277, 3, 1, 3),
        (278, 3, 1, height),
        (279, 4, 1, len(content)),
        (284, 3, 1, 1),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return (
        b"II*\0"
        + struct.pack("<IH", 8, 10)
        + entries
        + struct.pack("<I", 0)
        + struct.pack("<HHH", 16, 16, 16)
        + content
    )


def test_deep_colours_are_refused_and_not_cut_to_their_high_byte(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + row.tobytes() for row in pixels((6, 9, 6)))
    (tmp_path / "a.png").write_bytes(png(9, 6, 16, 2, rows))
    (tmp_path / "a.ppm").write_bytes(b"P6 9 6 4095\n" + bytes(9 * 6 * 6))
    for name, bits in (("a.png", 16), ("a.ppm", 12)):
        with Image.open(tmp_path / name) as image:
            assert image.mode == "RGB"  # so Pillow's mode does not tell
        for read in (read_image, image_size):
            with pytest.raises(DataError, match=f"{name}: expected 8 bits per channel, got {bits} bits; convert it"):
                read(tmp_path / name)


def test_16_bits_keep_all_their_values(tmp_path: Path) -> None:
    pytest.importorskip("tifffile")
    (tmp_path / "colour.tif").write_bytes(tiff16(9, 6))
    expected = pixels((6, 9, 6)).view(np.uint16).transpose(2, 0, 1)
    colour = read_image(tmp_path / "colour.tif")
    assert image_facts(tmp_path / "colour.tif") == (6, 9, 3, 16)
    assert colour.dtype == torch.float32
    assert np.array_equal((colour * 257).round().int().numpy(), expected.astype(np.int32))
    Image.fromarray(expected[0]).save(tmp_path / "grey.png")
    assert image_facts(tmp_path / "grey.png") == (6, 9, 1, 16)
    assert torch.equal(read_image(tmp_path / "grey.png"), colour[:1])


@pytest.mark.parametrize(("shape", "axes"), [((5, 6, 9), "CYX"), ((6, 9, 5), "YXC"), ((2, 6, 9), "CYX")])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_tiff_may_have_any_number_of_channels(
    tmp_path: Path, shape: tuple[int, ...], axes: str, dtype: type[np.generic]
) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.random.RandomState(1).randint(0, np.iinfo(dtype).max + 1, shape).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", values, metadata={"axes": axes}, photometric="minisblack", compression="zlib")
    expected = values if axes == "CYX" else values.transpose(2, 0, 1)
    read = read_image(tmp_path / "a.tif")
    assert image_facts(tmp_path / "a.tif")[:3] == (6, 9, len(expected))
    scale = 1 if dtype is np.uint8 else 257
    assert np.array_equal((read.double() * scale).round().numpy(), expected)


def test_a_stack_and_a_damaged_tiff_are_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((4, 6, 9), np.uint16), metadata={"axes": "ZYX"}, photometric="minisblack")
    with pytest.raises(DataError, match="a.tif holds 4 images, expected one"):
        read_image(path)
    tifffile.imwrite(path, np.zeros((6, 9, 5), np.float32), metadata={"axes": "YXC"}, photometric="minisblack")
    with pytest.raises(DataError, match="expected 8 or 16 bits per channel, got float32"):
        read_image(path)
    path.write_bytes(tiff16(9, 6)[:100])
    with pytest.raises(DataError, match="a.tif cannot be read as an image"):
        read_image(path)


@pytest.mark.parametrize("fit", ["resize", "crop"])
def test_fitting_16_bits_commutes_with_turns_and_keeps_whole_numbers(fit: Fit) -> None:
    whole = torch.from_numpy(np.random.RandomState(0).randint(0, 65536, (2, 1, 23, 31))).double()
    images = (whole * (255 / 65535)).float()
    fitted = fit_images(images, 8, fit)
    assert fitted.dtype == torch.float32
    assert ((fitted.double() * 257) - (fitted.double() * 257).round()).abs().max() < 0.01
    for turns in range(4):
        assert torch.equal(fit_images(images.rot90(turns, (-2, -1)), 8, fit), fitted.rot90(turns, (-2, -1)))
    assert torch.equal(fit_images(images.flip(-1), 8, fit), fitted.flip(-1))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.bmp", "a.webp", "a.ppm"])
def test_every_format_of_8_bits_is_read(tmp_path: Path, name: str) -> None:
    options = {"lossless": True} if name.endswith("webp") else {}
    Image.fromarray(pixels()).save(tmp_path / name, **options)
    assert image_size(tmp_path / name) == (6, 9)
    assert torch.equal(read_image(tmp_path / name), torch.from_numpy(pixels().transpose(2, 0, 1)))


@pytest.mark.parametrize("name", ["a.tif", "a.gif", "a.png"])
def test_a_file_of_several_images_is_refused(tmp_path: Path, name: str) -> None:
    first, second = Image.fromarray(pixels()), Image.fromarray(255 - pixels())
    first.save(tmp_path / name, save_all=True, append_images=[second])
    with pytest.raises(DataError, match=f"{name} holds 2 images, expected one"):
        read_image(tmp_path / name)


def test_a_photograph_with_a_preview_is_read(tmp_path: Path) -> None:
    first = Image.fromarray(pixels((16, 16, 3)))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[first.resize((8, 8))])
    with Image.open(tmp_path / "a.jpg") as image:
        assert (image.format, image.n_frames) == ("MPO", 2)
    assert read_image(tmp_path / "a.jpg").shape == (3, 16, 16)


@pytest.mark.parametrize("channels", [2, 4])
def test_transparent_pixels_are_shown_on_white(tmp_path: Path, channels: int) -> None:
    shown = pixels((6, 9, channels))
    shown[..., -1] = 255
    hidden = shown.copy()
    hidden[2:4, :, -1] = 0
    hidden[4:, :, -1] = 128
    for name, array in (("shown.png", shown), ("hidden.png", hidden)):
        Image.fromarray(array).save(tmp_path / name)
    expected = torch.from_numpy(shown[..., :-1].transpose(2, 0, 1))
    assert torch.equal(read_image(tmp_path / "shown.png"), expected)
    found = read_image(tmp_path / "hidden.png")
    assert found.shape == (channels - 1, 6, 9)
    assert torch.equal(found[:, :2], expected[:, :2])
    assert (found[:, 2:4] == 255).all()
    half = (expected[:, 4:].float() * 128 + 255 * 127) / 255
    assert (found[:, 4:].float() - half).abs().max() <= 1


def test_no_image_starts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    (tmp_path / "cat.png").write_bytes(eps)
    with pytest.raises(DataError, match="it is none of PNG, JPEG, GIF, BMP, TIFF, WEBP, PPM"):
        read_image(tmp_path / "cat.png")
    assert not (tmp_path / "started").exists()


def test_the_memory_for_an_oblong_image_is_bounded_by_its_pixels(tmp_path: Path) -> None:
    """Its shorter side is enlarged, its longer side must not be: the result alone would take 1 TB."""
    longest = 1 << 17
    (tmp_path / "a.png").write_bytes(png(1, longest, 8, 0, bytes(2 * longest)))
    assert fit_images(read_image(tmp_path / "a.png")[None], 3000, "resize").shape == (1, 1, 3000, 3000)
    (tmp_path / "a.png").write_bytes(png(1, longest + 1, 8, 0, bytes(2 * longest + 2)))
    for read in (image_size, read_image):
        with pytest.raises(DataError, match="has a side of 131,073 pixels, more than 131,072; cut it into tiles"):
            read(tmp_path / "a.png")
