"""Files written in one piece, and the folders they go to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coattend._files import atomic_writer, cache_dir, check_target, make_folder, remove_unfinished, write_atomically


def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_writer(path) as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_only_unfinished_files_of_the_given_names_are_removed(tmp_path: Path) -> None:
    unfinished = {".run.json.abc_1234", ".data.npz.0123456789abcdef.tmp"}
    others = {".run.json.abc", ".nfs0001", ".other.json.abc_1234", "run.json.abc_1234", ".DS_Store"}
    for name in unfinished | others:
        (tmp_path / name).touch()
    (tmp_path / ".run.json.folder12").mkdir()
    remove_unfinished(tmp_path, ["run.json", "data.npz"])
    assert set(os.listdir(tmp_path)) == others | {".run.json.folder12"}


def test_a_killed_writer_leaves_a_file_that_is_recognised(tmp_path: Path) -> None:
    with atomic_writer(tmp_path / "run.json") as file:
        file.write(b"{}")
        (left,) = tmp_path.iterdir()
        content = left.read_bytes()
    left.write_bytes(content)
    remove_unfinished(tmp_path, ["run.json"])
    assert os.listdir(tmp_path) == ["run.json"]


def test_targets_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"")
    with pytest.raises(ValueError, match="exists already"):
        check_target(tmp_path / "file", overwrite=False)
    check_target(tmp_path / "file", overwrite=True)
    with pytest.raises(ValueError, match="is a folder"):
        check_target(tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="no folder"):
        check_target(tmp_path / "nowhere" / "file", overwrite=False)
    with pytest.raises(ValueError, match="is a file"):
        make_folder(tmp_path / "file")


def test_without_a_home_folder_the_cache_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(OSError, match="set XDG_CACHE_HOME"):
        cache_dir()
