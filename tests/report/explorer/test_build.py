"""What the explorer page is made of, and what it refuses."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import socket
import struct
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import coattend as ca
from coattend.cli import main
from coattend.data import load_data, make_preprocessing
from coattend.models.classifier import Classifier
from coattend.report.explorer import build
from coattend.report.explorer.serve import address, page_server


def trained(model: str = "p4cnn:width=2", shape: tuple[int, int, int] = (1, 28, 28), **changes: object) -> Classifier:
    network = ca.create_model(model, in_channels=shape[0]).float()
    preprocessing = make_preprocessing(["scalar"]).fit(torch.randint(256, (4, *shape), dtype=torch.uint8))
    facts: dict[str, Any] = {"classes": "0123456789", "image_shape": shape, "preprocessing": preprocessing, **changes}
    return Classifier(network, **facts)


def test_the_runtime_inside_is_the_one_of_the_manifest() -> None:
    vendor = build.SOURCES / "vendor"
    manifest = json.loads((vendor / "manifest.json").read_text())
    assert set(manifest["files"]) == set(build.RUNTIME.values())
    for name, expected in manifest["files"].items():
        content = gzip.decompress((vendor / f"{name}.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == expected
    assert "MIT License" in (vendor / "LICENSE").read_text()


def test_the_gallery_has_two_digits_of_every_class() -> None:
    labels = load_data("mini").test.labels[list(build.GALLERY)]
    assert sorted(labels.tolist()) == [k // 2 for k in range(20)]


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ({}, "explore expects at least one network, got none"),
        ({"A": trained(shape=(3, 28, 28))}, "A is for images of 3 x 28 x 28"),
        ({"A": trained(image_shape=(1, 28, 32))}, "A is for images of 1 x 28 x 32"),
        ({"A": trained(), "B": trained(shape=(1, 32, 32))}, "got 28 x 28 in 10 classes; 32 x 32 in 10 classes"),
        ({"A": trained(), "B": trained(classes=("cat", "dog"))}, "one set of classes"),
    ],
)
def test_what_the_page_cannot_show_is_said(networks: dict[str, Classifier], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build.explorer_page(networks)


def test_without_files_the_packaged_networks_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert list(build.load_networks([])) == ["p4-CNN", "a-p4-CNN"]
    monkeypatch.setattr("coattend.models.pretrained.WEIGHTS", tmp_path)
    with pytest.raises(ValueError, match="no weights of p4cnn trained on rotated-mnist come with the package"):
        build.load_networks([])


def test_titles_tell_networks_apart(tmp_path: Path) -> None:
    files = [tmp_path / f"seed{seed}" / "best.safetensors" for seed in range(2)]
    for file in files:
        file.parent.mkdir()
        trained().save(file)
    assert list(build.load_networks(files)) == ["p4-CNN, seed0", "p4-CNN, seed1"]

    trained("p4cnn").save(files[0])
    trained("p4cnn:head=max,width=2").save(files[1])
    assert list(build.load_networks(files)) == ["p4-CNN", "p4-CNN, head=max, width=2"]


def test_a_missing_part_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    with pytest.raises(ValueError, match=r"manifest.json is missing; reinstall coattend"):
        build._asset("manifest.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.safetensors", "--to", "page.html"), "there is no file nowhere.safetensors"),
        (("a.safetensors", "./a.safetensors"), "explore shows different networks side by side, got a.safetensors, ./a"),
        (("nowhere.safetensors", "--to", "page.png"), "expected --to something.html, got page.png"),
    ],
)
def test_wrong_arguments_end_in_one_line(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["coattend", "explore", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_the_server_has_the_page_and_nothing_else() -> None:
    with page_server("<p>ü</p>", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(address(server)) as answer:
            assert answer.read().decode() == "<p>ü</p>"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address(server) + "etc/passwd")
        with pytest.raises(ValueError, match=f"port {server.server_port} cannot be used"):
            page_server("", server.server_port)
        server.shutdown()


def test_the_server_answers_to_its_own_name_only() -> None:
    """A page elsewhere can let its own name point to 127.0.0.1; the browser then names that host."""
    with page_server("<p>weights</p>", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        for host, status in (
            (f"127.0.0.1:{port}", 200),
            (f"localhost:{port}", 200),
            (f"elsewhere.example:{port}", 421),
            ("127.0.0.1", 421),
            ("", 421),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            assert answer.status == status, host
            assert (b"weights" in answer.read()) == (status == 200)
            assert answer.getheader("X-Content-Type-Options") == "nosniff"
            assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
            connection.close()
        server.shutdown()


def test_a_closed_tab_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with page_server("x" * 10**7, port=0) as server:
        server.daemon_threads = False  # so that leaving the block waits for all of them
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(5):
            tab = socket.create_connection(("127.0.0.1", server.server_port))
            tab.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
            tab.recv(10)
            tab.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets
            tab.close()
        server.shutdown()
    assert capsys.readouterr().err == ""
