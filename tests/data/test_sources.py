"""Downloads against a real server on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from coattend.data.sources import SourceError, download
from tests.data.local_server import LocalServer

CONTENT = bytes(range(256)) * 4000
MOST = 2 * len(CONTENT)


def quiet(what: str, done: int, total: int | None) -> None:
    """Show nothing."""


@pytest.fixture
def server():  # type: ignore[no-untyped-def]
    with LocalServer({"/file": CONTENT}) as running:
        yield running


def test_a_file_arrives_whole_with_progress(server: LocalServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    download(f"{server.address}/file", tmp_path / "file", lambda *step: seen.append(step), MOST)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["file"]
    assert seen[0] == ("file", 0, len(CONTENT))
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_broken_connection_is_resumed_where_it_broke(server: LocalServer, tmp_path: Path) -> None:
    server.break_after = [300_000, 200_000]
    download(f"{server.address}/file", tmp_path / "file", quiet, MOST)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_run_resumes_too(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:12345])
    download(f"{server.address}/file", tmp_path / "file", quiet, MOST)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == ["bytes=12345-"]


def test_a_server_without_ranges_sends_all_again(server: LocalServer, tmp_path: Path) -> None:
    server.offers_ranges = False
    (tmp_path / "file.part").write_bytes(b"something else")
    download(f"{server.address}/file", tmp_path / "file", quiet, MOST)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long(server: LocalServer, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    download(f"{server.address}/file", tmp_path / "file", quiet, MOST)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_connection_that_brings_nothing_more_is_given_up(server: LocalServer, tmp_path: Path) -> None:
    server.break_after = [1000, 0, 0, 0, 0]
    with pytest.raises(SourceError, match="the connection ended after 1,000 of 1,024,000 bytes"):
        download(f"{server.address}/file", tmp_path / "file", quiet, MOST)
    assert os.listdir(tmp_path) == ["file.part"]


def test_missing_files_and_closed_ports_give_the_reason(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="HTTP 404"):
        download(f"{server.address}/other", tmp_path / "other", quiet, MOST)
    with pytest.raises(SourceError, match="refused"):
        download("http://127.0.0.1:9/file", tmp_path / "other", quiet, MOST)
    assert os.listdir(tmp_path) == []


def test_a_killed_download_leaves_no_file_and_is_resumed(server: LocalServer, tmp_path: Path) -> None:
    server.pause = 0.02
    code = (
        "import sys, pathlib\n"
        "from coattend.data.sources import download\n"
        "download(sys.argv[1], pathlib.Path(sys.argv[2]), lambda *step: print(*step, flush=True), 10**7)\n"
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
    download(f"{server.address}/file", path, quiet, MOST)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={arrived}-"]


class OddServer:
    """Answers every request with the given lines of a header, then with blocks until the client has had enough."""

    def __init__(self, header: bytes, block: bytes, pause: float = 0.0, blocks: int = 1_000_000) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + header + b"\r\n"
        self.block, self.pause, self.blocks = block, pause, blocks
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with client, contextlib.suppress(OSError):
                    client.recv(10_000)
                    client.sendall(self.answer)
                    for _ in range(self.blocks):
                        client.sendall(self.block)
                        time.sleep(self.pause)


def test_a_length_that_is_no_number_fails_the_source_only(tmp_path: Path) -> None:
    for length in (b"abc", b"-5", b"1e3"):
        server = OddServer(b"Content-Length: " + length + b"\r\n", b"x", blocks=1)
        with pytest.raises(SourceError, match="its Content-Length is"):
            download(server.address, tmp_path / "file", quiet, MOST)
        server.listener.close()


def test_a_body_without_end_is_cut_off_and_leaves_nothing(tmp_path: Path) -> None:
    server = OddServer(b"", bytes(100_000))
    with pytest.raises(SourceError, match="it sends more than the 1,000,000 bytes that the file may have"):
        download(server.address, tmp_path / "file", quiet, 1_000_000)
    assert os.listdir(tmp_path) == []
    server.listener.close()


def test_a_file_that_announces_too_many_bytes_is_not_fetched(server: LocalServer, tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(SourceError, match="it sends more than the 1,000 bytes"):
        download(f"{server.address}/file", tmp_path / "file", lambda what, done, total: seen.append(done), 1_000)
    assert seen == [0]
    assert os.listdir(tmp_path) == []


def test_a_connection_that_trickles_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coattend.data.sources.PATIENCE", 0.3)
    server = OddServer(b"Content-Length: 1000000\r\n", b"x", pause=0.02)
    started = time.monotonic()
    with pytest.raises(SourceError, match="it brought .* bytes in"):
        download(server.address, tmp_path / "file", quiet, MOST)
    assert time.monotonic() - started < 10
    server.listener.close()
