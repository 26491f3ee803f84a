"""`SerialEnv`: several environments in this process, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, CheckpointError, SpecError
from rl.core.interfaces import Env, LeafEnv, Leaves
from rl.core.keys import NestedKey
from rl.envs import transforms as _transforms
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._checks import check_entries
from rl.envs.base._leaf import LeafCalls, LeafEnvBase, LeafForm, as_env, reset_where
from rl.envs.base._rules import partial_root, start_at
from rl.envs.base._specs import leaf_keys
from rl.envs.batched._members import (
    MembersBase,
    check_same_keys,
    common_device,
    described,
    join_specs,
    legal_masks,
    makers_of,
    view_of,
)


@foreign_arguments()
class SerialEnv(MembersBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Several environments in this process, stepped one after the other.

    Its batch is ``[num_workers, *B]``, where ``[*B]`` is that of each environment. Where bounds of observations,
    rewards or states differ, those of the batch contain them all. It has a leaf form if all of them have one; a class
    that can step several of its kind at once (`GymWrapper`) does so there.

    If keys, shapes, dtypes or action specs differ, all data are lazy stacks of one TensorDict for each environment, the
    specs are stacks (`rl.core.specs.Stacked`), and keys are those that all have. An entry that differs is read from one
    environment's part: ``td[0]["observation"]``. `TransformedEnv` and collectors need entries that can be stacked.

    An attribute that this class does not have is read from every environment: ``env.name`` is a list, and
    ``env.method(...)`` calls the method of each and returns a list. ``env[2:]`` is a view of some environments.

    Args:
        num_workers: Number of environments.
        create_env_fn: Function that builds one environment, called `num_workers` times; or a list of such functions. An
            environment is an `EnvBase`, or anything of the `rl.core.interfaces.Env` protocol (see `as_env`).

    Raises:
        ArgumentError: If the number of functions is another, or an environment lacks members of the protocol.
        SpecError: If the batch sizes of two environments differ.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> env = SerialEnv(2, PendulumEnv)
        >>> env.rollout(3).batch_size
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Callable[..., Env] | Sequence[Callable[..., Env]],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        makers = makers_of(num_workers, create_env_fn, create_env_kwargs, "SerialEnv")
        made: list[Any] = [make() for make in makers]
        for number, env in enumerate(made):
            if any(env is other for other in made[:number]):
                raise ArgumentError(
                    f"SerialEnv: environment {number} is one of those before it; create a new one each time"
                )
        self._num_workers = num_workers
        self.envs: list[EnvBase] = [as_env(env) for env in made]
        first = self.envs[0]
        found = [described(env) for env in self.envs]
        joined, differ = join_specs(found, range(num_workers), "SerialEnv")
        device = common_device(found, "SerialEnv") if differ else first.device
        super().__init__(batch_size=(num_workers, *first.batch_size), device=device)
        if differ:
            self._rl.stack_members(self.envs, differ)
            return
        specs = joined["specs"]
        self.observation_spec, self.action_spec = specs["observation"], specs["action"]
        self.reward_spec, self.done_spec, self.state_spec = specs["reward"], specs["done"], specs["state"]
        self._rl.legal_actions = SerialEnv._legal_actions

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        if tensordict is None:
            return self._stack_rows([env.reset() for env in self.envs], torch.stack, "reset")
        rows: list[Any] = []
        for env, masks in zip(self.envs, tensordict.unbind(0), strict=True):
            rows.append(env.reset(partial_root(env, masks)) if bool(masks.get("_reset").any()) else None)
        return self._stack_rows(rows, torch.stack, "reset")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows: list[Any] = []
        for env, root in zip(self.envs, tensordict.exclude("next").unbind(0), strict=True):
            held = root.get("_step", None)
            rows.append(None if held is not None and not bool(held.any()) else env.step(root).get("next"))
        return self._stack_rows(rows, torch.stack) if any(row is not None for row in rows) else _blank_step(self)

    def _run_members(
        self,
        method: str,
        parts: Mapping[int, Any],
        *,
        set_state: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> dict[int, TensorDictBase]:
        if method == "step":
            return {number: self.envs[number].step(part).get("next") for number, part in parts.items()}
        envs = self.envs
        return {n: envs[n].reset(part, set_state=set_state, options=options) for n, part in parts.items()}

    def _member_masks(self, number: int) -> dict[NestedKey, Tensor]:
        return legal_masks(self.envs[number])

    def lowered(self) -> LeafEnv | None:
        if self._rl.members:
            return None
        first = self.envs[0]
        if isinstance(first, LeafEnvBase) and all(type(env) is type(first) for env in self.envs):
            alike: Any = self.envs
            together = type(first)._step_together(alike)  # noqa: SLF001  # the documented hook of the class
            if together is not None:
                return LeafForm(self, together)
        leaves = [env.lowered() for env in self.envs]
        steps = [leaf.step_leaves for leaf in leaves if leaf is not None]
        if len(steps) < len(leaves):
            return None
        restarts = [reset_where(env, leaf) for env, leaf in zip(self.envs, leaves, strict=True) if leaf is not None]

        def reset(mask: Tensor | None) -> Leaves:
            if mask is None:
                return self._stack_rows([restart(None) for restart in restarts], _stack, "reset")
            rows = [restart(one) if bool(one.any()) else None for restart, one in zip(restarts, mask, strict=True)]
            written = any(row is not None for row in rows)
            return self._stack_rows(rows, _stack, "reset") if written else _leaves(_blank(self))

        def step(root: Leaves) -> Leaves:
            columns = {key: value.unbind(0) for key, value in root.items()}
            held = columns.get("_step")
            rows: list[Any] = [
                None
                if held is not None and not bool(held[index].any())
                else step({key: column[index] for key, column in columns.items()})
                for index, step in enumerate(steps)
            ]
            return (
                self._stack_rows(rows, _stack) if any(row is not None for row in rows) else _leaves(_blank_step(self))
            )

        return LeafForm(self, LeafCalls(reset, step))

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows: list[Any] = []
        for env, start in zip(self.envs, tensordict.unbind(0), strict=True):
            masked = start.get("_reset", None) is not None
            rows.append(None if masked and not bool(start.get("_reset").any()) else start_at(env, start))
        return self._stack_rows(rows, torch.stack, "reset")

    def _legal_actions(self) -> dict[NestedKey, Tensor]:
        found: dict[NestedKey, Tensor] = {}
        for key in self.action_keys:
            masks = [getattr(env.full_action_spec[key], "mask", None) for env in self.envs]
            known = next((mask for mask in masks if mask is not None), None)
            if known is not None:
                found[key] = torch.stack([torch.ones_like(known) if mask is None else mask for mask in masks])
        return found

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        if not isinstance(target, torch.dtype):
            for env in self.envs:
                env.to(target)
        return super().to(target)

    def compile(self, **kwargs: Any) -> SerialEnv:
        for env in self.envs:
            env.compile(**kwargs)
        return self

    def eager(self) -> SerialEnv:
        for env in self.envs:
            env.eager()
        return self

    def _stack_rows(self, rows: list[Any], stack: Callable[[list[Any]], Any], method: str = "step") -> Any:
        filled = _filled(rows)
        try:
            return stack(filled)
        except Exception:  # what follows says more if an entry of one environment is the cause
            for number, (env, row) in enumerate(zip(self.envs, rows, strict=True)):
                specs = [
                    env.observation_spec,
                    env.full_done_spec,
                    *([env.full_reward_spec] if method == "step" else []),
                ]
                owner = f"{env._rl.owner}._{method} (environment {number})"  # noqa: SLF001  # its name in messages
                if row is not None:
                    check_entries(row, specs, owner=owner, allowed=leaf_keys(row))
            for number, row in enumerate(filled):
                check_same_keys(leaf_keys(filled[0]), leaf_keys(row), number, method, "SerialEnv")
            raise

    def _member_numbers(self) -> Iterable[int]:
        return range(len(self.envs))

    def set_member_seed(self, number: int, seed: int, *, static_seed: bool = False) -> int:
        """Seed one environment; return the seed for the next one."""
        more = {"static_seed": True} if static_seed else {}  # an override may not have it
        return self.envs[number].set_seed(seed, **more)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the environments."""
        states = [env.state_dict() for env in self.envs]
        return {"restorable": all(state.get("restorable", False) for state in states), "envs": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Raises:
            CheckpointError: If the number of environments differs.
        """
        states = state.get("envs", [])
        if len(states) != len(self.envs):
            raise CheckpointError(f"SerialEnv has {len(self.envs)} environments, the state has {len(states)}")
        exact = [env.load_state_dict(part) for env, part in zip(self.envs, states, strict=True)]
        return all(exact)

    def render(self) -> Any:
        """Render the first environment."""
        first: Any = self.envs[0]
        return first.render()

    def __getitem__(self, index: Any) -> EnvBase:
        """Return a view of some environments."""
        return view_of(self, index)

    def __len__(self) -> int:
        return len(self.envs)

    def _set_inside(self, name: str, value: Any) -> bool:
        inside = all(hasattr(env, name) for env in self.envs)
        for env in self.envs if inside else ():
            setattr(env, name, value)
        return inside

    def __getattr__(self, name: str) -> Any:
        envs = [] if name.startswith("_") else vars(self).get("envs", [])
        try:
            found = [getattr(env, name) for env in envs]
        except AttributeError:
            found = []
        if not found:
            inner = f" nor {next(env for env in envs if not hasattr(env, name))!r}" if envs else ""
            raise AttributeError(
                f"{'neither ' if envs else ''}{type(self).__name__}{inner} has an attribute {name!r}",
                name=name,
                obj=self,
            )
        if callable(found[0]):
            return lambda *args, **kwargs: [method(*args, **kwargs) for method in found]
        return found

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        for env in self.envs:
            env._set_options(options)  # noqa: SLF001  # the documented hook of the class

    def _close(self) -> None:
        for env in self.envs:
            env.close()

    def __repr__(self) -> str:
        shown = self.envs if self._rl.members else self.envs[:1]
        return f"SerialEnv(num_workers={len(self.envs)}, env={', '.join(dict.fromkeys(map(repr, shown)))})"


def _blank(env: EnvBase) -> TensorDict:
    """Zeros in the layout of a reset, where no environment is reset or stepped."""
    return env.observation_spec.zero().update(env.full_done_spec.zero())


def _blank_step(env: EnvBase) -> TensorDict:
    return _blank(env).update(env.full_reward_spec.zero())


def _leaves(td: Any) -> Leaves:
    return {key: td.get(key) for key in leaf_keys(td)}


def _filled(rows: list[Any]) -> list[Any]:
    """Return the rows, with a written one in place of each missing one: the caller puts the current entries back."""
    filler = next(row for row in rows if row is not None)
    return [filler if row is None else row for row in rows]


def _stack(rows: Sequence[Leaves]) -> Leaves:
    first = rows[0]
    if any(len(row) != len(first) for row in rows):  # an entry that the first row lacks would be lost
        raise KeyError
    return {key: torch.stack([row[key] for row in rows]) for key in first}


class EnvCreator:
    """Function that creates environments, with its arguments; those that it creates share their running statistics.

    The statistics of `VecNorm` and `RewardNorm` are in shared memory: environments in this process and in others, to
    which the creator is sent, update the same ones.

    Args:
        create_env_fn: Function that creates an environment.
        create_env_kwargs: Arguments of the function.
        share_memory: Whether to share the statistics; one environment is created for that at construction, and closed.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv, VecNorm
        >>> def make(name):
        ...     return TransformedEnv(GymEnv(name), VecNorm(["observation"]))
        >>> create = EnvCreator(make, {"name": "CartPole-v1"})
        >>> train, other = create(), create()
        >>> _ = train.rollout(5)
        >>> bool((train.transform.loc["observation"] == other.transform.loc["observation"]).all())
        True
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Env],
        create_env_kwargs: Mapping[str, Any] | None = None,
        *,
        share_memory: bool = True,
    ) -> None:
        if not callable(create_env_fn):
            raise ArgumentError(
                f"EnvCreator takes a function that creates an environment, got a {type(create_env_fn).__name__}: write"
                " EnvCreator(lambda: env_class(...))"
            )
        self.create_env_fn, self.create_env_kwargs = create_env_fn, dict(create_env_kwargs or {})
        self._shared: list[Any] = []
        if share_memory:
            first = create_env_fn(**self.create_env_kwargs)
            self._shared = [one.clone() for one in _statistics(first)]
            for one in self._shared:
                one.share_memory()
            first.close()

    def __call__(self, **kwargs: Any) -> Env:
        """Create an environment.

        Args:
            kwargs: Further arguments.
        """
        env = self.create_env_fn(**{**self.create_env_kwargs, **kwargs})
        if self._shared:
            found = list(_statistics(env))
            if len(found) != len(self._shared):
                raise SpecError(
                    f"EnvCreator: this environment has {len(found)} transforms with running statistics, the first one"
                    f" had {len(self._shared)}: let the function always append the same, or pass share_memory=False"
                )
            for one, source in zip(found, self._shared, strict=True):
                one.share_statistics(source)
        return env

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """Return a creator with other arguments that shares the same statistics."""
        other = EnvCreator(self.create_env_fn, {**self.create_env_kwargs, **kwargs}, share_memory=False)
        other._shared = self._shared  # another of its kind
        return other

    def __repr__(self) -> str:
        name = getattr(self.create_env_fn, "__name__", type(self.create_env_fn).__name__)
        return f"EnvCreator({name}, {self.create_env_kwargs})"


def _statistics(env: Any) -> Iterator[Any]:
    """Return the transforms of an environment that have running statistics."""
    while isinstance(env, EnvBase):
        transform = vars(env).get("transform")
        for one in [] if transform is None else getattr(transform, "transforms", [transform]):
            if isinstance(one, (_transforms.VecNorm, _transforms.RewardNorm)):
                yield one
        env = vars(env).get("base_env")
