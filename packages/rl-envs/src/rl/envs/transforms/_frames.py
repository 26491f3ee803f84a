"""`FrameMemory`: base class of transforms of the last frames of each episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, RLError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.mdp import where_reset
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["FrameMemory"]


class FrameMemory(Transform):
    """Base class of transforms that combine the last frames of each episode.

    The frames are held by the transform, so that transforms after it may change what it writes. Elements that a partial
    reset leaves out, or that ``_step`` excludes, keep theirs.

    Args:
        length: number of frames.
        in_keys: frames.
        out_keys: combinations.
        reset_key: mask of a partial reset, which must be ``_reset``: next to a ``done`` at the root.

    Raises:
        SpecError: if the length is below 1, or the mask is another.
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        length: int,
        in_keys: Iterable[NestedKey] | None,
        out_keys: Iterable[NestedKey] | None,
        reset_key: NestedKey | None,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        if length < 1:
            raise SpecError(f"{type(self).__name__} needs at least one frame, got {length}")
        if reset_key not in (None, "_reset", ("_reset",)):
            raise SpecError(
                f"{type(self).__name__}: reset_key must be '_reset', the mask next to the 'done' at the root, got"
                f" {key_str(reset_key)}"
            )
        self._length = length
        self._frames: dict[NestedKey, list[Tensor]] = {}
        self._device: torch.device | None = None

    def _before(self, first: Tensor) -> Tensor:
        """What stands in for the frames before the first one."""
        return first

    def _combine(self, frames: list[Tensor]) -> Tensor:
        """The value of an out key, for the frames in time order."""
        raise NotImplementedError

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            first = root[key]
            frames = [*[self._before(first)] * (self._length - 1), first]
            held = self._frames.get(key)
            if mask is not None and held is not None:
                frames = [where_reset(mask, new, old) for new, old in zip(frames, held, strict=True)]
            self._frames[key] = frames
            root[out] = self._combine(frames)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        moving = root.get("_step", None)
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            held = self._frames.get(key)
            if held is None:
                raise RLError(f"{self!r} has seen no first frame: reset the environment before the first step")
            frames = [*held[1:], outcome[key]]
            if moving is not None:
                frames = [where_reset(moving, new, old) for new, old in zip(frames, held, strict=True)]
            self._frames[key] = frames
            outcome[out] = self._combine(frames)
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Map the specs of the frames.

        Raises:
            SpecError: if episodes end below the root, or a frame is missing.
        """
        if specs.done_levels() != [()]:
            raise SpecError(f"{self!r} needs a 'done' at the root, the environment has {specs.done_levels()}")
        self._device = specs.device or torch.device("cpu")  # that of the entries here: a later cast may move them
        super().transform_specs(specs)

    def state_dict(self) -> dict[str, Any]:
        """Return the frames, in the order of `in_keys`; none before the first reset."""
        return {"frames": [list(self._frames[key]) for key in self.in_keys if key in self._frames]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: if the number of entries or frames is another.
        """
        saved = state.get("frames", [])
        if saved and (len(saved) != len(self.in_keys) or any(len(one) != self._length for one in saved)):
            raise CheckpointError(
                f"{self!r} holds {self._length} frames of {len(self.in_keys)} entries, the state has"
                f" {[len(one) for one in saved]}: build the same transform"
            )
        self._frames = {
            key: [frame.to(self._device) for frame in frames] for key, frames in zip(self.in_keys, saved, strict=False)
        }
