"""`Transform`: base class of transforms."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, Self, TypeGuard

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.env_specs import describe_entry
from rl.core.errors import ArgumentError, ContractError, RLError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import where_reset
from rl.core.specs import TensorSpec
from rl.envs.base._base import EnvBase
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._specs import Specs

# ruff: noqa: SLF001  # a transform calls its own hooks


Reset = Callable[[Tensor | None], Any]
"""Reset the elements where a mask is true, all if None; returns the root entries."""

Step = Callable[[Any], Any]
"""Step from root entries; returns the entries under ``next``."""

_ENTRY_HOOKS = ("_call", "_reset", "_step", "_inv", "_wrap")

_ONE_SPEC = "_transform_spec(spec), or transform_specs(specs) for several"
_OTHER_HOOKS = {
    "_apply_transform": "_apply(value)",
    "_inv_apply_transform": "_inverse(value)",
    "_inv_call": "_inv(root)",
    **{
        f"transform_{role}_spec": _ONE_SPEC
        for role in ("observation", "reward", "done", "action", "state", "input", "output")
    },
}
"""Hooks of TorchRL's transforms, which nothing would call here, and those to write instead."""


class Parent(Protocol):
    """The environment that a transform belongs to: a `TransformedEnv`."""

    base_env: EnvBase
    batch_size: torch.Size
    device: torch.device | None

    def refresh(self) -> None:
        """Derive the specs again."""
        ...


class Transform:
    """Base class of transforms of what an environment writes, and of the actions that it reads.

    A transform of single entries overrides up to three methods, each of one tensor or spec with any batch in front:

    - ``_apply(value)`` returns the value of an out key for that of its in key.
    - ``_inverse(value)`` returns the environment's value (of an ``in_keys_inv`` key) for the caller's
      (of its ``out_keys_inv`` key).
    - ``_transform_spec(spec)`` returns the caller's spec for the environment's, for both kinds of keys. `spec` is a
      copy that may be changed.

    A transform of several entries, or with a memory, overrides hooks that receive *entries*: a TensorDict, or, if the
    class sets ``leafwise = True``, also a plain dict of tensors by flat key. Both have ``entries[key]``,
    ``entries[key] = value`` and ``entries.get(key, None)``, and may be written; tensors must not be changed in place.

    - ``_call(entries)`` maps the entries of a reset, of a step, or of a batch.
    - ``_reset(root, mask)`` maps the root entries of new episodes; ``_call`` by default. Write *every* row: the caller
      replaces rows outside the mask by the current ones.
    - ``_step(root, outcome)`` maps the entries under ``next``, given the root of the step; ``_call`` by default.
    - ``_inv(root)`` maps the root entries before the environment reads its action.
    - ``transform_specs(specs)`` maps all specs, see `Specs`.
    - ``_wrap(reset, step)`` returns the two functions of the environment with this transform, for a transform that
      resets or steps the environment itself.

    In an environment, keys are those of a root or of what a step writes, without ``"next"``. On a batch they are
    applied to its root and to its ``next``, or as they are where one begins with ``"next"``, see `forward`.

    A transform belongs to one environment: `clone` it for another.

    Args:
        in_keys: Keys that it reads, from the environment to the caller.
        out_keys: Keys that it writes, in the same direction; `in_keys` if None.
        in_keys_inv: Keys of the environment's input (actions, state) that it writes.
        out_keys_inv: Keys of the caller from which they are computed; `in_keys_inv` if None.

    Raises:
        ArgumentError: If two lists that belong together differ in length.
        RLError: Where a class overrides a hook of TorchRL's that has another name here.

    Example:
        >>> class Negate(Transform):
        ...     def _apply(self, value):
        ...         return -value
        >>> Negate(in_keys=["observation"])
        Negate(in_keys=['observation'])
    """

    leafwise: ClassVar[bool] = True
    """Whether the hooks also run on a dict of tensors; false if a class overrides one and does not set it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, ours in _OTHER_HOOKS.items():
            if name in vars(cls):
                raise RLError(f"{cls.__name__} overrides {name}, which no transform calls: write {ours}")
        declared = any("leafwise" in vars(one) for one in cls.__mro__ if one not in {Transform, object})
        if not declared and any(hook in vars(cls) for hook in _ENTRY_HOOKS):
            cls.leafwise = False

    def __init__(
        self,
        in_keys: Iterable[NestedKey] = (),
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        self.in_keys, self.out_keys = self._key_lists(in_keys, out_keys)
        self.in_keys_inv, self.out_keys_inv = self._key_lists(in_keys_inv, out_keys_inv)
        self._parent: Parent | None = None
        cls = type(self)
        one_each = cls._apply is not Transform._apply or cls._inverse is not Transform._inverse
        for kind in ("", "_inv"):
            reads, writes = getattr(self, f"in_keys{kind}"), getattr(self, f"out_keys{kind}")
            if one_each and len(reads) != len(writes):
                raise ArgumentError(
                    f"{cls.__name__} has in_keys{kind}={reads} and out_keys{kind}={writes}: pass one out key"
                    " for each in key"
                )

    @staticmethod
    def _key_lists(
        reads: Iterable[NestedKey], writes: Iterable[NestedKey] | None
    ) -> tuple[list[NestedKey], list[NestedKey]]:
        first: list[NestedKey] = [unwrap(key) for key in _as_list(reads)]
        return first, list(first) if writes is None else [unwrap(key) for key in _as_list(writes)]

    # ---- one entry at a time

    def _apply(self, value: Any) -> Any:
        return value

    def _inverse(self, value: Any) -> Any:
        return value

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec

    # ---- several entries, or a memory

    def _call(self, entries: Any) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = entries.get(key, None)
            if value is not None:
                try:
                    entries[out] = self._apply(value)
                except RLError:
                    raise
                except Exception as error:
                    raise self._failure(key, value, error) from error
        return entries

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return self._call(root)

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        return self._call(outcome)

    def _inv(self, root: Any) -> Any:
        for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            value = root.get(out, None)
            if value is not None:
                try:
                    root[key] = self._inverse(value)
                except RLError:
                    raise
                except Exception as error:
                    raise self._failure(out, value, error) from error
        return root

    def transform_specs(self, specs: Specs) -> None:
        """Map the specs of an environment to those of the caller, in place.

        Raises:
            SpecError: If the environment lacks an in key.
        """
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            for spec in specs.written(key, self):
                spec[out] = self._spec_for(key, spec[key])
        for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            for spec in specs.read(key, self):
                mapped = self._spec_for(key, spec[key])
                del spec[key]
                spec[out] = mapped

    def _spec_for(self, key: NestedKey, spec: TensorSpec) -> TensorSpec:
        try:
            return self._transform_spec(spec.clone())
        except RLError:
            raise
        except Exception as error:
            raise SpecError(
                f"{self!r} cannot map the spec of {key_str(key)}, {describe_entry(spec)}: {error}"
            ) from error

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def restart(mask: Tensor | None) -> Any:
            return self._guarded(self._reset, reset(mask), mask)

        def forward(root: Any) -> Any:
            return self._guarded(self._step, root, step(root))

        def inverse_too(root: Any) -> Any:
            return self._guarded(self._step, root, step(self._guarded(self._inv, root.copy())))

        return restart, inverse_too if self.has_inverse() else forward

    def _guarded(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a hook; an error of another kind than ours gets the name of the transform."""
        try:
            return hook(*arguments)
        except RLError:
            raise
        except Exception as error:
            raise ContractError(f"{hook.__name__} of {self!r} failed: {type(error).__name__}: {error}") from error

    def set_seed(self, seed: int) -> None:
        """Seed the random numbers of the transform; called by the environment's `set_seed`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the transform: tensors and plain containers."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:
        """Write what the transform has recorded; nothing for one that records nothing.

        Args:
            suffix: Text at the end of the names of what is written.
            step: Step with which it is written.
        """

    # ---- called by users

    def is_leafwise(self) -> bool:
        """Whether the hooks run on plain dicts of tensors."""
        return self.leafwise

    def has_inverse(self) -> bool:
        """Whether it maps what the environment reads."""
        return bool(self.in_keys_inv) or type(self)._inv is not Transform._inv

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the transform to a collected batch: to its root, and to its ``next``.

        ``transform(tensordict)`` also writes the result into `tensordict`. Where keys of the transform begin with
        ``"next"``, as TorchRL has them, all of its keys are those of the batch, and no other entries are mapped.

        Returns:
            A new TensorDict; `tensordict` stays as it is.

        Raises:
            ContractError: If an in key is neither at the root nor under ``next``.
            RLError: If the transform needs the order of an episode.
        """
        cls = type(self)
        if cls._call is Transform._call and cls._apply is Transform._apply and cls._inverse is Transform._inverse:
            raise RLError(
                f"{cls.__name__} needs the order of an episode and cannot transform a batch: append it to the"
                " environment"
            )
        outcome = None if self._names_next() else tensordict.get("next", None)
        for key in self.in_keys:
            if tensordict.get(key, None) is None and (outcome is None or outcome.get(key, None) is None):
                raise ContractError(
                    f"{self!r} reads {key_str(key)}, which the batch has neither at the root nor under 'next':"
                    f" it has {sorted(map(str, tensordict.keys(include_nested=True, leaves_only=True)))}"
                )
        out = self._call(tensordict.copy())
        return out if outcome is None else out.set("next", self._call(outcome.copy()))

    def _names_next(self) -> bool:
        """Whether its keys are those of a batch, with ``"next"`` for what a step wrote."""
        return any(as_tuple(key)[0] == "next" for key in (*self.in_keys, *self.out_keys))

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the transform to a collected batch, see `forward`, and write the result into it.

        Returns:
            `tensordict`; a new TensorDict from a transform that changes the batch size or device.
        """
        return write_result(tensordict, self.forward(tensordict))

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the inverse to the root of a batch; returns a new TensorDict."""
        return self._inv(tensordict.copy())

    @property
    def parent(self) -> Parent | None:
        """The environment to which it belongs."""
        return self._parent

    def set_parent(self, parent: Parent | None) -> None:
        """Set the environment of the transform, or remove it with None.

        Raises:
            RLError: If it belongs to another one.
        """
        if parent is not None and self._parent is not None and self._parent is not parent:
            raise RLError(f"{self!r} belongs to another environment already; give this one its own: append a clone()")
        self._parent = parent

    def clone(self) -> Self:
        """Return a copy that belongs to no environment; modules, which are trained elsewhere, are shared."""
        parent, self._parent = self._parent, None
        try:
            return copy.deepcopy(self, {id(one): one for one in vars(self).values() if isinstance(one, nn.Module)})
        finally:
            self._parent = parent

    def to(self, device: torch.device | str | int) -> Self:
        """Move the tensors of the transform to a device, and return the transform."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    def _failure(self, key: NestedKey, value: Any, error: Exception) -> ContractError:
        got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        return ContractError(f"{self!r} failed on {key_str(key)}, {got}: {error}")

    def __repr__(self) -> str:
        names = ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv")
        lists = {name: getattr(self, name) for name in names}
        shown = [
            f"{name}={keys}"
            for name, keys in lists.items()
            if keys and not (name.startswith("out") and keys == lists[name.replace("out", "in", 1)])
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def write_result(batch: TensorDictBase, result: TensorDictBase) -> TensorDictBase:
    """`batch` with exactly the entries of `result`, or `result` where its batch size or device is another one."""
    if result is batch or result.batch_size != batch.batch_size or result.device != batch.device:
        return result
    if (  # row by row: the shapes of ragged entries differ
        isinstance(batch, LazyStackedTensorDict)
        and isinstance(result, LazyStackedTensorDict)
        and batch.stack_dim == result.stack_dim
    ):
        batch.tensordicts[:] = map(write_result, batch.tensordicts, result.tensordicts)
        return batch
    for key in [key for key in batch.keys() if key not in result.keys()]:
        del batch[key]
    for key, value in result.items():
        held = batch.get(key, None)
        new = write_result(held, value) if _is_nested(held) and _is_nested(value) else value
        if new is not held:
            batch.set(key, new)
    return batch


def _is_nested(value: Any) -> TypeGuard[TensorDictBase]:
    """Whether a value has entries of its own that are replaced one by one, unlike texts and ragged groups."""
    return isinstance(value, TensorDictBase) and not isinstance(value, LazyStackedTensorDict)


def _as_list(keys: Any) -> Iterable[Any]:
    """`keys`, or a list of the only key, which is checked as one."""
    return [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else keys


def level_keys(specs: Specs, key: NestedKey, owner: object) -> list[tuple[NestedKey, NestedKey]]:
    """Return the key to write and the ``done`` next to it, for each done group.

    Args:
        specs: Specs of the environment.
        key: A name, for every group; or a path, for that of the path alone.
        owner: The transform, for messages.

    Raises:
        SpecError: If the path has no ``done``.
    """
    *level, name = as_tuple(key)
    levels = [tuple(level)] if level else specs.done_levels()
    for one in levels:
        if specs.done.get((*one, "done"), None) is None:
            raise SpecError(
                f"{owner!r} writes {key_str(key)} next to a 'done' which the environment does not have (done keys:"
                f" {leaf_keys(specs.done)}): pass a key next to one of them"
            )
    return [(unwrap((*one, name)), unwrap((*one, "done"))) for one in levels]


def entry_keys(entries: Any) -> list[NestedKey]:
    """Return the keys of entries; of a TensorDict those of its leaves."""
    return list(entries) if isinstance(entries, dict) else leaf_keys(entries)


def merged(mask: Tensor, fresh: Any, current: Any) -> Any:
    """`fresh` where the mask is set, else `current`; entries that `current` lacks are those of `fresh`.

    Args:
        mask: Mask, bool ``[*B, 1]``.
        fresh: Entries, which are not written.
        current: Entries of the same form.
    """
    out = fresh.copy()
    for key in entry_keys(fresh):
        old = current.get(key, None)
        if old is not None:
            out[key] = where_reset(mask, fresh[key], old)
    return out


def following_root(root: Any, outcome: Any) -> Any:
    """Return the root of another step with the same action: `root` with the entries of `outcome`."""
    following = root.copy()
    following.update(outcome)
    return following


def step_mask(root: Any, done: Tensor) -> Tensor:
    """Return the elements that a step moves, bool in the shape of `done`: ``_step``, or all."""
    given = root.get("_step", None)
    return torch.ones_like(done) if given is None else given.reshape(done.shape)


def check_root_done(specs: Specs, owner: object) -> None:
    """Raise a SpecError unless episodes end at the root alone."""
    if specs.done_levels() != [()]:
        raise SpecError(f"{owner!r} needs a 'done' at the root, the environment has {specs.done_levels()}")


def element_mask(given: Any, done: Tensor, owner: object) -> Tensor:
    """Return a condition as a mask in the shape of `done`.

    Raises:
        SpecError: If it has neither one value nor one for each element.
    """
    mask = torch.as_tensor(given, device=done.device)
    if mask.dtype != torch.bool or mask.numel() not in {1, done.numel()}:
        raise SpecError(
            f"the condition of {owner!r} must be bool with one value for each element, got {mask.dtype}"
            f" {tuple(mask.shape)} for done {tuple(done.shape)}"
        )
    return mask.reshape(done.shape) if mask.numel() == done.numel() else mask.reshape(()).expand(done.shape)
