"""The Hub's own client against a small server that keeps repositories in a folder."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import export_file
from coattend.models.classifier import load_trained
from coattend.report import check_network

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    """What creating a repository, committing small files and downloading them needs."""

    root: Path

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            (self.root / name).mkdir(parents=True, exist_ok=True)
            self.answer({"url": f"{self.server_url}/{name}", "name": name})
        elif self.path.endswith("/preupload/main"):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif self.path.endswith("/commit/main"):
            name = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    (self.root / name / line["value"]["path"]).write_bytes(base64.b64decode(line["value"]["content"]))
            url = f"{self.server_url}/{name}/commit/{COMMIT}"
            self.answer({"commitUrl": url, "commitOid": COMMIT, "pullRequestUrl": None})
        else:
            self.answer({}, 200 if "validate-yaml" in self.path else 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name, marker, rest = self.path.lstrip("/").partition("/resolve/")
        if name == "closed/connection":
            self.connection.close()
            return
        file = self.root / name / rest.partition("/")[2]
        if not marker or not file.is_file():
            self.answer({"error": "not found"}, 404, {"X-Error-Code": "EntryNotFound" if marker else "RepoNotFound"})
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    @property
    def server_url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    handler = type("FolderHandler", (Handler,), {"root": tmp_path / "hub"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("coattend.models.hub.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "local")
    yield tmp_path / "hub"
    server.shutdown()
    server.server_close()


def test_a_network_goes_to_the_hub_and_comes_back(hub: Path) -> None:
    model = ca.create_model("a_p4cnn:attention=output,width=3").eval()
    address = ca.push_model(model, "hf://somebody/digits", card="# Digits\n\nTrained on digits.")
    assert address.endswith(COMMIT)
    assert sorted(p.name for p in (hub / "somebody" / "digits").iterdir()) == ["README.md", "model.safetensors"]
    assert 'coattend.load_model("hf://somebody/digits")' in (hub / "somebody" / "digits" / "README.md").read_text()
    again = ca.load_model("hf://somebody/digits").eval()
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(again(x), model(x))


def test_verbs_take_addresses_of_the_hub(hub: Path, tmp_path: Path) -> None:
    model = ca.create_model("p4cnn:width=2").float()
    metadata = {
        "preprocessing": json.dumps({"steps": [], "clip": None}),
        "classes": json.dumps(list("0123456789")),
        "image_shape": json.dumps([1, 28, 28]),
        "provenance": "none",
    }
    ca.push_model(model, "hf://somebody/digits", metadata=metadata)
    assert "p4cnn for images 1 x 28 x 28" in str(export_file("hf://somebody/digits", tmp_path / "m.safetensors"))
    assert load_trained("hf://somebody/digits").image_shape == (1, 28, 28)
    assert check_network("hf://somebody/digits").holds


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://nobody/nothing", "could not get model.safetensors of hf://nobody/nothing"),
        ("hf://somebody/-", "could not get model.safetensors of hf://somebody/-"),
        ("hf://closed/connection", "could not get model.safetensors of hf://closed/connection"),
        ("hf://digits", "expected the address of a network on the Hub, hf://owner/name, got 'hf://digits'"),
    ],
)
def test_wrong_addresses_are_answered(hub: Path, address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.load_model(address)
