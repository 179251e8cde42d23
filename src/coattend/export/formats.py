"""Export formats by suffix: one registry that ``coattend export`` and ``coattend check`` ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import nn

from coattend._files import check_target
from coattend._registry import Registry
from coattend.export.measurement import CertificateCheck
from coattend.models import load_model
from coattend.models.classifier import load_trained, weights_file
from coattend.models.container import read_header

Write = TypeVar("Write", bound=Callable[..., object])


@dataclass(frozen=True)
class Format:
    """A kind of file that networks are exported into.

    - suffix: the end of its file names, such as ``".onnx"``
    - description: a few words for lists
    - write: ``write(network, path, overwrite=..., **options)`` writes a module in evaluation mode; the text of what it
      returns is shown to the user, None shows nothing
    - options: the names of the options that ``write`` takes; ``source`` is the file that the network was read from
    - check: measures what the certificate in a file claims, and returns None for a file without one; None if files of
      the format cannot be checked
    """

    suffix: str
    description: str
    write: Callable[..., object]
    options: tuple[str, ...] = ()
    check: Callable[[Path], CertificateCheck | None] | None = None


FORMATS: Registry[Format] = Registry("export format")


def register_format(
    suffix: str,
    description: str,
    *,
    options: tuple[str, ...] = (),
    check: Callable[[Path], CertificateCheck | None] | None = None,
) -> Callable[[Write], Write]:
    """Return a decorator that registers a function as the writer of a :class:`Format`.

    >>> @register_format(".txt", "the layers, as text")
    ... def write_text(network, path, *, overwrite=False):
    ...     path.write_text(str(network))
    >>> FORMATS.remove(".txt")
    """

    def decorate(write: Write) -> Write:
        FORMATS.add(suffix, Format(suffix, description, write, options, check), write)
        return write

    return decorate


def format_of(path: Path) -> Format | None:
    """Return the format that the name of a file asks for, None if there is none."""
    suffixes = [suffix for suffix in FORMATS if path.name.endswith(suffix) and path.name != suffix]
    return FORMATS[max(suffixes, key=len)] if suffixes else None


def export_file(source: str | Path, to: str | Path, *, overwrite: bool = False, **options: object) -> object:
    """Write the network of a run folder or model file in the format that the name of the new file asks for.

    A file that training wrote is exported with its preprocessing, so that the exported network takes pixels. Options
    that are None or False count as not given. Returns what the format's ``write`` returns: for the formats of this
    library what was measured, a :class:`Certificate`, or a :class:`Quantization` for ``int8=True``.
    """
    path = Path(to)
    form = format_of(path)
    if form is None:
        raise ValueError(f"--to expects a file that ends in {', '.join(FORMATS)}, got {path.name!r}.")
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in given:
        if name not in form.options:
            takers = ", ".join(other.suffix for other in FORMATS.values() if name in other.options)
            raise ValueError(f"--{name} is an option of {takers or 'no format'}, got {path.name!r}.")
    check_target(path, overwrite)
    weights = weights_file(source)
    if "source" in form.options:
        given["source"] = weights
    return form.write(load_network(weights), path, overwrite=overwrite, **given)


def load_network(weights: Path) -> nn.Module:
    """Load a model file in evaluation mode: with its preprocessing if it has one, else the network alone."""
    is_trained = "preprocessing" in read_header(weights)[0]
    network: nn.Module = load_trained(weights) if is_trained else load_model(weights).float()
    return network.eval()


def check_certificate(path: str | Path) -> CertificateCheck | None:
    """Measure again what the certificate of a file claims; None for a file of no format, or without a certificate."""
    path = Path(path)
    form = format_of(path)
    if form is None:
        return None
    if form.check is None:
        raise ValueError(f"{path} cannot be checked: files in the format {form.suffix} carry no certificate.")
    return form.check(path)
