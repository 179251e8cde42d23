"""The verbs, run as a user runs them."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch

import coattend as ca
from coattend import cli
from coattend.__main__ import run
from coattend.cli import main
from coattend.data import load_data
from coattend.data.fitting import Fit
from coattend.train import Recipe


def started(shadow: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own; modules in the folder ``shadow`` stand in for libraries."""
    path = os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-m", "coattend", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, encoding="utf-8", check=False)


@dataclasses.dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


Verb = Callable[..., Ended]


@pytest.fixture
def coattend(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    """The program, called in this process: importing torch for every verb would take seconds."""
    monkeypatch.setenv("COLUMNS", "80")
    torch.set_default_dtype(torch.float32)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["coattend", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


def test_models_prints_all_with_counts_and_a_note_for_each_difference(coattend: Verb) -> None:
    run = coattend("models")
    assert run.returncode == 0
    for name in ca.list_models():
        (line,) = [line for line in run.stdout.splitlines() if line.split()[:1] == [name]]
        count = sum(p.numel() for p in ca.create_model(name).parameters())
        assert f"{count:,}" in line
        assert (ca.model_entry(name).published_count or "-") in line
    assert "24,680" in run.stdout
    assert "truncates" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_models_takes_a_pattern(coattend: Verb) -> None:
    run = coattend("models", "dren*")
    assert "dren_maxpool" in run.stdout
    assert "p4cnn" not in run.stdout
    bad = coattend("models", "xyz*")
    assert (bad.returncode, bad.stderr.startswith("coattend: no model matches 'xyz*'")) == (2, True)


def test_check_passes_fails_and_explains(coattend: Verb, tmp_path: Path) -> None:
    sound = coattend("check", "a_p4cnn:width=4")
    assert sound.returncode == 0
    assert "turn 270°" in sound.stdout
    assert "a_p4cnn is exactly equivariant to C4 on images of 28 x 28" in sound.stdout
    broken = coattend("check", "p4_allcnn:width=4")
    assert broken.returncode == 1
    assert "stride against size" in broken.stdout
    assert "29 x 29" in broken.stdout.replace("\n", " ")
    plain = coattend("check", "z2cnn:width=4")
    assert plain.returncode == 1
    assert "a plain convolution" in plain.stdout
    ca.save_model(ca.create_model("a_p4cnn", width=4), tmp_path / "m.safetensors")
    assert coattend("check", str(tmp_path / "m.safetensors")).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "a_p4cn"), "did you mean a_p4cnn"),
        (("check", "absent.safetensors"), "there is no file absent.safetensors"),
        (("check", "p4cnn", "--group", "p5"), "unknown group 'p5'"),
        (("check", "p4cnn", "--size", "0"), "--size expects the height and width of images"),
        (("train", "p4cn"), "did you mean p4cnn"),
        (("train", "p4cnn", "--recipe", "hose"), "did you mean house"),
        (("train", "p4cnn", "--data", "minii"), "mini"),
        (("train", "p4cnn", "--set", "epoch=3"), "did you mean epochs"),
        (("train", "p4cnn", "--folder", "/dev/null/runs"), "cannot make the run folder"),
        (("compare", "p4cnn", "--seeds", "0,x"), "--seeds expects whole numbers separated by commas, got '0,x'"),
        (("evaluate", "/"), "is not a run folder"),
        (("evaluate", "nowhere.safetensors"), "there is no file nowhere.safetensors"),
        (("predict", "nowhere.safetensors", "a.png"), "there is no file nowhere.safetensors"),
        (("data", "fetch"), "data fetch expects the name of a dataset"),
        (("data", "fetch", "mnits"), "mnist"),
        (("reproduce", "p4cn"), "did you mean p4cnn"),
        (("check", "p4cnn", "--size", "5"), "larger than the padded map of 1 x 1; pass larger images"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str, coattend: Verb) -> None:
    ended = coattend(*arguments)
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("coattend: ")
    assert message in line


SOURCES = [path.read_text() for path in Path(cli.__file__).parent.glob("*.py")]
VERBS = [verb for source in SOURCES for verb in re.findall(r"@app\.command\ndef (\w+)\(", source)]


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_what_is_expected_and_has_an_example(verb: str, coattend: Verb) -> None:
    text = coattend(verb, "--help").stdout
    for vague in ("STR", r"\{None\}", "PATH"):
        assert not re.search(rf"(?<!\w){vague}(?!\w)", text), vague
    (example,) = re.findall(r"Example: coattend (.*)", text)
    assert example.split()[0] == verb
    for option in re.findall(r"(--[\w-]+)", example):
        assert option in text.replace(example, ""), option


def test_commands_in_the_documents_exist(coattend: Verb) -> None:
    root = Path(__file__).parents[1]
    documents = [root / "README.md", root / "experiments/README.md", *root.glob("docs/*.md")]
    blocks = [block for file in documents for block in re.findall(r"```\n(.*?)```", file.read_text(), re.DOTALL)]
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    commands = [line.removeprefix("$ ").split()[1:] for line in lines if re.match(r"(\$ )?coattend [a-z]", line)]
    assert len(commands) > 20
    helps = {verb: coattend(verb, "--help").stdout for verb in {command[0] for command in commands}}
    for verb, *words in commands:
        for option in (word.strip("[]") for word in words if word.startswith(("--", "[--"))):
            assert re.search(rf"{option}\b", helps[verb]), (verb, option)


def test_recipes_lists_every_field_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    cli.runs.recipes("z2cnn")
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    names = {field.name for field in dataclasses.fields(Recipe)}
    assert names & set(lines) == names - {"name", "settings"}
    assert lines["epochs"] == ["12", "30", "40", "30", "300"]
    assert lines["optimizer"] == ["adamw", "adamw", "adamw", "adamw", "adam"]


def test_version_and_help_do_not_load_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    assert started(tmp_path, "--version").stdout.strip() == f"coattend {ca.__version__}"
    shown = started(tmp_path, "train", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "{resize,crop}" in shown.stdout


@pytest.mark.parametrize("library", ["torch", "tyro"])
def test_ctrl_c_while_a_library_is_loaded_ends_without_a_traceback(library: str, tmp_path: Path) -> None:
    (tmp_path / f"{library}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    )
    stopped = started(tmp_path, "models")
    assert stopped.returncode == 130
    assert stopped.stderr.split() in ([], ["coattend:", "stopped."])


def test_the_command_line_offers_the_fits_of_the_library() -> None:
    assert get_args(cli.program.Fit) == get_args(Fit)


def test_train_evaluate_and_predict_work_together(coattend: Verb, tmp_path: Path) -> None:
    small = ["--set", "epochs=1", "--set", "train_images=64", "--set", "test_images=50"]
    trained = coattend("train", "a_p4cnn:width=2", "--folder", str(tmp_path), *small)
    assert trained.returncode == 0, trained.stderr
    assert "finished: test error" in trained.stdout
    (folder,) = {path.parent for path in tmp_path.rglob("result.json")}
    tested = coattend("evaluate", str(folder))
    assert tested.returncode == 0, tested.stderr
    assert "2,000 images" in tested.stdout
    assert "equivariance error" in tested.stdout
    Image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "digit.png"
    Image.fromarray(load_data("mini").test.images[0, 0].numpy()).resize((40, 60)).convert("RGB").save(picture)
    predicted = coattend("predict", str(folder), str(picture))
    assert predicted.returncode == 0, predicted.stderr
    assert f"\n{picture}: " in predicted.stdout
    assert "%" in predicted.stdout
    missing = coattend("predict", str(folder), str(tmp_path / "absent.png"))
    assert missing.returncode == 1
    assert "absent.png" in missing.stderr


def test_data_list_shows_all(coattend: Verb) -> None:
    listed = coattend("data", "list").stdout
    assert all(name in listed for name in ("mini", "rotated-mnist", "mnist", "cifar10"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(28, "No space left on device", "here/report.html"),
            "coattend: here/report.html: No space left on device.",
        ),
        (OSError("timed out"), "coattend: timed out."),
        (MemoryError("Unable to allocate 3 TiB"), "coattend: not enough memory (Unable to allocate 3 TiB); use"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory\nstack"), "coattend: not enough memory (DefaultCPU"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, message: str, coattend: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("coattend.cli.app.cli", fail)
    ended = coattend("models")
    assert ended.returncode == 2
    assert ended.stderr.startswith(message)


@pytest.mark.parametrize(("verb", "resumes"), [("train", True), ("compare", True), ("report", False), ("bench", False)])
def test_ctrl_c_promises_to_go_on_only_where_it_does(
    verb: str, resumes: bool, coattend: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coattend.cli.app.cli", interrupt)
    ended = coattend(verb)
    assert ended.returncode == 130
    assert "stopped" in ended.stderr
    assert ("the same command continues" in ended.stderr) == resumes


def test_nothing_is_interrupted_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("coattend.cli.main", lambda: sys.exit(0))
    try:
        with pytest.raises(SystemExit):
            run()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_reader_that_ends_early_is_no_error() -> None:
    verb = subprocess.Popen(
        [sys.executable, "-m", "coattend", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert verb.stdout is not None
    assert verb.stderr is not None
    verb.stdout.close()
    assert verb.stderr.read() == ""
    verb.stderr.close()
    assert verb.wait() == 141
