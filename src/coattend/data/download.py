"""Files over HTTP, resumed where they broke off, under their name only when whole."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

Progress = Callable[[str, int, int | None], None]  # what, bytes so far, bytes in all if known

PART = ".part"
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # each must have brought something
BLOCK = 1 << 18
SLOWEST = 1_000  # bytes a second, on average, that are worth waiting for
PATIENCE = 30.0  # seconds before that is judged


class SourceError(Exception):
    """A source could not deliver; the message is the reason in a few words."""


def download(address: str, path: Path, progress: Progress, largest: int) -> None:
    """Fetch one file; what arrived before an interruption stays in ``path`` + ``.part`` and is not fetched again.

    A file of more than ``largest`` bytes is not what was wanted: the source fails and nothing of it stays.
    """
    part = path.with_name(path.name + PART)
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            _append(address, part, progress, largest)
            break
        except (OSError, HTTPException, ValueError) as error:
            if attempt == ATTEMPTS or _size(part) <= before:
                raise SourceError(_reason(error)) from error
    os.replace(part, path)


def _append(address: str, part: Path, progress: Progress, largest: int) -> None:
    done = _size(part)
    try:
        response = _open(address, done)
    except HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return  # the part is whole already
        part.unlink()
        done, response = 0, _open(address, 0)
    with response:
        resumed = re.match(rf"bytes {done}-", response.headers.get("Content-Range", "")) is not None
        if not (done and response.status == 206 and resumed):
            done = 0
        length = response.headers.get("Content-Length")
        if length is not None and not length.strip().isdecimal():
            raise SourceError(f"its Content-Length is {length[:40]!r}")
        total = None if length is None else done + int(length)
        before, started = done, time.monotonic()
        with open(part, "ab" if done else "wb") as file:
            progress(part.name.removesuffix(PART), done, total)
            while max(done, total or 0) <= largest and (block := response.read1(BLOCK)):
                file.write(block)
                done += len(block)
                progress(part.name.removesuffix(PART), done, total)
                seconds = time.monotonic() - started
                if seconds > PATIENCE and done - before < SLOWEST * seconds:
                    raise SourceError(f"it brought {done - before:,} bytes in {seconds:.0f} seconds")
    if max(done, total or 0) > largest:
        part.unlink()
        raise SourceError(f"it sends more than the {largest:,} bytes that the file may have")
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _open(address: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": "coattend"}
    if start:
        headers["Range"] = f"bytes={start}-"
    response: HTTPResponse = urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    return response


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
