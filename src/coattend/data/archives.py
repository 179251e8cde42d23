"""Members of zip and tar archives, read into memory by name; nothing is ever extracted to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath

from coattend.data.dataset import DataError

BROKEN = (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)


def read_members(path: Path, wanted: Collection[str], largest: int) -> dict[str, bytes]:
    """The members whose file names are ``wanted``, in whatever folder of the archive they lie.

    An archive with a member that points out of it is refused whole, and so are a wanted member that occurs twice, is a
    link, or unpacks to more than ``largest`` bytes.
    """
    try:
        if zipfile.is_zipfile(path):
            return _zip_members(path, wanted, largest)
        return _tar_members(path, wanted, largest)
    except BROKEN as error:
        raise DataError(
            f"{path} cannot be read as an archive ({error}); it is truncated or damaged, replace it by a whole copy."
        ) from error


def _zip_members(path: Path, wanted: Collection[str], largest: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = _verified_name(path, info.filename)
            if name in wanted and not info.is_dir():
                _refuse_second(path, name, found)
                with archive.open(info) as member:
                    found[name] = _bounded(path, name, member.read(largest + 1), largest)
    return found


def _tar_members(path: Path, wanted: Collection[str], largest: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for info in archive:
            name = _verified_name(path, info.name)
            if name in wanted and not info.isdir():
                _refuse_second(path, name, found)
                member = archive.extractfile(info) if info.isreg() else None
                if member is None:
                    raise DataError(f"{path} is refused: {name} in it is a link or a device; expected a plain file.")
                found[name] = _bounded(path, name, member.read(largest + 1), largest)
    return found


def _verified_name(path: Path, member: str) -> str:
    posix, windows = PurePosixPath(member), PureWindowsPath(member)
    if ".." in windows.parts or posix.is_absolute() or windows.drive or windows.root:
        raise DataError(
            f"{path} is refused: its member {member!r} points out of it; get the file from a source you trust."
        )
    return posix.name


def _refuse_second(path: Path, name: str, found: dict[str, bytes]) -> None:
    if name in found:
        raise DataError(f"{path} is refused: it holds {name} twice, and which one is meant cannot be told.")


def _bounded(path: Path, name: str, content: bytes, largest: int) -> bytes:
    if len(content) > largest:
        raise DataError(f"{path} is refused: {name} in it unpacks to more than the {largest:,} bytes it should have.")
    return content
