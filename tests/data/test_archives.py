from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from coattend.data import DataError
from coattend.data.archives import read_members


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


MAKERS = [(zipped, "a.zip"), (tarred, "a.tar.gz")]


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_members_are_found_in_any_folder_of_the_archive(tmp_path: Path, make, name: str) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / name, {"top/inner/wanted": b"1", "top/other": b"2", "also": b"3"})
    assert read_members(path, ("wanted", "also", "missing"), largest=10) == {"wanted": b"1", "also": b"3"}


@pytest.mark.parametrize(("make", "name"), MAKERS)
@pytest.mark.parametrize(
    "evil", ["../../evil", "/tmp/evil", "top/../../evil", "..\\evil", "C:\\evil", "\\\\host\\share\\evil", "C:evil"]
)
def test_a_member_that_points_out_is_refused_and_nothing_is_written(tmp_path: Path, make, name: str, evil: str) -> None:  # type: ignore[no-untyped-def]
    inside = tmp_path / "one" / "two"
    inside.mkdir(parents=True)
    path = make(inside / name, {"wanted": b"1", evil: b"evil"})
    with pytest.raises(DataError, match="is refused: its member .* points out of it"):
        read_members(path, ("wanted", "evil"), largest=10)
    assert os.listdir(inside) == [name]
    assert os.listdir(tmp_path) == ["one"]
    assert os.listdir(tmp_path / "one") == ["two"]
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("wanted")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(DataError, match="is a link or a device"):
        read_members(path, ("wanted",), largest=10)


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_bombs_and_doubles_are_refused(tmp_path: Path, make, name: str) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / name, {"wanted": bytes(1000)})
    with pytest.raises(DataError, match="more than the 999 bytes"):
        read_members(path, ("wanted",), largest=999)
    path = make(tmp_path / name, {"a/wanted": b"1", "b/wanted": b"2"})
    with pytest.raises(DataError, match="holds wanted twice"):
        read_members(path, ("wanted",), largest=10)


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_truncated_and_foreign_files_are_refused(tmp_path: Path, make, name: str) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / name, {"wanted": os.urandom(5000)})
    whole = path.read_bytes()
    for content in (whole[:-600], whole[: len(whole) // 2], whole[:20], b"", b"<html>404</html>"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="truncated or damaged"):
            read_members(path, ("wanted",), largest=10_000)
        assert path.read_bytes() == content


def test_a_flipped_bit_in_a_zip_is_refused(tmp_path: Path) -> None:
    """In a tar it shows only in the content, which the callers hold to its sha256."""
    path = zipped(tmp_path / "a.zip", {"wanted": os.urandom(5000)})
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataError, match="truncated or damaged"):
        read_members(path, ("wanted",), largest=10_000)
