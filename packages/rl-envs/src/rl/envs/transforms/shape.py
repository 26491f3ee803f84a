"""Transforms that join, split and reshape entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, ContractError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform, entry_keys
from rl.envs.transforms._maps import after_batch, from_the_end, mapped_spec
from rl.envs.transforms._specs import Specs

__all__ = [
    "BatchSizeTransform",
    "CatTensors",
    "ExpandAs",
    "FlattenObservation",
    "Joined",
    "PermuteTransform",
    "SqueezeTransform",
    "Stack",
    "UnsqueezeTransform",
]


@foreign_arguments()
class BatchSizeTransform(Transform):
    """Reshapes the batch of an environment.

    Args:
        batch_size: The new batch size, with as many elements as the environment's.
        reshape_fn: Function that, in place of `batch_size`, reshapes a TensorDict, for example ``lambda td:
            td.reshape(2, -1)``; the order of the elements must stay.

    Raises:
        ArgumentError: Unless exactly one is given.
        ShapeError: If the number or the order of the elements changes.

    Order: transforms before it have the environment's batch, those after it the new one.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv([6]), BatchSizeTransform([2, 3])).rollout(4).shape
        torch.Size([2, 3, 4])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        batch_size: Iterable[int] | None = None,
        reshape_fn: Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        super().__init__()
        if (batch_size is None) == (reshape_fn is None):
            raise ArgumentError("BatchSizeTransform needs either batch_size or reshape_fn")
        self.batch_size = None if batch_size is None else torch.Size(batch_size)
        self.reshape_fn = reshape_fn

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        old, new = self._old, self._new

        def restart(mask: Tensor | None) -> Any:
            given = None if mask is None else mask.reshape(*old, *mask.shape[len(new) :])
            return _reshaped(reset(given), old, new)

        def forward(root: Any) -> Any:
            return _reshaped(step(_reshaped(root, new, old)), old, new)

        return restart, forward

    def transform_specs(self, specs: Specs) -> None:
        """Set the batch size; the specs of an element stay."""
        self._old, self._new = specs.batch_size, self._arranged(specs.batch_size)
        specs.batch_size = self._new

    def _arranged(self, old: torch.Size) -> torch.Size:
        if self.batch_size is not None:
            if self.batch_size.numel() != old.numel():
                raise SpecError(
                    f"{self!r} cannot reshape a batch {tuple(old)} of {old.numel()} elements: it has another number"
                )
            return self.batch_size
        assert self.reshape_fn is not None
        numbers = torch.arange(old.numel()).reshape(old)
        out = self.reshape_fn(TensorDict({"number": numbers}, old))
        if not torch.equal(out["number"].flatten(), numbers.flatten()) or out["number"].shape != out.batch_size:
            raise SpecError(f"{self!r} changes the number or the order of the elements of a batch {tuple(old)}")
        return out.batch_size

    def __repr__(self) -> str:
        return f"BatchSizeTransform({'reshape_fn' if self.batch_size is None else tuple(self.batch_size)})"


def _reshaped(entries: Any, old: torch.Size, new: torch.Size) -> Any:
    if not isinstance(entries, dict):
        return entries.exclude("next").reshape(new) if old else _with_ones(entries, new)
    kept = len(old)
    return {key: entries[key].reshape(*new, *entries[key].shape[kept:]) for key in entry_keys(entries)}


def _with_ones(entries: TensorDictBase, new: torch.Size) -> TensorDictBase:
    """Return a single element with a batch of ones."""
    out = entries.exclude("next")
    for _ in new:
        out = out.unsqueeze(0)
    return out


class ExpandAs(Transform):
    """Expands an entry on the right to the shape of another one, for example a shared ``done`` to that of each agent.

    Args:
        in_key: The entry; its shape is the beginning of the other's, apart from trailing dimensions of size 1.
        ref_key: The entry with the shape.
        out_key: The result; `in_key` if None.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"flag": torch.ones(2, 1), "value": torch.zeros(2, 3, 1)}, [2])
        >>> ExpandAs("flag", "value")(batch)["flag"].shape
        torch.Size([2, 3, 1])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, in_key: NestedKey, ref_key: NestedKey, out_key: NestedKey | None = None) -> None:
        super().__init__([in_key], None if out_key is None else [out_key])
        self.ref_key = unwrap(ref_key)

    def _call(self, entries: Any) -> Any:
        value, like = entries.get(self.in_keys[0], None), entries.get(self.ref_key, None)
        if value is not None and like is not None:
            entries[self.out_keys[0]] = _expanded(value, like.shape)
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Give the result the shape of the other entry."""
        like: TensorSpec = specs.written(self.ref_key, self)[0][self.ref_key]
        for spec in specs.written(self.in_keys[0], self):
            old = spec[self.in_keys[0]]
            shape = old.shape[:-1] if len(old.shape) and old.shape[-1] == 1 else old.shape
            new = old.reshape(*shape, *[1] * (len(like.shape) - len(shape))).expand(*like.shape)
            name = as_tuple(self.out_keys[0])
            spec[unwrap(name)] = new


def _expanded(value: Tensor, shape: Any) -> Tensor:
    while value.ndim > 1 and value.shape[-1] == 1 and value.shape != shape[: value.ndim]:
        value = value.squeeze(-1)
    return value.reshape(*value.shape, *[1] * (len(shape) - value.ndim)).expand(shape).clone()


class Joined(Transform):
    """Joins observations into one entry.

    Args:
        in_keys: Entries, in this order; all of the observation, sorted, if None.
        out_key: The result.
        join: Function from the list of tensors and their number of batch dimensions to the result.
        del_keys: Whether to remove the entries that were joined.
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None,
        out_key: NestedKey,
        join: Callable[[list[Tensor], int], Tensor],
        *,
        del_keys: bool,
    ) -> None:
        super().__init__(() if in_keys is None else in_keys, [out_key])
        self.out_key, self.del_keys = unwrap(out_key), del_keys
        self._all, self._join, self._batch_dims = in_keys is None, join, 0

    def _call(self, entries: Any) -> Any:
        values = [entries.get(key, None) for key in self.in_keys]
        absent = [key_str(key) for key, value in zip(self.in_keys, values, strict=True) if value is None]
        if absent:
            raise ContractError(f"{self!r} joins {', '.join(absent)}, which is missing")
        dims = entries.batch_dims if isinstance(entries, TensorDictBase) else self._batch_dims
        joined = self._join(values, dims)
        if self.del_keys:
            for key in self.in_keys:
                if key != self.out_key:
                    del entries[key]
        entries[self.out_key] = joined
        return entries

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Join the entries of a batch at its root and under ``next``, or where alone they are complete.

        Raises:
            ContractError: If they are complete at neither.
        """
        outcome = None if self._names_next() else tensordict.get("next", None)
        whole = all(tensordict.get(key, None) is not None for key in self.in_keys)
        below = outcome is not None and all(outcome.get(key, None) is not None for key in self.in_keys)
        out = tensordict.copy()
        if whole or not below:
            out = self._call(out)  # names what is missing
        return out.set("next", self._call(outcome.copy())) if outcome is not None and below else out

    def transform_specs(self, specs: Specs) -> None:
        """Replace the specs of the entries by that of the result."""
        self._batch_dims = len(specs.batch_size)
        if self._all:
            self.in_keys = sorted(leaf_keys(specs.observation), key=str)
        parts: list[TensorSpec] = []
        for key in self.in_keys:
            if specs.observation.get(key, None) is None:
                specs.written(key, self)  # names the key if there is none
                raise SpecError(f"{self!r} joins observations; {key_str(key)} is none")
            parts.append(specs.observation[key])
        if len({part.dtype for part in parts}) > 1:
            dtypes = {key_str(key): str(part.dtype) for key, part in zip(self.in_keys, parts, strict=True)}
            raise SpecError(
                f"{self!r} joins entries of different dtypes: {dtypes}; convert them with DTypeCastTransform"
            )
        try:
            joined = self._joined_spec(parts, specs.device)
        except (RuntimeError, IndexError) as error:
            shapes = {key_str(key): tuple(part.shape) for key, part in zip(self.in_keys, parts, strict=True)}
            raise SpecError(
                f"{self!r} cannot join entries of the shapes {shapes}: {error}. Change them with UnsqueezeTransform or"
                " FlattenObservation first"
            ) from error
        removed = [key for key in self.in_keys if self.del_keys and key != self.out_key]
        needed = [key_str(key) for key in removed if specs.state.get(key, None) is not None]
        if needed:
            raise SpecError(
                f"{self!r} would remove {', '.join(needed)}, which the environment reads at the next step: pass"
                " del_keys=False"
            )
        if self.del_keys:
            for key in self.in_keys:
                del specs.observation[key]
        specs.add("observation", self.out_key, joined, self)

    def _joined_spec(self, parts: list[TensorSpec], device: torch.device | None) -> TensorSpec:
        bounded = [part for part in parts if isinstance(part, Bounded)]
        if len(bounded) < len(parts):
            example = self._join([part.zero() for part in parts], 0)
            return Unbounded(example.shape, dtype=example.dtype, device=device)
        low = self._join([part.space.low for part in bounded], 0)
        high = self._join([part.space.high for part in bounded], 0)
        return Bounded(low, high, dtype=parts[0].dtype, device=device)


class CatTensors(Joined):
    """Concatenates observations.

    Args:
        in_keys: Entries of one dtype; all of the observation if None.
        out_key: The result.
        dim: Dimension, negative.
        del_keys: Whether to remove the entries that were joined.
        unsqueeze_if_oor: Whether entries without that dimension get one, so that a scalar is one element.
        sort: Whether to concatenate in the order of the sorted keys, otherwise as given.

    Raises:
        ArgumentError: If `dim` is not negative.
        SpecError: If an entry is missing, or the dtypes differ.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> cat = CatTensors(["th", "thdot"], "state", unsqueeze_if_oor=True, del_keys=False)
        >>> TransformedEnv(PendulumEnv(), cat).reset()["state"].shape
        torch.Size([2])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        self.dim = from_the_end(dim, "CatTensors", "dim")
        self.unsqueeze_if_oor = unsqueeze_if_oor
        keys = None if in_keys is None else [in_keys] if isinstance(in_keys, str) else list(in_keys)
        if sort and keys is not None:
            keys.sort(key=str)
        super().__init__(keys, out_key, self._concatenate, del_keys=del_keys)

    def _concatenate(self, values: list[Tensor], batch_dims: int) -> Tensor:
        if self.unsqueeze_if_oor:
            values = [value.unsqueeze(-1) if value.ndim == batch_dims else value for value in values]
        return torch.cat(values, self.dim)


@foreign_arguments()
class UnsqueezeTransform(Transform):
    """Inserts a dimension of size 1.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front, unless
    `allow_positive_dim` is true.

    Args:
        dim: Position of the new dimension in the result.
        in_keys: Entries that it reads; ``observation`` if None and there are no inverse keys.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries of the environment's input that get the caller's with the inverse operation.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the entire tensor.

    Raises:
        ArgumentError: If a dimension is not negative and `allow_positive_dim` is false.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), UnsqueezeTransform(-2)).reset()["observation"].shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        dim: int,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        reads = list(in_keys_inv)
        default = [] if reads else ["observation"]
        super().__init__(default if in_keys is None else in_keys, out_keys, reads, out_keys_inv)
        self.dim = from_the_end(dim, "UnsqueezeTransform", "dim", allow_positive_dim=allow_positive_dim)

    def _apply(self, value: Tensor) -> Tensor:
        return value.unsqueeze(after_batch(self.dim, self.parent))

    def _inverse(self, value: Tensor) -> Tensor:
        return value.squeeze(after_batch(self.dim, self.parent))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, lambda value: value.unsqueeze(self.dim))


class SqueezeTransform(Transform):
    """Removes a dimension of size 1.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front, unless
    `allow_positive_dim` is true.

    Args:
        dim: Dimension that is removed.
        in_keys: Entries that it reads; ``observation`` if None and there are no inverse keys.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries of the environment's input that get the caller's with the inverse operation.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the entire tensor.

    Raises:
        ArgumentError: If a dimension is not negative and `allow_positive_dim` is false.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> from rl.envs.transforms import UnsqueezeTransform
        >>> env = TransformedEnv(PendulumEnv(), UnsqueezeTransform(-2)).append_transform(SqueezeTransform(-2))
        >>> env.reset()["observation"].shape
        torch.Size([3])
    """

    def __init__(
        self,
        dim: int,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        reads = list(in_keys_inv)
        default = [] if reads else ["observation"]
        super().__init__(default if in_keys is None else in_keys, out_keys, reads, out_keys_inv)
        self.dim = from_the_end(dim, "SqueezeTransform", "dim", allow_positive_dim=allow_positive_dim)

    def _apply(self, value: Tensor) -> Tensor:
        return value.squeeze(after_batch(self.dim, self.parent))

    def _inverse(self, value: Tensor) -> Tensor:
        return value.unsqueeze(after_batch(self.dim, self.parent))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, lambda value: value.squeeze(self.dim))


class PermuteTransform(Transform):
    """Permutes the last dimensions.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front.

    Args:
        dims: The last dimensions in their new order, for example ``[-1, -3, -2]`` for HWC to CHW.
        in_keys: Entries that it reads; ``observation`` if None and there are no inverse keys.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries of the environment's input that get the caller's with the inverse operation.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.

    Raises:
        ArgumentError: If a dimension is not negative.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> PermuteTransform([-1, -3, -2], in_keys=["pixels"])._transform_spec(Unbounded((84, 96, 3))).shape
        torch.Size([3, 84, 96])
    """

    def __init__(
        self,
        dims: Iterable[int],
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        reads = list(in_keys_inv)
        default = [] if reads else ["observation"]
        super().__init__(default if in_keys is None else in_keys, out_keys, reads, out_keys_inv)
        self.dims = [from_the_end(dim, "PermuteTransform", "dims") for dim in dims]
        if sorted(self.dims) != list(range(-len(self.dims), 0)):
            raise ArgumentError(f"PermuteTransform: dims must be the last dimensions in another order, got {self.dims}")
        self._back = [self.dims.index(dim) - len(self.dims) for dim in range(-len(self.dims), 0)]

    def _apply(self, value: Tensor) -> Tensor:
        return value.permute(*range(value.ndim - len(self.dims)), *self.dims)

    def _inverse(self, value: Tensor) -> Tensor:
        return value.permute(*range(value.ndim - len(self.dims)), *self._back)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, self._apply)


class Stack(Joined):
    """Stacks observations of one shape and dtype along a new dimension.

    Args:
        in_keys: Entries, in this order.
        out_key: The result.
        dim: The new dimension, negative.
        del_keys: Whether to remove the entries that were stacked.

    Raises:
        ArgumentError: If `dim` is not negative.
        SpecError: If an entry is missing, or the dtypes differ.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), Stack(["th", "thdot"], "both", del_keys=False))
        >>> env.reset()["both"].shape
        torch.Size([2])
    """

    def __init__(
        self, in_keys: Iterable[NestedKey], out_key: NestedKey, dim: int = -1, *, del_keys: bool = True
    ) -> None:
        self.dim = from_the_end(dim, "Stack", "dim")
        super().__init__(in_keys, out_key, self._stacked, del_keys=del_keys)

    def _stacked(self, values: list[Tensor], batch_dims: int) -> Tensor:
        del batch_dims
        return torch.stack(values, self.dim)


class FlattenObservation(Transform):
    """Flattens adjacent dimensions of an observation.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front, unless
    `allow_positive_dim` is true.

    Args:
        first_dim: The first one.
        last_dim: The last one.
        in_keys: Entries that it reads; ``observation`` if None.
        out_keys: Results; `in_keys` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the entire tensor.

    Raises:
        ArgumentError: If a dimension is not negative and `allow_positive_dim` is false.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> FlattenObservation(-3, -1)._transform_spec(Unbounded((2, 3, 4))).shape
        torch.Size([24])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys)
        self.first_dim = from_the_end(
            first_dim, "FlattenObservation", "first_dim", allow_positive_dim=allow_positive_dim
        )
        self.last_dim = from_the_end(last_dim, "FlattenObservation", "last_dim", allow_positive_dim=allow_positive_dim)

    def _apply(self, value: Tensor) -> Tensor:
        return value.flatten(after_batch(self.first_dim, self.parent), after_batch(self.last_dim, self.parent))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, lambda value: value.flatten(self.first_dim, self.last_dim))
