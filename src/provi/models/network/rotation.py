"""Images turned by an angle: inputs that drift away from those of the training, by as much as one likes."""

from typing import Any

import numpy as np
from scipy import ndimage

from provi.core.checks import as_array


def rotate(images: Any, degrees: float | int) -> np.ndarray:
    """Images (n, h, w) or (n, h, w, channels) turned counter-clockwise about their centre, in float32.

    Bilinear between pixels; the size stays, corners that turn out of the picture are lost, those that come in are 0.
    Whole numbers keep their scale: pixels from 0 to 255 stay between 0.0 and 255.0, and the model's own scaling of
    uint8 no longer sees them, so divide them by 255 first.
    """
    pixels = as_array("images", images)
    if pixels.ndim not in (3, 4):
        raise ValueError(f"images must have shape (n, h, w) or (n, h, w, channels), not {pixels.shape}.")
    if not np.isfinite(degrees):
        raise ValueError(f"degrees must be a finite angle, not {degrees}.")
    return ndimage.rotate(pixels.astype(np.float32), degrees, axes=(2, 1), reshape=False, order=1, mode="constant")
