"""Serve one HTML page on this machine."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Code, style and networks are inside the page; it may neither load from nor send to other addresses.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageServer(ThreadingHTTPServer):
    """A server of one page that only this machine can reach."""

    content: bytes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        # Another site can point its own name to 127.0.0.1, but then the browser sends that name.
        own_names = {f"{host}:{self.server.server_port}" for host in ("127.0.0.1", "localhost")}
        if self.headers["Host"] not in own_names:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.path != "/":
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, self.server.content)

    def _answer(self, status: HTTPStatus, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing about requests."""


def page_server(page: str, port: int) -> PageServer:
    """Return a server of one page; port 0 takes a free one."""
    try:
        server = PageServer(("127.0.0.1", port), _Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(f"port {port} cannot be used ({error}); choose another with --port, 0 for any.") from error
    server.content = page.encode()
    return server


def address(server: ThreadingHTTPServer) -> str:
    """Return the address of the page."""
    return f"http://127.0.0.1:{server.server_port}/"


def serve(server: ThreadingHTTPServer, announce: Callable[[str], object], *, in_browser: bool) -> None:
    """Serve the page until Ctrl-C; ``announce`` is called with its address, and a browser opens it if requested."""
    with server, contextlib.suppress(KeyboardInterrupt):
        announce(address(server))
        if in_browser:
            webbrowser.open(address(server))
        server.serve_forever()
