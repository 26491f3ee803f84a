"""`TargetReturn`: the return that a policy has to achieve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._checks import from_root
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.reward._reward_sum import observe_rewards

__all__ = ["TargetReturn"]


@_foreign.target_return
class TargetReturn(Transform):
    """Writes the return that is still to be achieved in an episode, which a policy reads as its goal.

    Reads ``("next", "reward")``; writes ``target_return`` at the root and under ``next``, with the shape and dtype of
    the reward. Chen et al., "Decision Transformer", 2021.

    Args:
        target_return: the return at the start of each episode.
        mode: ``"reduce"`` subtracts each reward, ``"constant"`` does not.
        in_keys: rewards, without ``next``; all of the environment if None.
        out_keys: Keys of the targets; ``target_return`` next to each reward if None.

    Raises:
        SpecError: if the mode is another, the lists differ in length, or a reward does not exist.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), TargetReturn(10.0))
        >>> env.rollout(3)["target_return"].flatten()
        tensor([10.,  9.,  8.])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        target_return: float,
        mode: Literal["reduce", "constant"] = "reduce",
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys)
        if mode not in ("reduce", "constant"):
            raise SpecError(f"TargetReturn: mode must be 'reduce' or 'constant', got {mode!r}")
        self.target_return, self.mode = target_return, mode
        self._every = in_keys is None
        self._named = None if out_keys is None else self._key_lists(out_keys, None)[0]
        self._zeros: dict[NestedKey, Tensor] = {}
        self._set_out_keys()

    def _set_out_keys(self) -> None:
        beside = [unwrap((*as_tuple(key)[:-1], "target_return")) for key in self.in_keys]
        self.out_keys = beside if self._named is None else self._named
        if len(set(self.out_keys)) != len(self.in_keys):
            raise SpecError(f"TargetReturn has in_keys {self.in_keys} and out_keys {self.out_keys}: give one for each")

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for out, zero in self._zeros.items():
            root[out] = torch.full_like(zero, self.target_return)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            before = from_root(root, out, self)
            outcome[out] = before - outcome[key] if self.mode == "reduce" else before.clone()
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the targets to the observation."""
        if self._every:
            self.in_keys = leaf_keys(specs.reward)
            self._set_out_keys()
        self._zeros = observe_rewards(self, specs)
