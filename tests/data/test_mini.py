from __future__ import annotations

import subprocess
import sys

import torch

from coattend.data import load_data
from coattend.data.mini import FILE as MINI_FILE
from coattend.data.store import sha256

MINI_DIGESTS = ["457d06e533b38aa9", "766829d2d1025287", "1639b8c0e20e436e"]


def test_mini_holds_real_digits_of_every_class() -> None:
    data = load_data("mini")
    assert [len(part) for part in data.splits().values()] == [2000, 500, 2000]
    assert data.image_shape == (1, 28, 28)
    assert data.classes == tuple("0123456789")
    for part in data.splits().values():
        assert (part.labels.bincount(minlength=10) > 0.07 * len(part)).all()
        assert int(part.images.max()) == 255
        assert 20 < part.images.double().mean() < 45  # MNIST's own is 33
    assert MINI_FILE.stat().st_size < 1_600_000
    assert (MINI_FILE.parent / "NOTICE").read_text().count("CC BY-SA 3.0")


def test_mini_is_the_very_same_everywhere() -> None:
    data = load_data("mini")
    digests = [sha256(part.images.numpy())[:16] for part in data.splits().values()]
    assert digests == MINI_DIGESTS


def test_no_digit_is_in_two_splits() -> None:
    images = torch.cat([part.images for part in load_data("mini").splits().values()])
    assert len({image.numpy().tobytes() for image in images}) == 4500


def test_mini_loads_without_network_or_pillow() -> None:
    code = (
        "import sys, socket\n"
        "def refuse(*args, **kwargs): raise AssertionError('network')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from coattend.data import load_data\n"
        "load_data('mini')\n"
        "assert not {'PIL', 'scipy', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
