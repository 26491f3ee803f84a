"""Legal actions: the entry ``action_mask`` of environments, in policies and in batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NEXT, NestedKey, key_str, leaf_keys
from rl.core.specs import Binary, Categorical, OneHot, TensorSpec, Unbounded
from rl.envs import ActionMask, GymWrapper
from rl.envs.transforms import Specs
from rl.trainers._build.networks import MASK, action_of, described, yaml_key
from rl.trainers._rng import preserved_rng

__all__ = ["LegalActions", "check_choice", "check_mask", "is_choice", "mask_in_info", "mask_key", "masked_rows"]


def mask_key(env: Env) -> NestedKey | None:
    """Key of the mask of legal actions; None if the environment writes none."""
    return MASK if MASK in leaf_keys(env.observation_spec) else None


def is_choice(spec: Any) -> bool:
    """Whether an action is one choice of several, which is what a mask is for."""
    return type(spec) is OneHot or (type(spec) is Categorical and not spec.shape)


def check_mask(recipe: str, env: Env) -> None:
    """Raise if the environment has a mask that no policy can apply.

    Args:
        recipe: Name of the recipe, for messages.
        env: Environment of one agent.

    Raises:
        SpecError: if the action is not one choice of several, or the mask has no entry for each of them.
    """
    if mask_key(env) is not None:
        check_choice(recipe, type(env).__name__, MASK, _one(env, env.observation_spec[MASK]), *action_of(env))


def check_choice(recipe: str, env: str, key: NestedKey, mask: Any, action: NestedKey, spec: Any) -> None:
    """Raise if a mask does not fit an action.

    Args:
        recipe: Name of the recipe, for messages.
        env: Name of the environment, for messages.
        key: Key of the mask.
        mask: Spec of the mask of one agent.
        action: Key of the action.
        spec: Spec of the action of one agent.

    Raises:
        SpecError: if the action is not one choice of several, or the mask has no entry for each of them.
    """
    numbers = mask.dtype is not None and not mask.dtype.is_floating_point
    if is_choice(spec) and numbers and tuple(mask.shape) == (int(spec.n),):
        return
    raise SpecError(
        f"{recipe} masks one choice of n actions with n integers or booleans; {env} has {key_str(key)},"
        f" {described(mask)}, and {key_str(action)}, {described(spec)}. Leave the mask out with --transform"
        f" 'exclude:{{excluded_keys: [{yaml_key(key)}]}}', which makes all actions legal"
    )


def mask_in_info(env: Any, seed: int) -> dict[str, TensorSpec]:
    """``info_keys`` that write the mask of an environment of Gymnasium that reports it in ``info`` only; else empty.

    The environment is reset to find it, and not stepped, since no action is known to be legal. The reset has
    `seed`, so that a run is the same each time.
    """
    made = env.gym_env if isinstance(env, GymWrapper) else None
    first = made[0] if isinstance(made, list) else made
    if not isinstance(first, gymnasium.Env) or mask_key(env) is not None:
        return {}
    if not isinstance(first.action_space, gymnasium.spaces.Discrete):
        return {}
    with preserved_rng():
        answer: Any = first.reset(seed=seed)
    info = answer[1] if isinstance(answer, tuple) and len(answer) == 2 else None  # else training reports it
    if not isinstance(info, Mapping) or MASK not in info:
        return {}
    mask = torch.as_tensor(np.asarray(info[MASK]))
    return {MASK: Unbounded(mask.shape, dtype=mask.dtype)}


def legal(mask: Tensor) -> Tensor:
    """A mask as bool; where no action is legal, as at the end of an episode, all are.

    Example:
        >>> legal(torch.tensor([[0, 1], [0, 0]], dtype=torch.int8))
        tensor([[False,  True],
                [ True,  True]])
    """
    mask = mask.bool()
    return mask | ~mask.any(-1, keepdim=True)


def masked_rows(rows: TensorDictBase) -> TensorDictBase:
    """Rows of a data set with masks as `LegalActions` writes them, where they have some."""
    for key in (MASK, (NEXT, MASK)):
        mask = rows.get(key, None)
        if mask is not None:
            rows.set(key, legal(mask))
    return rows


class LegalActions(ActionMask):
    """Writes the mask as bool, and keeps that of the action spec up to date, so that random actions are legal.

    Reads ``action_mask`` ``[*B, n]``, integers or booleans; see `legal` for what it writes.
    """

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        root[MASK] = legal(root[MASK])
        return super()._reset(root, mask)

    def _step(self, root: Any, outcome: Any) -> Any:
        outcome[MASK] = legal(outcome[MASK])
        return super()._step(root, outcome)

    def transform_specs(self, specs: Specs) -> None:
        """Make the mask bool."""
        spec: Any = specs.observation[MASK]
        specs.observation[MASK] = Binary(shape=spec.shape, dtype=torch.bool, device=spec.device)
        super().transform_specs(specs)

    def state_dict(self) -> dict[str, Any]:
        """The mask of the action spec."""
        mask = self.masked_spec.mask
        return {} if mask is None else {"mask": mask.clone()}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""
        self.masked_spec.update_mask(state.get("mask"))


def _one(env: Env, spec: Any) -> Any:
    first = (0,) * len(env.batch_size)
    return spec[first] if first else spec
