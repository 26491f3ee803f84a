"""Environments in JAX: states, exchange of tensors, and random choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, SpecError
from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from rl.envs._libraries import import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase, can_write_rows, write_rows
from rl.envs.base._specs import FLAGS, flag_spec

_SMALL = 1 << 16
"""Bytes up to which an array on the CPU is copied: that costs less than the exchange through DLPack."""


def to_jax(jax: Any, tensor: Tensor) -> Any:
    """Return an argument for a compiled function; large tensors share their memory through DLPack."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.nbytes <= _SMALL:
        return tensor.numpy()
    return jax.numpy.from_dlpack(tensor.contiguous())


def to_torch(array: Any) -> Tensor:
    """Return a result of a compiled function; large arrays share their memory through DLPack."""
    if array.nbytes <= _SMALL and array.device.platform == "cpu":
        return torch.from_numpy(np.array(array))
    return torch.from_dlpack(array)


class Joining:
    """Small results of a compiled function as one array for each dtype, which cross to torch in one piece.

    XLA runs a function with few results faster too. Flags are joined with the bytes; large results stay alone.

    Args:
        jax: The module.
        example: Shapes and dtypes of the results.
    """

    def __init__(self, jax: Any, example: Sequence[Any]) -> None:
        self._jax, self._count = jax, len(example)
        self._groups: dict[Any, list[tuple[int, int, int, tuple[int, ...], bool]]] = {}
        for index, leaf in enumerate(example):
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
            flag, size = dtype == np.bool_, int(np.prod(shape))
            alone = index if size * dtype.itemsize > _SMALL else None
            members = self._groups.setdefault((np.dtype(np.uint8) if flag else dtype, alone), [])
            start = members[-1][2] if members else 0
            members.append((index, start, start + size, shape, flag))

    def join(self, results: Sequence[Any]) -> list[Any]:
        """Return the arrays; part of the compiled function."""
        jnp = self._jax.numpy
        return [
            jnp.concatenate([results[index].reshape(-1).astype(dtype) for index, *_ in members])
            for (dtype, _), members in self._groups.items()
        ]

    def split(self, arrays: Sequence[Any]) -> list[Tensor]:
        """Return the results as tensors."""
        found: list[Any] = [None] * self._count
        for array, members in zip(arrays, self._groups.values(), strict=True):
            whole = to_torch(array)
            on_cpu = whole.device.type == "cpu"
            rows: Any = whole.numpy() if on_cpu else whole  # parts of an array are tensors on their own
            for index, start, stop, shape, flag in members:
                part = rows[start:stop].reshape(shape)
                if flag:
                    part = part.view(np.bool_ if on_cpu else torch.bool)
                found[index] = torch.from_numpy(part) if on_cpu else part
        return found


class Packing:
    """Joins the leaves of a PyTree into ``[floats]`` float32 and ``[bytes]`` uint8, and takes them apart again.

    Two arrays cross between JAX and torch at less cost than one for each leaf, and gradients pass through the floats.

    Args:
        example: A PyTree of arrays, or of their shapes and dtypes.
    """

    def __init__(self, example: Any) -> None:
        self._jax = jax = import_library("jax", needed_by="an environment on JAX", extra="brax")
        leaves, self._tree = jax.tree_util.tree_flatten(example)
        self._keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
        data = [
            jax.eval_shape(jax.random.key_data, leaf) if key else leaf
            for leaf, key in zip(leaves, self._keys, strict=True)
        ]
        self._forms = [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in data]
        self._floats = [dtype == np.float32 for _, dtype in self._forms]
        self.floats = sum(int(np.prod(shape)) for (shape, _), one in zip(self._forms, self._floats, strict=True) if one)
        self.bytes = sum(
            int(np.prod(shape)) * (1 if dtype == np.bool_ else dtype.itemsize)
            for (shape, dtype), one in zip(self._forms, self._floats, strict=True)
            if not one
        )

    def pack(self, tree: Any) -> tuple[Any, Any]:
        """Return floats and bytes of a PyTree."""
        jax, jnp = self._jax, self._jax.numpy
        floats, rest = [jnp.zeros(0, jnp.float32)], [jnp.zeros(0, jnp.uint8)]
        for leaf, key, one, (_, dtype) in zip(
            jax.tree_util.tree_leaves(tree), self._keys, self._floats, self._forms, strict=True
        ):
            array = jax.random.key_data(leaf) if key else jnp.asarray(leaf)
            if one:
                floats.append(array.reshape(-1))
            elif dtype == np.bool_:
                rest.append(array.reshape(-1).astype(jnp.uint8))
            else:
                rest.append(jax.lax.bitcast_convert_type(array.astype(dtype), jnp.uint8).reshape(-1))
        return jnp.concatenate(floats), jnp.concatenate(rest)

    def unpack(self, floats: Any, rest: Any) -> Any:
        """Return the PyTree of floats and bytes."""
        jax = self._jax
        leaves: list[Any] = []
        at = {True: 0, False: 0}
        for key, one, (shape, dtype) in zip(self._keys, self._floats, self._forms, strict=True):
            count = int(np.prod(shape))
            size = count if one or dtype == np.bool_ else count * dtype.itemsize
            part = (floats if one else rest)[at[one] : at[one] + size]
            at[one] += size
            if one:
                array = part.reshape(shape)
            elif dtype == np.bool_:
                array = part.reshape(shape).astype(bool)
            elif dtype.itemsize == 1:
                array = jax.lax.bitcast_convert_type(part, dtype).reshape(shape)
            else:
                array = jax.lax.bitcast_convert_type(part.reshape(count, dtype.itemsize), dtype).reshape(shape)
            leaves.append(jax.random.wrap_key_data(array) if key else array)
        return jax.tree_util.tree_unflatten(self._tree, leaves)


FLOATS, BYTES = ("state", "floats"), ("state", "bytes")


@dataclass(frozen=True)
class Action:
    """The action of a simulator.

    Args:
        spec: Spec of one element.
        decode: Function from a tensor ``[n, *shape]`` to the tensor that the simulator takes.
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
        batch_size: Number of copies in each batch dimension.
        device: Device of JAX, or None.
        max_episode_steps: Steps after which an episode is truncated; None for no limit but the simulator's.
        requires_grad: Whether gradients pass through a step, from the outcome to the action and the state.
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
        self._block: list[Tensor] = []
        """State and observations of new episodes of all elements, computed from `_key`; empty before the first one."""
        self._used = 0
        """Episodes of the block that have begun."""

    _extra: str = "brax"
    _pullback: Any = None

    def _set_up(self, reset: Callable[..., Any], step: Callable[..., Any], action: Action) -> None:
        """Create reset and step of flat states of the two functions."""
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
        self._entries: list[Any] = [FLOATS, BYTES, *self._names]

        def begin_flat(key: Any) -> tuple[Any, ...]:
            carried, seen = begin(key)
            return (*packing.pack(carried), jax.tree_util.tree_leaves(seen))

        def step_flat(floats: Any, rest: Any, act: Any) -> tuple[Any, ...]:
            carried, seen, reward, terminated, truncated = advance(packing.unpack(floats, rest), act)
            reward = jnp.asarray(reward, jnp.float32)
            reward = reward.reshape(reward.shape or (1,))
            return (*packing.pack(carried), jax.tree_util.tree_leaves(seen), reward, terminated[None], truncated[None])

        self._one_step = step_flat
        self._compile(begin_flat, step_flat)

    def _compile(self, begin_flat: Callable[..., Any], step_flat: Callable[..., Any]) -> None:
        """Batch and compile functions of flat states, join their results, and write the specs."""
        jax, count = self._jax, self.batch_size.numel()

        def begin_all(keys: Any) -> list[Any]:
            floats, rest, seen = jax.vmap(begin_flat)(keys)
            return [floats, rest, *seen]

        def outcome(*given: Any) -> list[Any]:
            floats, rest, seen, reward, terminated, truncated = jax.vmap(step_flat)(*given)
            return [floats, rest, *seen, reward, terminated, truncated, terminated | truncated]

        def begin_joined(key: Any) -> tuple[Any, list[Any]]:
            later, now = jax.random.split(key)
            return later, self._beginning.join(begin_all(jax.random.split(now, count)))

        self._begin = jax.jit(begin_joined)
        self._advance = jax.jit(jax.vmap(step_flat))
        self._advance_joined = jax.jit(lambda *given: self._outcome.join(outcome(*given)))
        fresh = jax.eval_shape(begin_all, jax.random.split(self._key, count))
        self._beginning = Joining(jax, fresh)
        given = self._action.decode(self._action.spec.zero().expand(count, *self._action.spec.shape))
        act = jax.ShapeDtypeStruct(tuple(given.shape), np.asarray(given).dtype)
        results = jax.eval_shape(outcome, *fresh[:2], act)
        self._outcome = Joining(jax, results)
        self._write_specs(results)

    def _write_specs(self, results: Sequence[Any]) -> None:
        """Write the specs; `results` are shapes and dtypes ``[n, ...]`` of what a step writes."""
        _, _, *seen, reward, _, _, _ = results
        entries = Composite({})
        for name, leaf in zip(self._names, seen, strict=True):
            shape, dtype = leaf.shape[1:], torch.from_numpy(np.empty(0, leaf.dtype)).dtype
            entries[name] = flag_spec(torch.Size(shape), None) if dtype is torch.bool else Unbounded(shape, dtype=dtype)
        taken = {"action", "reward", "next", "state", *FLAGS} & {str(name) for name in self._names}
        if taken:
            raise SpecError(f"{type(self).__name__}: the simulator has an observation {taken.pop()!r}, a reserved name")
        self.observation_spec = entries
        floats_spec, bytes_spec = Unbounded(self._packing.floats), Unbounded(self._packing.bytes, dtype=torch.uint8)
        self.state_spec = Composite(state=Composite(floats=floats_spec, bytes=bytes_spec, shape=()))
        self.action_spec = self._action.spec
        self.reward_spec = Unbounded(reward.shape[1:])
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in FLAGS})

    # ---- stepping

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        count = self.batch_size.numel()
        chosen = torch.arange(count) if mask is None else mask.flatten().nonzero().flatten()
        rows = self._fresh(len(chosen))
        if mask is not None:
            whole = [part.new_zeros((count, *part.shape[1:])) for part in rows]
            for part, fresh in zip(whole, rows, strict=True):
                part[chosen] = fresh
            rows = whole
        over = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
        return {**self._leaves(self._entries, rows), **{name: over.clone() for name in FLAGS}}

    def _fresh(self, count: int) -> list[Tensor]:
        """State and observations ``[count, ...]`` of new episodes; `count` is at most the number of elements.

        They are computed in blocks for all elements: each reset takes the next ones of the block.
        """
        if not self._block:
            self._compute_block()
        if self._used + count > self.batch_size.numel():
            self._key, self._used = self._next_key, 0
            self._compute_block()
        start, self._used = self._used, self._used + count
        return [part[start : self._used] for part in self._block]

    def _compute_block(self) -> None:
        self._next_key, joined = self._begin(self._key)
        self._block = self._beginning.split(joined)

    def _reset_rows(self, current: Leaves, mask: Tensor) -> Leaves | None:
        if not can_write_rows(current, self._entries):
            return None
        chosen = np.flatnonzero(mask.numpy())
        fresh = [rows.numpy() for rows in self._fresh(len(chosen))]
        return write_rows(current, mask, chosen, dict(zip(self._entries, fresh, strict=True)))

    def _step_leaves(self, root: Leaves) -> Leaves:
        count = self.batch_size.numel()
        floats, rest = root[FLOATS].reshape(count, -1), root[BYTES].reshape(count, -1)
        action = self._action.decode(root["action"].reshape(count, *self._action.spec.shape))
        names = [*self._entries, "reward", "terminated", "truncated", "done"]
        if self._grad and torch.is_grad_enabled():
            floats, reward, *more = _Differentiable.apply(self, floats, rest, action)
            *seen, rest, terminated, truncated = more
            return self._leaves(names, [floats, rest, *seen, reward, terminated, truncated, terminated | truncated])
        joined = self._advance_joined(*(to_jax(self._jax, one) for one in (floats, rest, action)))
        return self._leaves(names, self._outcome.split(joined))

    def _leaves(self, names: Sequence[Any], rows: Sequence[Tensor]) -> Leaves:
        """Tensors ``[n, ...]`` by name, in the shape of the batch."""
        if len(self.batch_size) == 1:
            return dict(zip(names, rows, strict=True))
        pairs = zip(names, rows, strict=True)
        return {name: row.reshape((*self.batch_size, *row.shape[1:])) for name, row in pairs}

    # ---- control

    def unpacked_state(self, root: Any) -> Any:
        """Return the state of the simulator in the root of a TensorDict, as arrays of JAX ``[n, ...]``."""
        count = self.batch_size.numel()
        floats, rest = (to_jax(self._jax, root[key].reshape(count, -1)) for key in (FLOATS, BYTES))
        return self._jax.vmap(self._packing.unpack)(floats, rest)[2]

    def _set_seed(self, seed: int) -> None:
        self._key = self._jax.random.key(as_integer(seed, f"{type(self).__name__}.set_seed", "seed", 0))
        self._block, self._used = [], 0

    def state_dict(self) -> dict[str, Any]:
        """Return the key of the block of new episodes and how many have begun; the other state is in the data."""
        key = np.array(self._jax.random.key_data(self._key)).astype(np.int64)
        return {"restorable": True, "key": torch.from_numpy(key), "used": self._used}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`."""
        key = state["key"].cpu().numpy().astype(np.uint32)
        self._key = self._jax.random.wrap_key_data(self._jax.numpy.asarray(key))
        self._block, self._used = [], state.get("used", 0)  # absent in states of earlier versions
        return True

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: JAX has compiled it."""
        return EnvBase.compile(self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: send a function that creates it")


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
    """Return the vector-Jacobian product of the floating-point outcomes of a step."""

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
    """Return the batch of the arguments `batch_size` and `num_envs`.

    Raises:
        ArgumentError: If both are given.
    """
    if num_envs is None:
        return batch_size or ()
    if batch_size:
        raise ArgumentError("pass batch_size or num_envs, not both")
    return (num_envs,)


def choice(count: int, *, categorical: bool) -> Action:
    """One of `count` numbers."""
    if categorical:
        return Action(Categorical(count), _int32)
    return Action(OneHot(count, dtype=torch.int64), lambda tensor: _int32(tensor.argmax(-1)))


def choices(counts: Sequence[int], *, categorical: bool) -> Action:
    """One of some numbers each."""
    if categorical:
        return Action(MultiCategorical(torch.tensor(counts)), _int32)

    def decode(tensor: Tensor) -> Tensor:
        return torch.stack([_int32(part.argmax(-1)) for part in tensor.split(list(counts), dim=-1)], -1)

    return Action(MultiOneHot(list(counts), dtype=torch.int64), decode)


def interval(low: Tensor, high: Tensor) -> Action:
    """Numbers between bounds, float32."""
    return Action(Bounded(low, high, shape=low.shape, dtype=torch.float32))


def _int32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int32)
