"""`TimeMaxPool`: the maximum over the last frames."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.envs.transforms._frames import FrameMemory

__all__ = ["TimeMaxPool"]


class TimeMaxPool(FrameMemory):
    """Takes the elementwise maximum of the last `T` frames of an episode, against sprites that flicker.

    Reads frames; writes their maximum, of the same shape and dtype. The first frame of an episode stands alone.
    Mnih et al., "Human-level control through deep reinforcement learning", 2015, methods.

    Args:
        in_keys: frames.
        out_keys: where the maximum goes; `in_keys` if None.
        T: number of frames, at least 1.
        reset_key: mask of a partial reset; only ``_reset`` at the root.

    Raises:
        SpecError: if `T` is below 1.

    Order: before `FrameSkipTransform`, to see the frames that it skips.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> data = TransformedEnv(PendulumEnv(), TimeMaxPool(["observation"], ["highest"], T=2)).rollout(3)
        >>> bool((data["next", "highest"] == data["observation"].maximum(data["next", "observation"])).all())
        True
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        T: int = 1,  # noqa: N803  # the name of the concept that users know
        reset_key: NestedKey | None = None,
    ) -> None:
        super().__init__(T, in_keys, out_keys, reset_key)
        self.T = T

    def _combine(self, frames: list[Tensor]) -> Tensor:
        return reduce(torch.maximum, frames) if len(frames) > 1 else frames[0].clone()
