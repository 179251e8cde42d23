"""Archives: members of zip and tar files, read into memory by name; nothing is extracted to disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from coattend.data.dataset import DataError

BROKEN = (
    OSError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,  # encrypted members, unknown compression
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}  # by the first two bytes
OTHERS = 1 << 20  # bytes of other members and of the headers of a tar


def read_members(path: Path, wanted: Collection[str], largest: int) -> dict[str, bytes]:
    """Return the members whose file names are ``wanted``, from any folder of the archive.

    An archive with a member that points out of it is refused whole, and so are a wanted member that occurs twice, is a
    link, or unpacks to more than ``largest`` bytes. So is a tar with much more in it than what is wanted: to reach its
    members all of it has to be unpacked.
    """
    try:
        if zipfile.is_zipfile(path):
            return _zip_members(path, wanted, largest)
        return _tar_members(path, wanted, largest)
    except DataError:
        raise
    except BROKEN as error:
        raise DataError(
            f"{path} cannot be read as an archive ({error}); it is truncated or damaged, replace it."
        ) from error


def read_limited(path: Path, largest: int) -> bytes:
    """Return the content of a file; raise if it has more than ``largest`` bytes."""
    length = path.stat().st_size
    if length > largest:
        raise DataError(f"{path} is refused: it has {length:,} bytes, more than the {largest:,} it should have.")
    return path.read_bytes()


def _zip_members(path: Path, wanted: Collection[str], largest: int) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = _verified_name(path, info.filename)
            if name in wanted and not info.is_dir():
                _refuse_second(path, name, members)
                with archive.open(info) as member:
                    members[name] = _bounded(path, name, member.read(largest + 1), largest)
    return members


def _tar_members(path: Path, wanted: Collection[str], largest: int) -> dict[str, bytes]:
    limit = len(wanted) * (largest + 2 * tarfile.BLOCKSIZE) + OTHERS
    with open(path, "rb") as file:
        opener = OPENERS.get(file.read(2), open)
    with opener(path, "rb") as unpacked:
        stream: Any = _Limited(unpacked, limit, path)
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            return _wanted_members(archive, wanted, largest, path)


def _wanted_members(archive: tarfile.TarFile, wanted: Collection[str], largest: int, path: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for info in archive:
        name = _verified_name(path, info.name)
        if name in wanted and not info.isdir():
            _refuse_second(path, name, members)
            member = archive.extractfile(info) if info.isreg() else None
            if member is None:
                raise DataError(f"{path} is refused: {name} in it is a link or a device; expected a plain file.")
            members[name] = _bounded(path, name, member.read(largest + 1), largest)
    return members


class _Limited:
    """A stream of which at most ``limit`` bytes are read or skipped; tarfile itself sets no limit."""

    def __init__(self, stream: IO[bytes], limit: int, path: Path) -> None:
        self.stream, self.limit, self.path = stream, limit, path

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes."""
        self._check(self.limit + 1 if size < 0 else self.stream.tell() + size)
        return self.stream.read(size)

    def seek(self, position: int) -> int:
        """Go to a position counted from the start."""
        self._check(position)
        return self.stream.seek(position)

    def tell(self) -> int:
        """Return the position."""
        return self.stream.tell()

    def _check(self, position: int) -> None:
        if position > self.limit:
            raise DataError(
                f"{self.path} is refused: it unpacks to more than {self.limit:,} bytes, far more than is needed; "
                "replace it."
            )


def _verified_name(path: Path, member: str) -> str:
    posix, windows = PurePosixPath(member), PureWindowsPath(member)
    if ".." in windows.parts or posix.is_absolute() or windows.drive or windows.root:
        raise DataError(
            f"{path} is refused: its member {member!r} points outside of it; get the file from a source you trust."
        )
    return posix.name


def _refuse_second(path: Path, name: str, members: dict[str, bytes]) -> None:
    if name in members:
        raise DataError(f"{path} is refused: it holds {name} twice, so it is ambiguous; replace it.")


def _bounded(path: Path, name: str, content: bytes, largest: int) -> bytes:
    if len(content) > largest:
        raise DataError(f"{path} is refused: {name} in it unpacks to more than the {largest:,} bytes it should have.")
    return content
