"""Imports go downward only, and the core needs nothing but its declared libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coattend

SOURCE = Path(__file__).parents[1] / "src" / "coattend"
FLOORS = [
    "groups",
    "functional",
    "nn",
    "equivariance",
    "data",
    "models",
    "export",
    "conversion",
    "train",
    "grid",
    "report",
]  # each may import those before it
GROUND = {"version", "_files", "_registry", "_terminal", "_timing", "_words"}  # modules that any of them may import


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_go_downward_only(floor: str) -> None:
    allowed = set(FLOORS[: FLOORS.index(floor) + 1])
    for path in (SOURCE / floor).rglob("*.py"):
        floors = {name.split(".")[1] for name in imported(path) if name.startswith("coattend.")} - GROUND
        assert floors <= allowed, f"{path.name} imports {sorted(floors - allowed)}"


def test_every_package_is_on_a_floor() -> None:
    assert {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"} == {*FLOORS, "bench", "cli"}


def test_layers_and_networks_load_nothing_heavy() -> None:
    code = (
        "import sys, coattend as ca; print('torch' in sys.modules); ca.nn, ca.functional, ca.freeze, ca.create_model\n"
        "ca.train.get_recipe('quick'); print(*sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    early, loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert early == "False"
    assert {"torch", "coattend.models"} <= set(loaded.split())
    heavy = {"matplotlib", "onnxruntime", "e2cnn", "scipy", "lightning_fabric", "tensorboard", "PIL", "triton", "ray"}
    assert not heavy & set(loaded.split())


def test_the_package_shows_what_is_public() -> None:
    names = set(dir(coattend))
    assert {"data", "export", "nn", "report", "train", "create_model", "FiniteGroup", "__version__"} <= names
    assert not {"importlib", "ModuleType", "cli", "version"} & names


def test_type_checkers_see_the_names_that_are_loaded_when_used() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = sorted((alias.name, node.module) for node in imports for alias in node.names if node.module != "typing")
    names = [(name, f"coattend.{module}") for name, module in coattend._MODULE_OF.items()]
    packages = [(package, "coattend") for package in coattend._PUBLIC if "." not in package]
    assert typed == sorted([*names, *packages, ("__version__", "coattend.version")])
    assert all(hasattr(coattend, name) for name in dir(coattend))
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        coattend.absent  # type: ignore[attr-defined]  # noqa: B018


def test_using_a_network_loads_nothing_that_trains(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from coattend.cli import main\n"
        "weights, digit, folder = sys.argv[1:]\n"
        "for verb in (('predict', weights, digit), ('export', weights, '--to', f'{folder}/m.pt'),\n"
        "             ('check', f'{folder}/m.pt'), ('explore', weights, '--to', f'{folder}/page.html')):\n"
        "    sys.argv[1:] = verb\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert ended.code == 0, verb\n"
        "    print('loaded', *sys.modules)\n"
    )
    weights = SOURCE / "models" / "weights" / "rotated-mnist" / "p4cnn.safetensors"
    digit = SOURCE.parents[1] / "docs" / "assets" / "digit.png"
    command = [sys.executable, "-c", code, str(weights), str(digit), str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "3" in printed.split()  # the digit
    loaded = [set(line.split()) for line in printed.splitlines() if line.startswith("loaded")]
    assert len(loaded) == 4
    for modules in loaded:
        assert not {"lightning_fabric", "tensorboard", "torchmetrics", "matplotlib", "coattend.train"} & modules


def test_data_stands_on_its_own() -> None:
    for path in (SOURCE / "data").rglob("*.py"):
        floors = {n.split(".")[1] for n in imported(path) if n.startswith("coattend.")} - GROUND
        assert floors <= {"data", "groups"}, path.name
