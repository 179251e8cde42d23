"""Contact sheets: many small images with captions in one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coattend._files import write_whole
from coattend.data.streaming import DataError

SIDE = 128  # pixels of each image on the sheet
LINE, GAP, COLUMNS, CHARACTERS = 13, 8, 8, 21
INK, PAPER, EDGE = (30, 30, 30), (255, 255, 255), (200, 30, 30)


@dataclass(frozen=True)
class Cell:
    """An image (channels, height, width) from 0 to 255, the lines below it, and classes whose outlines are drawn."""

    image: Tensor
    lines: tuple[str, ...]
    outline: Tensor | None = None


def contact_sheet(path: Path, cells: Sequence[Cell], columns: int = COLUMNS) -> None:
    """Write images side by side, enlarged or reduced to one size, with their captions."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise DataError("contact sheets need Pillow; run `pip install pillow`.") from error
    columns = min(columns, len(cells))
    caption = LINE * max(len(cell.lines) for cell in cells)
    width, height = SIDE + GAP, SIDE + caption + GAP
    sheet = Image.new("RGB", (columns * width + GAP, -(-len(cells) // columns) * height + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    for number, cell in enumerate(cells):
        left, top = GAP + number % columns * width, GAP + number // columns * height
        pixels = outlined(as_colour(cell.image), cell.outline)
        image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        scale = SIDE / max(image.size)
        method = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        sheet.paste(image.resize(size, method), (left, top))
        for line, text in enumerate(cell.lines):
            short = text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"
            draw.text((left, top + SIDE + 2 + LINE * line), short, fill=INK, font=font)
    content = io.BytesIO()
    sheet.save(content, format="PNG", optimize=True)
    write_whole(path, content.getvalue())


def as_colour(image: Tensor) -> Tensor:
    """Return bytes (3, height, width): grey three times, of many channels the first three, dim images stretched."""
    values = image.float()
    values = values.expand(3, -1, -1) if len(values) == 1 else values[:3]
    if len(values) == 2:
        values = torch.cat([values, torch.zeros_like(values[:1])])
    low, high = float(values.min()), float(values.max())
    if image.is_floating_point() and high > low:  # 16 bits are rarely used in full
        values = (values - low) * (255 / (high - low))
    return values.round().clamp(0, 255).byte()


def outlined(image: Tensor, classes: Tensor | None) -> Tensor:
    """Return the image with a line where the class of two neighbouring pixels differs."""
    if classes is None:
        return image
    edge = torch.zeros(classes.shape, dtype=torch.bool)
    edge[:, 1:] |= classes[:, 1:] != classes[:, :-1]
    edge[1:] |= classes[1:] != classes[:-1]
    return torch.where(edge, torch.tensor(EDGE, dtype=torch.uint8)[:, None, None], image)
