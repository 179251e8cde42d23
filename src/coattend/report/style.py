"""The style of all figures, which are reproducible byte for byte; matplotlib is loaded with the first."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coattend._files import write_atomically
from coattend._words import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b2430"
# Distinguishable with any colour vision, in this order; line styles repeat the information.
COLOURS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#d55e00", "#6a5acd")
STYLES = ("-", "--", "-.", ":")
RATIOS = "viridis"  # from 0 to 1
AMOUNTS = "cividis"  # any range
SIGNED = "PuOr"  # around zero

_SETTINGS: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlecolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # names of classes and files may contain dollars
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "grid.color": "#8a94a6",
    "grid.alpha": 0.35,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "auto",
    "svg.fonttype": "path",
    "image.composite_image": False,
}


class PlottingError(ValueError):
    """A library for drawing is not installed."""

    @classmethod
    def missing(cls) -> PlottingError:
        """Return the error with what to install."""
        return cls(f"pictures and reports need matplotlib and Jinja2; {install('plot')}.")


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Create an empty figure, width and height in inches, in the common style."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingError.missing() from error
    with rc_context(_SETTINGS):
        yield Figure(figsize=(width, height))


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text; the name makes its ids differ from those of other figures on a page."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue().decode()


def _png(figure: Figure) -> bytes:
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context(_SETTINGS):
        figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as an element of a page, in the page's text colour, labelled with the description."""
    text = svg(figure, name)
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)  # ids are unique on a page
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}"', 1)


def save(figure: Figure, path: Path, suffixes: tuple[str, ...] = (".png", ".svg")) -> list[Path]:
    """Write the figure on a white background, once per suffix, and return the files."""
    figure.set_facecolor("white")
    written = []
    for suffix in suffixes:
        target = path.with_name(path.name + suffix)
        content = svg(figure, path.name).encode() if suffix == ".svg" else _png(figure)
        write_atomically(target, content)
        written.append(target)
    figure.set_facecolor("none")
    return written


def bare(axes: Axes) -> None:
    """Remove the frame and the tick marks, not their labels."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
