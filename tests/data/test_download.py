"""Downloads against a real server on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coattend.data.download import SourceError, download
from tests.data.local_server import LocalServer

CONTENT = bytes(range(256)) * 4000


def quiet(what: str, done: int, total: int | None) -> None:
    """Show nothing."""


@pytest.fixture
def server():  # type: ignore[no-untyped-def]
    with LocalServer({"/file": CONTENT}) as running:
        yield running


def test_a_file_arrives_whole_with_progress(server: LocalServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    download(f"{server.address}/file", tmp_path / "file", lambda *step: seen.append(step))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["file"]
    assert seen[0] == ("file", 0, len(CONTENT))
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_broken_connection_is_resumed_where_it_broke(server: LocalServer, tmp_path: Path) -> None:
    server.break_after = [300_000, 200_000]
    download(f"{server.address}/file", tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_run_resumes_too(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:12345])
    download(f"{server.address}/file", tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == ["bytes=12345-"]


def test_a_server_without_ranges_sends_all_again(server: LocalServer, tmp_path: Path) -> None:
    server.offers_ranges = False
    (tmp_path / "file.part").write_bytes(b"something else")
    download(f"{server.address}/file", tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long(server: LocalServer, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    download(f"{server.address}/file", tmp_path / "file", quiet)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_connection_that_brings_nothing_more_is_given_up(server: LocalServer, tmp_path: Path) -> None:
    server.break_after = [1000, 0, 0, 0, 0]
    with pytest.raises(SourceError, match="the connection ended after 1,000 of 1,024,000 bytes"):
        download(f"{server.address}/file", tmp_path / "file", quiet)
    assert os.listdir(tmp_path) == ["file.part"]


def test_missing_files_and_closed_ports_give_the_reason(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="HTTP 404"):
        download(f"{server.address}/other", tmp_path / "other", quiet)
    with pytest.raises(SourceError, match="refused"):
        download("http://127.0.0.1:9/file", tmp_path / "other", quiet)
    assert os.listdir(tmp_path) == []


def test_a_killed_download_leaves_no_file_and_is_resumed(server: LocalServer, tmp_path: Path) -> None:
    server.pause = 0.02
    code = (
        "import sys, pathlib\n"
        "from coattend.data.download import download\n"
        "download(sys.argv[1], pathlib.Path(sys.argv[2]), lambda *step: print(*step, flush=True))\n"
    )
    path = tmp_path / "file"
    child = subprocess.Popen([sys.executable, "-c", code, f"{server.address}/file", str(path)])
    part = tmp_path / "file.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert os.listdir(tmp_path) == ["file.part"]
    arrived = part.stat().st_size
    assert 0 < arrived < len(CONTENT)
    server.pause = 0.0
    download(f"{server.address}/file", path, quiet)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={arrived}-"]
