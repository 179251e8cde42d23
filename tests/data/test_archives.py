from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
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
    with pytest.raises(DataError, match="is refused: its member .* points outside of it"):
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


@pytest.mark.parametrize("mode", ["w:xz", "w:bz2", "w:gz"])
def test_damage_in_any_compression_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo("wanted")
        info.size = 5000
        archive.addfile(info, io.BytesIO(os.urandom(5000)))
    whole = path.read_bytes()
    assert len(read_members(path, ("wanted",), largest=5000)["wanted"]) == 5000
    for place in range(4, 40, 3):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 0xFF,)) + whole[place + 1 :])
        try:
            found = read_members(path, ("wanted",), largest=5000)
        except DataError:
            continue
        assert set(found) <= {"wanted"}  # a time stamp, say


def test_a_zip_packed_by_lzma_and_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("wanted", os.urandom(500))
    whole = path.read_bytes()
    for place in range(50, 130):  # after the name and the size of its dictionary
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 0xFF,)) + whole[place + 1 :])
        with pytest.raises(DataError, match="truncated or damaged"):
            read_members(path, ("wanted",), largest=1000)


def test_a_tar_is_not_unpacked_to_the_end_of_a_foreign_member(tmp_path: Path) -> None:
    """Neither as a file nor as the long name of one, both of 2 GB of zeros in 2 MB."""
    for kind in (tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        path = tmp_path / f"{kind.hex()}.tar.gz"
        info = tarfile.TarInfo("other")
        info.size, info.type = 2 << 30, kind
        member = gzip.compress(bytes(1 << 24), 1)
        path.write_bytes(gzip.compress(info.tobuf()) + 128 * member)
        started = time.process_time()
        with pytest.raises(DataError, match="unpacks to more than"):
            read_members(path, ("wanted",), largest=1000)
        assert time.process_time() - started < 1
