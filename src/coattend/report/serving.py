"""One HTML page on this machine, for as long as a person looks at it."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def page_server(page: str, port: int) -> ThreadingHTTPServer:
    """A server of this page alone, reachable from this machine alone; port 0 takes a free one."""
    content = page.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"
            self.send_response(200 if is_page else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content) if is_page else 0))
            self.end_headers()
            if is_page:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Stay quiet: requests are of no interest to the person at the terminal."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(f"port {port} cannot be used ({error}); choose another with --port, 0 for any.") from error


def address(server: ThreadingHTTPServer) -> str:
    """Where the page is."""
    return f"http://127.0.0.1:{server.server_port}/"


def serve(server: ThreadingHTTPServer, announce: Callable[[str], object], *, in_browser: bool) -> None:
    """Say where the page is and show it, also in the person's browser if wanted, until Ctrl-C."""
    with server, contextlib.suppress(KeyboardInterrupt):
        announce(address(server))
        if in_browser:
            webbrowser.open(address(server))
        server.serve_forever()
