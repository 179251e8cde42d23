"""A real HTTP server on this machine that can be slow, break off, and refuse ranges."""

from __future__ import annotations

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class LocalServer:
    """Serves given paths; ``ranges`` records what was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.offers_ranges = True
        self.break_after: list[int] = []  # bytes, one per request to come
        self.pause = 0.0  # seconds between blocks
        self.ranges: list[str | None] = []
        self.hold_from = 0  # the request, counted from 1, whose content waits for the release
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *message: object) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        if request.path not in self.files:
            request.send_error(404)
            return
        whole = self.files[request.path]
        start = 0
        if wanted and self.offers_ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
            if start >= len(whole):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(whole)}")
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        request.send_header("Content-Length", str(len(whole) - start))
        request.end_headers()
        if 0 < self.hold_from <= len(self.ranges):
            self.release.wait(60)
        end = start + self.break_after.pop(0) if self.break_after else len(whole)
        try:
            for place in range(start, min(end, len(whole)), 10_000):
                request.wfile.write(whole[place : min(place + 10_000, end)])
                time.sleep(self.pause)
        except ConnectionError:
            return

    def __enter__(self) -> LocalServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
