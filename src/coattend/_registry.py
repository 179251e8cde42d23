"""Registries: named things of one kind, to which other packages can add their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from coattend._words import did_you_mean

T = TypeVar("T")

PLUGINS = "coattend.plugins"  # entry points: modules that register something when they are imported
_loaded: set[str] = set()


class Registry(Mapping[str, T]):
    """A mapping from names to things of one kind, in the order of registration.

    Packages that declare an entry point of the group ``coattend.plugins`` are imported before a registry is listed and
    before a name is reported as unknown, so that what they register is available without importing them.

    - kind: what an entry is called in messages, such as "model"
    - error: the type of the error for an unknown name, a ValueError

    >>> colors: Registry[int] = Registry("color")
    >>> colors.add("red", 1)
    >>> colors["rod"]
    Traceback (most recent call last):
    ValueError: unknown color 'rod' (did you mean red?); the known ones are red.
    """

    def __init__(self, kind: str, error: type[ValueError] = ValueError) -> None:
        self.kind = kind
        self.error = error
        self._entries: dict[str, T] = {}
        self._origins: dict[str, tuple[str, str]] = {}

    def add(self, name: str, entry: T, definition: object | None = None) -> None:
        """Add an entry under a name that is not taken.

        ``definition`` is the function or class that the entry was made from, by default the entry. A definition that is
        executed again, like a cell of a notebook, replaces its former entry.
        """
        if not isinstance(name, str) or not name.strip():
            raise self.error(f"a {self.kind} is registered under a name, a string that is not empty, got {name!r}.")
        defined = entry if definition is None else definition
        origin = getattr(defined, "__module__", ""), getattr(defined, "__qualname__", "<lambda>")
        has_name = not origin[1].endswith("<lambda>")
        if self._entries.get(name, entry) is not entry and not (has_name and self._origins[name] == origin):
            raise self.error(f"there is a {self.kind} {name!r} already; choose another name.")
        self._entries[name] = entry
        self._origins[name] = origin

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds what it decorates under a name."""

        def decorate(entry: T) -> T:
            self.add(name, entry)
            return entry

        return decorate

    def remove(self, name: str) -> None:
        """Remove an entry, for example one of a test."""
        del self._entries[name], self._origins[name]

    def unknown(self, name: object) -> ValueError:
        """Return the error for a name that is not registered."""
        known = list(self)
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        return self.error(f"unknown {self.kind} {name!r}{hint}; the known ones are {', '.join(known)}.")

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            load_plugins()
        if name not in self._entries:
            raise self.unknown(name)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)


def load_plugins() -> None:
    """Import the modules that installed packages declare as plugins, each once."""
    for plugin in entry_points(group=PLUGINS):
        if plugin.value in _loaded:
            continue
        _loaded.add(plugin.value)
        try:
            plugin.load()
        except Exception as error:
            raise ImportError(
                f"the plugin {plugin.name} ({plugin.value}) of the entry points {PLUGINS} cannot be imported: "
                f"{type(error).__name__}: {error}; fix or uninstall the package that declares it.",
                name=plugin.module,
            ) from error
