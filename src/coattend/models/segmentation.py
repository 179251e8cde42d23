"""Results per pixel for the user's image files: masks as pictures, fields and logits as arrays."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from coattend._files import check_target, write_whole
from coattend.data.fitting import convert_channels
from coattend.data.images import read_image
from coattend.models.classifier import Classifier, check_finite
from coattend.models.windows import WINDOW, apply_in_windows, is_seamless, locality
from coattend.nn import OrientationField

# Of Okabe and Ito, told apart with every kind of colour vision; the first class is the background.
COLOURS = ((0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
           (204, 121, 167))  # fmt: skip
MASK, ARRAY = ".png", ".npy"


@dataclass(frozen=True)
class Segmented:
    """What was written for an image.

    - shares: the share of the pixels of each class; None for fields
    - seamless: whether the result is that of the whole image at once, up to rounding
    """

    path: Path
    size: tuple[int, int]
    shares: dict[str, float] | None
    seamless: bool

    def lines(self) -> list[str]:
        """Return the lines that the command line prints."""
        height, width = self.size
        how = (
            "equal to the whole image at once, up to rounding"
            if self.seamless
            else "neighbouring windows blended, because results depend on more of the image than a window shows"
        )
        shares = [f"  {name}: {share:.1%} of the pixels" for name, share in (self.shares or {}).items()]
        return [f"wrote {self.path}, {height} x {width}; {how}", *shares]


def segment_file(
    classifier: Classifier, image: Path, to: Path, window: int = WINDOW, overwrite: bool = False
) -> Segmented:
    """Apply a trained network with one result per pixel to an image file of any size, and write the result.

    The suffix of ``to`` chooses the form: ``.png``, a picture whose pixels are the numbers of the classes, in colours;
    ``.npy``, an array (results, height, width) in float32, the logits or the fields as the network returns them.
    """
    check_target(to, overwrite)
    is_field = any(isinstance(layer, OrientationField) for layer in classifier.modules())
    if to.suffix not in ((ARRAY,) if is_field else (MASK, ARRAY)):
        forms = ARRAY if is_field else f"{MASK} for a mask, or {ARRAY}"
        raise ValueError(f"segment writes {forms} for this network, got {to.name!r}; choose another suffix.")
    pixels = convert_channels(read_image(image), classifier.image_shape[0])
    model: nn.Module = classifier
    if (where := locality(model, len(pixels))).reach is None:  # perhaps because of steps that see the whole image
        model, pixels = classifier.network, classifier.preprocessing(pixels[None])[0]
        where = locality(model, len(pixels))
    results = apply_in_windows(model, pixels, window, where)
    check_finite(results)
    mask = None if is_field else _classes(results)
    write_whole(to, _array(results) if mask is None or to.suffix == ARRAY else _picture(mask))
    height, width = pixels.shape[-2:]
    shares = None
    if mask is not None:
        counts = torch.bincount(mask.flatten(), minlength=len(classifier.classes)).tolist()
        shares = {name: count / mask.numel() for name, count in zip(classifier.classes, counts, strict=False)}
    return Segmented(to, (height, width), shares, is_seamless((height, width), window, where))


def _classes(results: Tensor) -> Tensor:
    """Return the number of the class with the largest logit at each pixel, row by row to save memory."""
    if len(results) > 256:
        raise ValueError(f"a mask holds at most 256 classes, the network has {len(results)}; write {ARRAY} instead.")
    return torch.stack([row.argmax(0).byte() for row in results.unbind(1)])


def _array(results: Tensor) -> bytes:
    content = io.BytesIO()
    np.save(content, results.float().cpu().numpy(), allow_pickle=False)
    return content.getvalue()


def _picture(mask: Tensor) -> bytes:
    from PIL import Image

    picture = Image.fromarray(mask.cpu().numpy())
    picture.putpalette([channel for number in range(256) for channel in COLOURS[number % len(COLOURS)]])
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return content.getvalue()
