"""`EndOfLifeTransform`: marks the loss of a life."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs import Unbounded
from rl.envs import _foreign
from rl.envs.base._specs import flag_spec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._checks import from_root
from rl.envs.transforms._specs import Specs

__all__ = ["EndOfLifeTransform"]


@_foreign.end_of_life
class EndOfLifeTransform(Transform):
    """Writes whether a step lost a life or ended the episode.

    Reads ``lives`` and ``done``; writes ``lives``, int64 ``[*B, 1]``, and ``end-of-life``, bool ``[*B, 1]``, at the
    root (false) and under ``next``. Give ``end-of-life`` to a loss or an estimator as its ``done``, or end episodes by
    it with a `TerminateTransform`.

    Args:
        eol_key: the mark.
        lives_key: number of lives; of an Atari game from ``GymEnv(..., info_keys=["lives"])``.
        done_key: end of the episode.

    Raises:
        SpecError: if the environment does not write the lives.

    Order: before `FrameSkipTransform`, to see each frame.

    Example:
        >>> EndOfLifeTransform(eol_key="life_lost")
        EndOfLifeTransform(in_keys=['lives', 'done'], out_keys=['lives', 'life_lost'])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        eol_key: NestedKey = "end-of-life",
        lives_key: NestedKey = "lives",
        done_key: NestedKey = "done",
    ) -> None:
        super().__init__([lives_key, done_key], [lives_key, eol_key])
        self.eol_key, self.lives_key, self.done_key = unwrap(eol_key), unwrap(lives_key), unwrap(done_key)

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        done = root[self.done_key]
        root[self.lives_key] = root[self.lives_key].reshape(done.shape).to(torch.int64)
        root[self.eol_key] = torch.zeros_like(done)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        done = outcome[self.done_key]
        outcome[self.lives_key] = lives = outcome[self.lives_key].reshape(done.shape).to(torch.int64)
        outcome[self.eol_key] = (lives < from_root(root, self.lives_key, self)) | done
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the mark to the observation."""
        done = specs.done.get(self.done_key, None)
        if specs.observation.get(self.lives_key, None) is None or done is None:
            raise SpecError(
                f"{self!r} reads {key_str(self.lives_key)} and {key_str(self.done_key)}, and the environment does not"
                " write both: make a Gymnasium environment with info_keys=['lives']"
            )
        specs.observation[self.lives_key] = Unbounded(done.shape, dtype=torch.int64, device=specs.device)
        specs.add("observation", self.eol_key, flag_spec(done.shape, specs.device), self)
