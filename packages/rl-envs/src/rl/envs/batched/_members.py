"""The functions that create the environments of a batch, and what these have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import constructor_setting
from rl.core.env_specs import describe_entry
from rl.core.errors import ArgumentError, ContractError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Bounded, Composite, TensorSpec, Unbounded
from rl.core.workers import write_leaves
from rl.envs.base._base import EnvBase
from rl.envs.base._specs import leaf_keys


class MembersBase(EnvBase):
    """Base of environments that consist of others, which have numbers."""

    _num_workers: int
    num_workers: int = constructor_setting("_num_workers")
    """Number of environments."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one that the environments inside have is set there, in each of them."""
        own = name.startswith("_") or "_rl" not in vars(self) or name in vars(self) or hasattr(type(self), name)
        if own or not self._set_inside(name, value):
            super().__setattr__(name, value)

    def _set_inside(self, name: str, value: Any) -> bool:  # noqa: ARG002  # for subclasses
        """Set an attribute of the environments, if these have it; return whether they do."""
        return False

    def _member_numbers(self) -> Iterable[int]:
        raise NotImplementedError

    def set_member_seed(self, number: int, seed: int, *, static_seed: bool = False) -> int:
        """Seed one environment; return the seed for the next one."""
        raise NotImplementedError

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        """Seed each environment with the seed that the one before it returned.

        Args:
            seed: Seed of the first environment.
            static_seed: Whether all of them have this one.

        Returns:
            A seed for the next environment.
        """
        for number in self._member_numbers():
            seed = self.set_member_seed(number, seed, static_seed=static_seed)
        return seed


def makers_of(
    num_workers: int,
    create_env_fn: Callable[..., Env] | Sequence[Callable[..., Env]],
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    owner: str,
) -> list[Callable[[], Env]]:
    """Return a function without arguments for each environment.

    Raises:
        ArgumentError: If the number of functions or of arguments is another.
    """
    if isinstance(create_env_fn, (EnvBase, Env)) and not isinstance(create_env_fn, type):
        raise ArgumentError(
            f"{owner} takes a function that creates an environment, got a {type(create_env_fn).__name__}: it is"
            f" called once for each worker, for example {owner}(2, lambda: GymEnv('CartPole-v1'))"
        )
    makers: list[Any] = [create_env_fn] * num_workers if callable(create_env_fn) else list(create_env_fn)
    if num_workers < 1 or len(makers) != num_workers:
        raise ArgumentError(f"{owner}: num_workers is {num_workers}, and there are {len(makers)} functions to call")
    if create_env_kwargs is None:
        return makers
    several = not isinstance(create_env_kwargs, Mapping)
    kwargs: list[Any] = list(create_env_kwargs) if several else [create_env_kwargs] * num_workers
    if len(kwargs) != num_workers:
        raise ArgumentError(f"{owner}: num_workers is {num_workers}, and create_env_kwargs has {len(kwargs)} entries")
    return [partial(make, **one) for make, one in zip(makers, kwargs, strict=True)]


def described(env: EnvBase) -> dict[str, Any]:
    """Batch size and specs of an environment, as `join_specs` reads them."""
    specs = {
        "observation": env.observation_spec_unbatched,
        "action": env.full_action_spec_unbatched,
        "reward": env.full_reward_spec_unbatched,
        "done": env.done_spec_unbatched,
        "state": env.state_spec_unbatched,
    }
    return {"batch_size": env.batch_size, "specs": specs}


def join_specs(first: Mapping[str, Any], other: Mapping[str, Any], number: int, owner: str) -> dict[str, Any]:
    """Return the batch size and specs of the environments before `number`, and of this one, as those of one batch.

    Where bounds of observations, rewards or states differ, those of the batch contain them all.

    Args:
        first: Batch size and specs of the environments before it.
        other: Batch size and specs of environment `number`.
        number: Index of the environment.
        owner: Name of the component in messages.

    Raises:
        SpecError: If batch sizes, keys, shapes, dtypes, kinds of specs, or bounds of actions differ.
    """
    if other["batch_size"] != first["batch_size"]:
        raise SpecError(
            f"{owner}: environment {number} has batch size {tuple(other['batch_size'])}, environment 0"
            f" {tuple(first['batch_size'])}"
        )
    specs: dict[str, Composite] = {}
    for role, expected in first["specs"].items():
        got = other["specs"][role]
        specs[role] = expected if got == expected else _join(expected, got, role, number, owner)
    return {**first, "specs": specs}


def _join(expected: Composite, got: Composite, role: str, number: int, owner: str) -> Composite:
    joined, lines = expected.clone(), []
    for key in sorted({*expected.keys(include_nested=True), *got.keys(include_nested=True)}, key=str):
        one, two = expected.get(key, None), got.get(key, None)
        if one == two or (isinstance(one, Composite) and isinstance(two, Composite) and one.shape == two.shape):
            continue
        union = None if role == "action" else _union(one, two)
        if union is not None:
            joined[key] = union
            continue
        texts = [_text(spec) for spec in (one, two)]
        if texts[0] == texts[1]:
            texts = [repr(spec) for spec in (one, two)]
        lines.append(f"  {key_str(key)}: environment 0 has {texts[0]}, environment {number} has {texts[1]}")
    if lines:
        raise SpecError(f"{owner}: the {role} specs of environments 0 and {number} differ:\n" + "\n".join(lines))
    return joined


def _union(one: Any, two: Any) -> TensorSpec | None:
    """Return the smallest spec of which both are part, if they differ in their bounds only."""
    kinds = {type(one), type(two)}
    if not kinds <= {Bounded, Unbounded} or (one.shape, one.dtype, one.device) != (two.shape, two.dtype, two.device):
        return None
    if Unbounded in kinds:
        return one if type(one) is Unbounded else two
    low, high = torch.minimum(one.low, two.low), torch.maximum(one.high, two.high)
    return Bounded(low, high, one.shape, one.device, one.dtype)


def _text(spec: TensorSpec | None) -> str:
    if isinstance(spec, Composite):
        return f"a Composite {list(spec.shape)}"
    return "nothing" if spec is None else describe_entry(spec)


def check_same_keys(
    first: Iterable[NestedKey], other: Iterable[NestedKey], number: int, method: str, owner: str
) -> None:
    """Raise unless environment `number` wrote the keys that another one wrote.

    Raises:
        ContractError: naming the keys that only one of them wrote.
    """
    wanted, found = set(first), set(other)
    if wanted != found:
        lacking, more = (sorted(map(key_str, keys)) for keys in (wanted - found, found - wanted))
        said = [
            *(["lacks " + ", ".join(lacking)] if lacking else []),
            *(["also has " + ", ".join(more)] if more else []),
        ]
        raise ContractError(
            f"{owner}: what the {method} of environment {number} wrote {' and '.join(said)}, compared with the"
            f" environments before it. Let every {method} write the same entries"
        )


class EnvView(MembersBase):
    """Some environments of a batched one, whose resets and steps leave the others as they are.

    Args:
        parent: A `SerialEnv` or `ParallelEnv`, which must stay open; closing the view does not close it.
        index: An integer, which leaves out the dimension, or a slice or list of integers.

    Example:
        >>> from rl.envs import PendulumEnv, SerialEnv
        >>> SerialEnv(3, PendulumEnv)[1:].rollout(4).batch_size
        torch.Size([2, 4])
    """

    def __init__(self, parent: Any, index: Any) -> None:
        chosen = torch.arange(parent.batch_size[0])[index]
        if chosen.ndim > 1 or not chosen.numel():
            raise ArgumentError(
                f"{type(parent).__name__}[{index}] has no environment; there are {parent.batch_size[0]}"
            )
        super().__init__(batch_size=(*chosen.shape, *parent.batch_size[1:]), device=parent.device)
        self._parent, self._index = parent, chosen.tolist() if chosen.ndim else int(chosen)
        self.observation_spec = parent.observation_spec_unbatched
        self.action_spec = parent.full_action_spec_unbatched
        self.reward_spec = parent.full_reward_spec_unbatched
        self.done_spec = parent.done_spec_unbatched
        self.state_spec = parent.state_spec_unbatched
        self._rl.legal_actions = EnvView._legal_actions

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        root = self._parent.observation_spec.zero().update(self._parent.full_done_spec.zero())
        for key in {*self._parent.reset_keys, "_reset"}:
            done = unwrap((*as_tuple(key)[:-1], "done"))
            shape = self._parent.full_done_spec[done].shape if done in self.done_keys else (*self._parent.batch_size, 1)
            mask = torch.zeros(shape, dtype=torch.bool, device=self.device)
            given = None if tensordict is None else tensordict.get(key, None)
            mask[self._index] = True if given is None else given
            root.set(key, mask)
        fresh = self._parent.reset(root)
        return self._rows(fresh)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        blank = self._parent.observation_spec.zero().update(self._parent.full_done_spec.zero())
        blank.update(self._parent.full_action_spec.zero()).update(self._parent.full_state_spec.zero())
        entries = {key: blank.get(key) for key in leaf_keys(blank)}
        chosen = {key: leaf[self._index] for key, leaf in entries.items()}
        write_leaves(chosen, tensordict, "EnvView.step")
        for key, leaf in entries.items():
            given = tensordict.get(key, None)
            if given is not None:
                leaf[:] = given[0] if isinstance(self._index, list) else given  # others need an action too
        if self._rl.masked:  # a legal one
            blank.update(self._parent.full_action_spec.project(blank.select(*self.action_keys)))
        for key in entries:
            given = tensordict.get(key, None)
            if given is not None:
                blank.get(key)[self._index] = given
        held = torch.zeros((*self._parent.batch_size, 1), dtype=torch.bool, device=self.device)
        mask = tensordict.get("_step", None)
        held[self._index] = True if mask is None else mask.reshape((*self.batch_size, 1))
        return self._rows(self._parent.step(blank.set("_step", held)).get("next"))

    def _legal_actions(self) -> dict[NestedKey, Tensor]:
        masks = {key: getattr(self._parent.full_action_spec[key], "mask", None) for key in self.action_keys}
        return {key: mask[self._index] for key, mask in masks.items() if mask is not None}

    def _rows(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rl.tensordict({key: tensordict.get(key)[self._index] for key in leaf_keys(tensordict)})

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self._parent._set_options(options)  # noqa: SLF001  # the documented hook of the class

    def _member_numbers(self) -> Iterable[int]:
        return self._index if isinstance(self._index, list) else [self._index]

    def set_member_seed(self, number: int, seed: int, *, static_seed: bool = False) -> int:
        """Seed one environment of the batch; return the seed for the next one."""
        return self._parent.set_member_seed(number, seed, static_seed=static_seed)

    def __repr__(self) -> str:
        return f"EnvView({self._parent!r}, {self._index})"
