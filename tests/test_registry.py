"""Registries: names, near matches, plugins of other packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coattend import _registry
from coattend._registry import PLUGINS, Registry


def test_entries_are_listed_in_order_and_names_are_unique() -> None:
    shapes: Registry[type] = Registry("shape")
    square = shapes.register("square")(type("Square", (), {}))
    shapes.add("circle", int)
    shapes.add("square", square)
    assert list(shapes) == ["square", "circle"]
    assert shapes["square"] is square
    assert "line" not in shapes
    with pytest.raises(ValueError, match="there is a shape 'circle' already"):
        shapes.add("circle", float)
    with pytest.raises(ValueError, match="under a name"):
        shapes.add(" ", float)
    shapes.remove("circle")
    assert len(shapes) == 1


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    shapes: Registry[int] = Registry("shape", UnknownShapeError)
    shapes.add("square", 1)
    with pytest.raises(UnknownShapeError, match=r"\(did you mean square\?\); the known ones are square"):
        shapes["sqare"]


class UnknownShapeError(ValueError):
    pass


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder on the path in which packages can be installed, as far as their metadata goes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_registry, "_loaded", set())
    return tmp_path


def install(folder: Path, name: str, content: str) -> None:
    (folder / f"{name}.py").write_text(content)
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{PLUGINS}]\n{name} = {name}\n")
    importlib.invalidate_caches()


def test_installed_packages_register_through_entry_points(plugins: Path) -> None:
    install(plugins, "coattend_seven", "from tests.test_registry import NUMBERS\nNUMBERS.add('seven', 7)\n")
    assert NUMBERS["seven"] == 7
    assert list(NUMBERS) == ["seven"]
    NUMBERS.remove("seven")
    assert "seven" not in NUMBERS  # imported once
    del sys.modules["coattend_seven"]


NUMBERS: Registry[int] = Registry("number")


def test_a_plugin_that_cannot_be_imported_is_named(plugins: Path) -> None:
    install(plugins, "coattend_broken", "1 / 0\n")
    with pytest.raises(ImportError, match="the plugin coattend_broken .* ZeroDivisionError"):
        list(NUMBERS)


def test_a_definition_that_is_executed_again_replaces_its_entry() -> None:
    shapes: Registry[type] = Registry("shape")

    def cell() -> type:
        @shapes.register("square")
        class Square:
            pass

        return Square

    cell()
    again = cell()
    assert shapes["square"] is again
    with pytest.raises(ValueError, match="already"):
        shapes.register("square")(type("Square", (), {}))


def test_functions_without_a_name_are_never_the_same() -> None:
    areas: Registry[Callable[[float], float]] = Registry("area")
    areas.add("square", lambda side: side**2)
    with pytest.raises(ValueError, match="already"):
        areas.add("square", lambda side: side * 2)
