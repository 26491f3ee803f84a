"""`JaxEnv`: base class of environments whose reset and step are pure functions of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import SpecError
from rl.core.interfaces import Leaves
from rl.core.specs import Composite, TensorSpec, Unbounded
from rl.envs._jax.exchange import to_jax, to_torch
from rl.envs._jax.state import Packing
from rl.envs._libraries import import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import FLAGS, flag_spec

__all__ = ["Action", "JaxEnv", "batch_of"]

FLOATS, BYTES = ("state", "floats"), ("state", "bytes")


@dataclass(frozen=True)
class Action:
    """The action of a simulator.

    Args:
        spec: of one element.
        decode: from a tensor ``[n, *shape]`` to the tensor that the simulator takes.
    """

    spec: TensorSpec
    decode: Callable[[Tensor], Tensor] = lambda tensor: tensor


class JaxEnv(LeafEnvBase):
    """Base class of environments in JAX: reset and step of one element, batched and compiled.

    The state of the simulator, with the random key of each element, is in the TensorDict: ``("state", "floats")`` and
    ``("state", "bytes")``. A step reads it, so that steps are pure: a step from an older root continues from there.
    Large tensors and arrays share memory (DLPack); small ones on the CPU are copied, which costs less.

    A subclass calls `_set_up` with two functions of one element:

    - ``reset(key) -> state, observation``;
    - ``step(key, state, action) -> state, observation, reward, terminated, truncated``.

    Args:
        batch_size: number of copies in each batch dimension.
        device: must be that of JAX, or None.
        max_episode_steps: steps after which an episode is truncated; None for no limit but the simulator's.
        requires_grad: whether gradients pass through a step, from the outcome to the action and the state.
    """

    def __init__(
        self,
        batch_size: Iterable[int],
        device: torch.device | str | int | None,
        max_episode_steps: int | None,
        *,
        requires_grad: bool = False,
    ) -> None:
        super().__init__(batch_size=batch_size, device=device)
        owner = type(self).__name__
        limit = None if max_episode_steps is None else as_integer(max_episode_steps, owner, "max_episode_steps", 1)
        self.max_episode_steps, self._grad = limit, requires_grad
        self._jax: Any = import_library("jax", needed_by=owner, extra=self._extra, at_least="0.6")
        self._key = self._jax.random.key(int(torch.randint(2**31, ())))

    _extra: str = "brax"
    _pullback: Any = None

    def _set_up(self, reset: Callable[..., Any], step: Callable[..., Any], action: Action) -> None:
        """Compile the functions, and write the specs."""
        jax, jnp = self._jax, self._jax.numpy
        self._action, limit = action, self.max_episode_steps

        def begin(key: Any) -> tuple[Any, Any]:
            mine, first = jax.random.split(key)
            state, seen = reset(first)
            return (mine, jnp.zeros((), jnp.int32), state), seen

        def advance(carried: Any, act: Any) -> tuple[Any, ...]:
            mine, count, state = carried
            mine, now = jax.random.split(mine)
            state, seen, reward, terminated, truncated = step(now, state, act)
            count = count + 1
            if limit is not None:
                truncated = truncated | (count >= limit)
            terminated = jnp.asarray(terminated, bool)
            return (mine, count, state), seen, reward, terminated, jnp.asarray(truncated, bool) & ~terminated

        example = jax.eval_shape(begin, self._key)
        self._packing = packing = Packing(example[0])
        self._names = _names(jax, example[1])

        def begin_flat(key: Any) -> tuple[Any, ...]:
            carried, seen = begin(key)
            return (*packing.pack(carried), jax.tree_util.tree_leaves(seen))

        def step_flat(floats: Any, rest: Any, act: Any) -> tuple[Any, ...]:
            carried, seen, reward, terminated, truncated = advance(packing.unpack(floats, rest), act)
            reward = jnp.asarray(reward, jnp.float32)
            reward = reward.reshape(reward.shape or (1,))
            return (*packing.pack(carried), jax.tree_util.tree_leaves(seen), reward, terminated[None], truncated[None])

        count = self.batch_size.numel()

        def begin_all(key: Any) -> tuple[Any, ...]:
            later, now = jax.random.split(key)
            return later, *jax.vmap(begin_flat)(jax.random.split(now, count))

        def begin_some(key: Any, mask: Any, *current: Any) -> tuple[Any, ...]:
            later, floats, rest, seen = begin_all(key)
            fresh = [floats, rest, *seen]
            pairs = zip(fresh, current, strict=True)
            chosen = [jnp.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old) for new, old in pairs]
            return later, *chosen

        self._begin, self._begin_some = jax.jit(begin_all), jax.jit(begin_some)
        self._advance = jax.jit(jax.vmap(step_flat))
        self._one_step = step_flat
        self._write_specs(step_flat, example[1])

    def _write_specs(self, step_flat: Callable[..., Any], seen: Any) -> None:
        jax, jnp = self._jax, self._jax.numpy
        floats = jax.ShapeDtypeStruct((self._packing.floats,), jnp.float32)
        rest = jax.ShapeDtypeStruct((self._packing.bytes,), jnp.uint8)
        given = self._action.decode(self._action.spec.zero().unsqueeze(0))[0]
        act = jax.ShapeDtypeStruct(tuple(given.shape), np.asarray(given).dtype)
        outcome = jax.eval_shape(step_flat, floats, rest, act)
        entries = Composite({})
        for name, leaf in zip(self._names, jax.tree_util.tree_leaves(seen), strict=True):
            dtype = torch.from_numpy(np.empty(0, leaf.dtype)).dtype
            flag = dtype is torch.bool
            entries[name] = flag_spec(torch.Size(leaf.shape), None) if flag else Unbounded(leaf.shape, dtype=dtype)
        taken = {"action", "reward", "next", "state", *FLAGS} & {str(name) for name in self._names}
        if taken:
            raise SpecError(f"{type(self).__name__}: the simulator has an observation {taken.pop()!r}, a reserved name")
        self.observation_spec = entries
        floats_spec, bytes_spec = Unbounded(self._packing.floats), Unbounded(self._packing.bytes, dtype=torch.uint8)
        self.state_spec = Composite(state=Composite(floats=floats_spec, bytes=bytes_spec, shape=()))
        self.action_spec = self._action.spec
        self.reward_spec = Unbounded(outcome[3].shape)
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in FLAGS})

    # ---- stepping

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        self._key, floats, rest, seen = self._begin(self._key)
        over = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
        return {**self._state(floats, rest), **self._seen(seen), **{name: over.clone() for name in FLAGS}}

    def _reset_rows(self, current: Leaves, mask: Tensor) -> Leaves | None:
        names = [FLOATS, BYTES, *self._names]
        if any(name not in current or current[name].requires_grad for name in names):
            return None  # the general path names what is missing, and keeps gradients
        count, jax = self.batch_size.numel(), self._jax
        given = [to_jax(jax, current[name].reshape(count, *self._inner(name))) for name in names]
        self._key, *rows = self._begin_some(self._key, to_jax(jax, mask.reshape(count)), *given)
        over = {name: current[name] & ~mask for name in FLAGS}
        return {**{name: self._rows(one) for name, one in zip(names, rows, strict=True)}, **over}

    def _inner(self, name: Any) -> tuple[int, ...]:
        """Shape of an entry of one element."""
        spec = self.state_spec[name] if name in (FLOATS, BYTES) else self.observation_spec[name]
        return tuple(spec.shape[len(self.batch_size) :])

    def _step_leaves(self, root: Leaves) -> Leaves:
        count = self.batch_size.numel()
        floats, rest = root[FLOATS].reshape(count, -1), root[BYTES].reshape(count, -1)
        action = self._action.decode(root["action"].reshape(count, *self._action.spec.shape))
        if self._grad and torch.is_grad_enabled():
            found = _Differentiable.apply(self, floats, rest, action)
            floats, reward, *seen = found[: 2 + len(self._names)]
            rest, terminated, truncated = found[-3:]
            leaves = {**self._state(floats, rest), **self._seen(seen)}
        else:
            given = [to_jax(self._jax, one) for one in (floats, rest, action)]
            floats, rest, seen, reward, terminated, truncated = self._advance(*given)
            leaves = {**self._state(floats, rest), **self._seen(seen)}
            reward, terminated, truncated = (to_torch(one) for one in (reward, terminated, truncated))
        flags = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        return {
            **leaves,
            "reward": reward.reshape(*self.batch_size, *reward.shape[1:]),
            **{name: flag.reshape(*self.batch_size, 1) for name, flag in flags.items()},
        }

    def _state(self, floats: Any, rest: Any) -> Leaves:
        return {FLOATS: self._rows(floats), BYTES: self._rows(rest)}

    def _seen(self, leaves: Any) -> Leaves:
        return {name: self._rows(leaf) for name, leaf in zip(self._names, leaves, strict=True)}

    def _rows(self, rows: Any) -> Tensor:
        tensor = rows if isinstance(rows, Tensor) else to_torch(rows)
        return tensor.reshape((*self.batch_size, *tensor.shape[1:]))

    # ---- control

    def unpacked_state(self, root: Any) -> Any:
        """The state of the simulator in the root of a TensorDict, as arrays of JAX ``[n, ...]``."""
        count = self.batch_size.numel()
        floats, rest = (to_jax(self._jax, root[key].reshape(count, -1)) for key in (FLOATS, BYTES))
        return self._jax.vmap(self._packing.unpack)(floats, rest)[2]

    def _set_seed(self, seed: int) -> None:
        self._key = self._jax.random.key(as_integer(seed, f"{type(self).__name__}.set_seed", "seed", 0))

    def state_dict(self) -> dict[str, Any]:
        """Return the random key of later resets; the rest of the state is in the data."""
        key = np.array(self._jax.random.key_data(self._key)).astype(np.int64)
        return {"restorable": True, "key": torch.from_numpy(key)}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`."""
        key = state["key"].numpy().astype(np.uint32)
        self._key = self._jax.random.wrap_key_data(self._jax.numpy.asarray(key))
        return True

    def compile(self, **kwargs: Any) -> Any:
        """Refuse: JAX has compiled it."""
        return EnvBase.compile(self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: send a function that makes it")


class _Differentiable(torch.autograd.Function):
    """A step whose gradient is that of JAX."""

    @staticmethod
    def forward(ctx: Any, env: JaxEnv, floats: Tensor, rest: Tensor, action: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.env = env
        ctx.save_for_backward(floats, rest, action)
        found = env._advance(*(to_jax(env._jax, one) for one in (floats, rest, action)))  # noqa: SLF001
        after, bytes_after, seen, reward, terminated, truncated = found
        outcome = [after, reward, *seen, bytes_after, terminated, truncated]
        out = tuple(to_torch(one) for one in outcome)
        ctx.mark_non_differentiable(*(one for one in out if not one.dtype.is_floating_point))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        env: JaxEnv = ctx.env
        jax = env._jax  # noqa: SLF001
        floats, rest, action = (to_jax(jax, one) for one in ctx.saved_tensors)
        count = len(env._names)  # noqa: SLF001
        given = [to_jax(jax, one) for one in grads[: 2 + count] if one.dtype.is_floating_point]
        if env._pullback is None:  # noqa: SLF001
            env._pullback = jax.jit(jax.vmap(_pullback(jax, env._one_step)))  # noqa: SLF001
        to_floats, to_action = env._pullback(floats, rest, action, given)  # noqa: SLF001
        return None, to_torch(to_floats), None, to_torch(to_action)


def _pullback(jax: Any, step_flat: Callable[..., Any]) -> Callable[..., Any]:
    """The vector-Jacobian product of the floating-point outcomes of a step."""

    def pull(floats: Any, rest: Any, action: Any, given: Any) -> Any:
        def outcome(floats: Any, action: Any) -> list[Any]:
            after, _, seen, reward, _, _ = step_flat(floats, rest, action)
            return [one for one in (after, reward, *seen) if jax.numpy.issubdtype(one.dtype, jax.numpy.floating)]

        _, back = jax.vjp(outcome, floats, action)
        return back(given)

    return pull


def _names(jax: Any, seen: Any) -> list[Any]:
    """Keys of the leaves of an observation: ``observation`` for an array, else the names of its fields."""
    found: list[Any] = []
    for path, _ in jax.tree_util.tree_flatten_with_path(seen)[0]:
        parts = tuple(str(getattr(one, "name", getattr(one, "key", getattr(one, "idx", one)))) for one in path)
        found.append("observation" if not parts else parts[0] if len(parts) == 1 else parts)
    return found


def batch_of(batch_size: Iterable[int] | None, num_envs: int | None) -> Iterable[int]:
    """The batch of the arguments `batch_size` and `num_envs`.

    Raises:
        SpecError: if both are given.
    """
    if num_envs is None:
        return batch_size or ()
    if batch_size:
        raise SpecError("give batch_size or num_envs, not both")
    return (num_envs,)
