"""Legal actions: the entry ``action_mask`` of environments, in policies and in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import ACTION, NEXT, NestedKey, key_str, leaf_keys
from rl.core.specs import Binary, Bounded, Categorical, MultiCategorical, OneHot, TensorSpec, Unbounded
from rl.envs import ActionMask, GymWrapper
from rl.envs.transforms import Specs
from rl.modules import Categorical as CategoricalDistribution
from rl.modules import (
    IndependentBernoulli,
    IndependentCategorical,
    IndependentNormal,
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    TanhNormal,
)
from rl.trainers._device import preserved_rng
from rl.trainers.networks import MASK, action_of, described, yaml_key

__all__ = [
    "ActionDistribution",
    "LegalActions",
    "check_choice",
    "check_mask",
    "choices",
    "distribution_for",
    "distribution_of",
    "is_choice",
    "mask_in_info",
    "mask_key",
    "masked_rows",
    "single_choice",
]


def mask_key(env: Env) -> NestedKey | None:
    """Key of the mask of legal actions; None if the environment writes none."""
    return MASK if MASK in leaf_keys(env.observation_spec) else None


def is_choice(spec: Any) -> bool:
    """Whether an action is one choice of several."""
    return type(spec) is OneHot or (type(spec) is Categorical and not spec.shape)


def choices(spec: Any) -> list[int]:
    """Return the numbers of classes of the choices that an action makes; none if it is of another kind.

    Example:
        >>> choices(OneHot(4)), choices(MultiCategorical([2, 3])), choices(Unbounded((2,)))
        ([4], [2, 3], [])
    """
    if is_choice(spec):
        return [int(spec.n)]
    return spec.nvec.tolist() if type(spec) is MultiCategorical and len(spec.shape) == 1 else []


def check_mask(recipe: str, env: Env) -> None:
    """Raise if the environment has a mask that no policy can apply.

    Args:
        recipe: Name of the recipe, for messages.
        env: Environment of one agent.

    Raises:
        SpecError: If the action is no choice, or the mask does not have an entry for each of its classes.
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
        SpecError: If the action is no choice, or the mask does not have an entry for each of its classes.
    """
    numbers = mask.dtype is not None and not mask.dtype.is_floating_point
    sizes = choices(spec)
    if sizes and numbers and tuple(mask.shape) == (sum(sizes),):
        return
    raise SpecError(
        f"{recipe} masks the n classes of a choice, or of several choices in all, with n integers or booleans;"
        f" {env} has {key_str(key)}, {described(mask)}, and {key_str(action)}, {described(spec)}. Leave the mask out"
        f" with --transform 'exclude:{{excluded_keys: [{yaml_key(key)}]}}', which makes all actions legal"
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
    if not isinstance(first.action_space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        return {}
    with preserved_rng():
        answer: Any = first.reset(seed=seed)
    info = answer[1] if isinstance(answer, tuple) and len(answer) == 2 else None  # else training reports it
    if not isinstance(info, Mapping) or MASK not in info:
        return {}
    mask = torch.as_tensor(np.asarray(info[MASK]))
    return {MASK: Unbounded(mask.shape, dtype=mask.dtype)}


def legal(mask: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Convert a mask to bool; where no action is legal, as at the end of an episode, all are.

    Args:
        mask: Mask ``[*B, n]``, integers or booleans.
        sizes: Numbers of classes of several choices, n in all, of which each has a legal class.

    Example:
        >>> legal(torch.tensor([[0, 1], [0, 0]], dtype=torch.int8))
        tensor([[False,  True],
                [ True,  True]])
    """
    mask = mask.bool()
    if len(sizes) > 1:
        return torch.cat([legal(part) for part in mask.split(list(sizes), -1)], -1)
    return mask | ~mask.any(-1, keepdim=True)


def masked_rows(rows: TensorDictBase, sizes: Sequence[int] = ()) -> TensorDictBase:
    """Rows of a data set with masks as `LegalActions` writes them, where they have some.

    Args:
        rows: Rows of the data set.
        sizes: Numbers of classes of several choices, as of `legal`.
    """
    for key in (MASK, (NEXT, MASK)):
        mask = rows.get(key, None)
        if mask is not None:
            rows.set(key, legal(mask, sizes))
    return rows


class LegalActions(ActionMask):
    """Writes the mask as bool, and keeps that of the action spec up to date, so that random actions are legal.

    Reads ``action_mask`` ``[*B, n]``, integers or booleans; see `legal` for what it writes.
    """

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        root[MASK] = self._mask_of(root[MASK].bool())
        return super()._reset(root, mask)

    def _step(self, root: Any, outcome: Any) -> Any:
        outcome[MASK] = self._mask_of(outcome[MASK].bool())
        return super()._step(root, outcome)

    def transform_specs(self, specs: Specs) -> None:
        """Make the mask bool."""
        spec: Any = specs.observation[MASK]
        specs.observation[MASK] = Binary(shape=spec.shape, dtype=torch.bool, device=spec.device)
        super().transform_specs(specs)

    def state_dict(self) -> dict[str, Any]:
        """Return the mask of the action spec."""
        mask = self.masked_spec.mask
        return {} if mask is None else {"mask": mask.clone()}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""
        self.masked_spec.update_mask(state.get("mask"))


def _one(env: Env, spec: Any) -> Any:
    first = (0,) * len(env.batch_size)
    return spec[first] if first else spec


@dataclass(frozen=True)
class ActionDistribution:
    """How a policy samples an action.

    Args:
        key: Key of the action.
        spec: Spec of the action, without the environment's batch.
        width: Width of the network's output.
        params: Names of the distribution's parameters.
        kind: Class of the distribution.
        kwargs: Further arguments of the distribution.
        mask: Key of the mask of legal actions; None if all are.
        mask_name: Name of the distribution's argument for that mask.
    """

    key: NestedKey
    spec: Any
    width: int
    params: list[str]
    kind: type
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    mask: NestedKey | None = None
    mask_name: str = "mask"

    def reads(self, params: Sequence[NestedKey] | None = None) -> Any:
        """Return the ``in_keys`` of a `ProbabilisticActor`; `params` are the keys of parameters, if not their names."""
        found: list[Any] = [*(self.params if params is None else params)]
        return found if self.mask is None else {**dict(zip(self.params, found, strict=True)), self.mask_name: self.mask}


def distribution_of(env: Env, recipe: str) -> ActionDistribution:
    """Return the distribution that fits an environment's action.

    | action | distribution |
    |---|---|
    | `Categorical`, `OneHot` | categorical, of the legal actions where the environment writes ``action_mask`` |
    | `MultiCategorical` ``[k]`` | `IndependentCategorical`, of the legal classes where there is a mask |
    | `Binary` ``[n]`` | `IndependentBernoulli` |
    | `Bounded` ``[n]``, float32 or float64 | tanh-normal |
    | `Unbounded` ``[n]``, float32 or float64 | normal |

    Args:
        env: The environment.
        recipe: Name for messages.

    Raises:
        SpecError: If the action is of another kind, or bounded on one side.
    """
    key, spec = action_of(env)
    return distribution_for(key, spec, type(env).__name__, recipe, mask_key(env))


def distribution_for(
    key: NestedKey, spec: Any, env: str, recipe: str, mask: NestedKey | None = None
) -> ActionDistribution:
    """Return the distribution that fits a spec, see `distribution_of`.

    Args:
        key: Key of the action.
        spec: Spec of one action.
        env: Name of the environment, for messages.
        recipe: Name for messages.
        mask: Key of the mask of legal actions, which choices can have.

    Raises:
        SpecError: If the action is of another kind, or bounded on one side.
    """
    vector = len(spec.shape) == 1
    if is_choice(spec):
        kinds = (CategoricalDistribution, MaskedCategorical), (OneHotCategorical, MaskedOneHotCategorical)
        kind = kinds[type(spec) is OneHot][mask is not None]
        return ActionDistribution(key, spec, int(spec.n), ["logits"], kind, mask=mask)
    if type(spec) is MultiCategorical and vector:
        allowed = torch.arange(int(spec.nvec.max()), device=spec.nvec.device) < spec.nvec.unsqueeze(-1)
        kwargs = {"mask": allowed.to(spec.device)}  # of padding
        return ActionDistribution(
            key, spec, allowed.numel(), ["logits"], IndependentCategorical, kwargs, mask, mask_name="action_mask"
        )
    if type(spec) is Binary and vector:
        return ActionDistribution(key, spec, spec.shape[0], ["logits"], IndependentBernoulli, {"dtype": spec.dtype})
    real = vector and spec.dtype in (torch.float32, torch.float64)
    if type(spec) is Unbounded and real:
        return ActionDistribution(key, spec, spec.shape[0], ["loc", "scale"], IndependentNormal)
    if type(spec) is Bounded and real:
        if (spec.low.isfinite() & spec.high.isfinite()).all():
            return ActionDistribution(key, spec, spec.shape[0], ["loc", "scale"], TanhNormal)
        raise SpecError(
            f"{recipe} trains actions that are bounded on both sides or not at all; {key_str(key)} of {env}"
            f" is in [{spec.low.tolist()}, {spec.high.tolist()}]: set bounds with --transform"
            f" 'clip:{{in_keys_inv: [{yaml_key(key)}], low: LOW, high: HIGH}}'"
        )
    raise SpecError(
        f"{recipe} trains one choice (Categorical, OneHot), vectors of choices (MultiCategorical, Binary) and"
        f" vectors of float32 or float64 (Bounded, Unbounded); {key_str(key)} of {env} is {described(spec)}:"
        f" {_remedy(key, spec)}"
    )


def _remedy(key: NestedKey, spec: Any) -> str:
    """How to make an action trainable."""
    dims, keys = len(spec.shape), f"in_keys_inv: [{yaml_key(key)}]"
    if not spec.dtype.is_floating_point:
        return "convert it with a transform of your own (--transform module:Class)"
    if dims > 1:
        return f"make it a vector with --transform 'flatten-action:{{first_dim: -{dims}, last_dim: -1, {keys}}}'"
    if not dims:
        return f"make it a vector with --transform 'unsqueeze:{{dim: -1, {keys}}}'"
    return "make the environment with actions of float32"


def single_choice(env: Env, recipe: str) -> Any:
    """Spec of an action that is one choice of several: `Categorical` or `OneHot`.

    Raises:
        SpecError: If the action is of another kind, or not under ``action``.
    """
    key, spec = action_of(env)
    if not is_choice(spec) or key != ACTION:
        raise SpecError(
            f"{recipe} trains one choice (Categorical, OneHot) under {ACTION!r}; {key_str(key)} of"
            f" {type(env).__name__} is {described(spec)}: {_remedy_for_choice(key, spec)}"
        )
    return spec


def _remedy_for_choice(key: NestedKey, spec: Any) -> str:
    """How to train with another action."""
    floats = type(spec) in (Bounded, Unbounded) and spec.dtype in (torch.float32, torch.float64)
    remedies: list[str] = []
    if len(spec.shape) == 1 and (floats or type(spec) in (OneHot, MultiCategorical, Binary)):
        remedies.append("train it with ppo")
    if key == ACTION and floats and type(spec) is Bounded and spec.shape in (torch.Size(), torch.Size([1])):
        flat = f"--transform 'squeeze:{{dim: -1, in_keys_inv: [{ACTION}]}}' " if spec.shape else ""
        remedies.append(f"choose among five values with {flat}--transform 'action-discretizer:{{num_intervals: 5}}'")
    return ", or ".join(remedies) or "convert it with a transform of your own (--transform module:Class)"
