"""Networks on the Hub: a server on this machine that answers wrongly, late, with half a file, or with another one."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import coattend as ca
from coattend.models import hub
from experiments.hostile import models
from experiments.hostile.kinds import Damage, Kind, SilentAcceptanceError
from experiments.hostile.mutations import BITS, CONTENTS, PLACES, among, cut, each, flip, replace

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANSWER = "answer"  # how the server behaves
ADDRESS = "address"  # what the user types
ANSWERS = among("404", "401", "403", "500", "no etag", "no commit", "half", "long", "closed", "html", "redirect")
ADDRESSES = among(
    "hf://{case}",
    "hf://{case}/b/c",
    "hf://{case}/b@",
    "hf://{case}/../b",
    "hf://{case}/b@../../x",
    "hf://{case}/ ",
    "hf://{case}/b\0",
    "hf://{case}é/ü",
    "hf://{case}/-",
    "hf://{case}/b?x=1",
    "hf://{case}[/red]/x",
)


class Handler(BaseHTTPRequestHandler):
    """Serves one file as the Hub does, or wrongly."""

    folder: Path
    answer: str

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer as for GET, without the content."""
        self.do_GET()

    def do_GET(self) -> None:
        """Send the file, with all or some of the headers that the client needs."""
        content = (self.folder / models.FILE).read_bytes()
        if self.answer == "closed":
            self.connection.close()
            return
        self.send_response({"redirect": 302}.get(self.answer, int(self.answer) if self.answer.isdigit() else 200))
        if self.answer == "redirect":
            self.send_header("Location", self.path)
        if self.answer == "html":
            content = b"<html>sign in</html>"
        if self.answer != "no etag":
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        if self.answer != "no commit":
            self.send_header("X-Repo-Commit", COMMIT)
        length = len(content) * {"half": 2, "long": 0.5}.get(self.answer, 1)
        self.send_header("Content-Length", str(int(length)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def prepare(folder: Path) -> None:
    """Write a model file for the server."""
    models.prepare(folder)
    (folder / ANSWER).write_text("")
    (folder / ADDRESS).write_text("hf://{case}/network")


def load(folder: Path, healthy: Path) -> None:
    """Call ``load_model`` with the address."""
    handler = type("OneAnswer", (Handler,), {"folder": folder, "answer": (folder / ANSWER).read_text()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.ENDPOINT = f"http://127.0.0.1:{server.server_port}"
    address = (folder / ADDRESS).read_text().replace("{case}", folder.name)
    found = ca.load_model(address).state_dict()
    expected = ca.load_model(healthy / models.FILE).state_dict()
    if not all(models.same_bits(found[name], expected[name]) for name in expected):
        raise SilentAcceptanceError("a network with other weights came from the Hub")


KIND = Kind(
    share=40,
    prepare=prepare,
    damages={
        "answer": Damage(each(ANSWERS), lambda folder, answer: (folder / ANSWER).write_text(answer)),
        "address": Damage(each(ADDRESSES), lambda folder, address: (folder / ADDRESS).write_text(address)),
        "replace": Damage(each(among(*CONTENTS)), lambda folder, content: replace(folder / models.FILE, content)),
        "cut": Damage(each(PLACES), lambda folder, place: cut(folder / models.FILE, place)),
        "flip": Damage(each(PLACES, BITS), lambda folder, place, bit: flip(folder / models.FILE, place, bit)),
    },
    attempts={"load": load},
)
