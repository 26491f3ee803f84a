"""`InitTracker`: marks the first step of each trajectory."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Composite
from rl.envs.base._specs import flag_spec, leaf_keys
from rl.envs.transforms._base import Transform

__all__ = ["InitTracker"]


class InitTracker(Transform):
    """Writes whether a step is the first after a reset. Recurrent modules start from zero there.

    Writes ``is_init``, bool, in the shape of ``done``, at the root and (false) under ``next``.

    Args:
        init_key: where the mark goes; the ``done`` beside it says its shape.

    Raises:
        SpecError: if there is no ``done`` beside it.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), InitTracker()).rollout(3)["is_init"].flatten()
        tensor([ True, False, False])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, init_key: NestedKey = "is_init") -> None:
        super().__init__()
        self.init_key = unwrap(init_key)
        self.out_keys = [self.init_key]
        self._done_key = unwrap((*as_tuple(self.init_key)[:-1], "done"))

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        root[self.init_key] = torch.ones_like(root[self._done_key])
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        outcome[self.init_key] = torch.zeros_like(outcome[self._done_key])
        return outcome

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Adds the mark."""
        assert self._parent is not None  # specs are asked for by a parent only
        done = self._parent.base_env.done_spec_unbatched
        if done.get(self._done_key, None) is None:
            raise SpecError(
                f"InitTracker writes {key_str(self.init_key)} beside {key_str(self._done_key)}, which the environment"
                f" does not have (done keys: {leaf_keys(done)}): name a key beside one of them with init_key="
            )
        spec[self.init_key] = flag_spec(done[self._done_key].shape, spec.device)
        return spec
