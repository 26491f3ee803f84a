"""Pictures in data sets, decoded with Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import MissingExtraError, RLError

__all__ = ["decoded"]


def decoded(owner: str, extra: str, name: str, pictures: Sequence[bytes]) -> Tensor:
    """Encoded pictures (PNG, JPEG) as uint8 ``[n, channels, height, width]``.

    Raises:
        MissingExtraError: if Pillow is not installed.
        RLError: if one is damaged, or they differ in size.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            f"{owner}: {name} holds pictures, which need Pillow: pip install 'rl-replay[{extra}]'"
        ) from error
    arrays: list[Any] = []
    for number, picture in enumerate(pictures):
        try:
            with Image.open(io.BytesIO(picture)) as image:
                arrays.append(np.atleast_3d(np.asarray(image)))
        except (OSError, ValueError, SyntaxError) as error:
            raise RLError(f"{owner}: picture {number} of {name} cannot be decoded: {error}") from error
    if len({array.shape for array in arrays}) > 1:
        raise RLError(f"{owner}: the pictures of {name} differ in size: {sorted({a.shape for a in arrays})}")
    return torch.from_numpy(np.stack(arrays)).movedim(-1, 1).contiguous()
