"""`TransformedEnv`: an environment with transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from textwrap import indent
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, CheckpointError, RLError, SpecError
from rl.core.interfaces import Env, LeafEnv
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Composite, Unbounded
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._checks import warn_not_restorable
from rl.envs.base._leaf import LeafCalls, LeafForm, as_env, reset_where
from rl.envs.base._rules import partial_root, start_at
from rl.envs.base._specs import leaf_keys, mask_shapes
from rl.envs.transforms._base import Parent, Reset, Step, Transform
from rl.envs.transforms._specs import Specs


class FunctionTransform(Transform):
    """Transform that applies a function at the root after a reset and under ``next`` after a step.

    On a batch it is called with the root and with ``next``; or once with the batch, if it changes entries under
    ``next`` itself, as functions for replay buffers do. An environment rejects such a function.

    Its specs are found by running it once on zeros of one element: every entry that the function adds or changes gets
    an unbounded spec.

    Args:
        function: Function from TensorDict to TensorDict; it must not change tensors in place.
    """

    def __init__(self, function: Callable[[TensorDictBase], TensorDictBase]) -> None:
        super().__init__()
        self.function = function

    def _call(self, entries: Any) -> Any:
        out = self.function(entries)
        if not isinstance(out, TensorDictBase):
            raise SpecError(f"the transform {self!r} returned {type(out).__name__}, expected a TensorDict")
        return out

    def _mapped(self, spec: Composite) -> Composite:
        before = spec.zero()
        after = self._call(before.copy())
        out = Composite({})
        kept: set[NestedKey] = set(leaf_keys(spec))
        for path, value in after.items(include_nested=True, leaves_only=True):
            key = unwrap(path)
            same = key in kept and value is before.get(key, None)
            out[key] = spec[key] if same else Unbounded(value.shape, device=value.device, dtype=value.dtype)
        return out

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the function to a batch."""
        outcome = tensordict.get("next", None)
        out = self._call(tensordict.copy())
        if outcome is None or _changed_keys(outcome, out.get("next", None)):
            return out
        return out.set("next", self._call(outcome.copy()))

    def _check_keys(self, specs: Specs) -> None:
        """Raise a SpecError if the function is one of a batch: if it changes what is under ``next`` alone."""
        entries = TensorDict({})
        for spec in (specs.observation, specs.reward, specs.done):
            entries.update(spec.zero())
        probe = entries.copy().set("next", entries.copy())
        try:
            out = self._call(probe.copy())
        except Exception:  # noqa: BLE001  judged on the entries of a reset, see `_mapped`
            return
        below = _changed_keys(entries, out.get("next", None))
        only = [key for key in below if out.get(key, None) is entries.get(key, None)]
        if only:
            raise SpecError(
                f"{self!r} changes {key_str(('next', *as_tuple(only[0])))}; in an environment a function is called with"
                f" what a step wrote by itself: read and write {key_str(only[0])}. A function of batches belongs in a"
                " replay buffer"
            )

    def transform_specs(self, specs: Specs) -> None:
        self._check_keys(specs)
        specs.observation = self._mapped(specs.observation)

    def __repr__(self) -> str:
        return f"FunctionTransform({getattr(self.function, '__name__', type(self.function).__name__)})"


def _changed_keys(before: TensorDictBase, after: TensorDictBase | None) -> list[NestedKey]:
    """Return the keys of entries that were replaced, added or removed."""
    left, right = dict(_leaves(before)), {} if after is None else dict(_leaves(after))
    return [key for key in (*left, *(key for key in right if key not in left)) if left.get(key) is not right.get(key)]


def _leaves(entries: TensorDictBase) -> Iterator[tuple[NestedKey, Any]]:
    for path, value in entries.items(include_nested=True, leaves_only=True):
        yield unwrap(path), value


def as_transform(one: Any) -> Transform:
    """Return `one` if it is a transform, or a transform that calls it.

    Raises:
        ArgumentError: If it is neither, or has an inverse and is not a `Transform`.
    """
    if isinstance(one, Transform):
        return one
    if hasattr(one, "inv") and not isinstance(one, type):
        raise ArgumentError(
            f"{type(one).__name__} has an inverse, for batches that a buffer writes: append it to the replay buffer;"
            " in an environment, inherit from Transform"
        )
    if isinstance(one, type):
        raise ArgumentError(f"a transform is an object, got the class {one.__name__}: write {one.__name__}(...)")
    if callable(one):
        function: Any = one
        return FunctionTransform(function)
    raise ArgumentError(
        f"a transform is a Transform or a function from TensorDict to TensorDict, got {type(one).__name__}"
    )


# ruff: noqa: SLF001  # a chain calls the hooks of its transforms, which users do not call


class Compose(Transform):
    """Chain of transforms; the first is nearest to the environment.

    Chains within a chain are flattened.

    Args:
        transforms: Transforms, or functions from TensorDict to TensorDict.

    Example:
        >>> from rl.envs import InitTracker, StepCounter
        >>> chain = Compose(StepCounter(max_steps=10))
        >>> chain.append(InitTracker())
        Compose(
            StepCounter(out_keys=['step_count']),
            InitTracker(out_keys=['is_init']))
    """

    def __init__(self, *transforms: Transform | Callable[[TensorDictBase], TensorDictBase]) -> None:
        super().__init__()
        self.transforms: list[Transform] = []
        for one in transforms:
            self.insert(len(self.transforms), one)

    def append(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Append a transform; the specs of the environment are derived again."""
        return self.insert(len(self.transforms), transform)

    def insert(self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Insert a transform before `index`; the specs of the environment are derived again.

        Raises:
            ArgumentError: If there is no such position.
        """
        if not -len(self.transforms) <= index <= len(self.transforms):
            raise ArgumentError(
                f"cannot insert a transform at {index}: there are {len(self.transforms)}; 0 is nearest to the"
                " environment, and append(transform) adds the last one"
            )
        made = as_transform(transform)
        parts = made.transforms if isinstance(made, Compose) else [made]
        for part in parts:
            if self._parent is not None:
                part.set_parent(self._parent)
        before = list(self.transforms)
        self.transforms[index:index] = parts
        self._set_keys()
        self._refresh_or_restore(before)
        return self

    def pop(self, index: int = -1) -> Transform:
        """Remove a transform and return it; the specs of the environment are derived again.

        Raises:
            ArgumentError: If there is none at `index`.
            SpecError: If a later one needs what it writes. The chain stays as it is.
        """
        if not -len(self.transforms) <= index < len(self.transforms):
            raise ArgumentError(f"cannot remove the transform at {index}: there are {len(self.transforms)}")
        before = list(self.transforms)
        one = self.transforms.pop(index)
        self._set_keys()
        self._refresh_or_restore(before)
        one.set_parent(None)
        return one

    def _refresh_or_restore(self, before: list[Transform]) -> None:
        """Derive the specs again; where that fails, with the transforms of before."""
        if self._parent is None:
            return
        try:
            self._parent.refresh()
        except Exception:
            added = [one for one in self.transforms if one not in before]
            self.transforms = before
            self._set_keys()
            for one in added:
                one.set_parent(None)
            self._parent.refresh()
            raise

    def _set_keys(self) -> None:
        for name in ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv"):
            setattr(self, name, [key for one in self.transforms for key in getattr(one, name)])

    def set_parent(self, parent: Parent | None) -> None:
        super().set_parent(parent)
        for one in self.transforms:
            one.set_parent(parent)

    def clone(self) -> Compose:
        return type(self)(*[one.clone() for one in self.transforms])

    def to(self, device: torch.device | str | int) -> Compose:
        for one in self.transforms:
            one.to(device)
        return self

    def is_leafwise(self) -> bool:
        return all(one.is_leafwise() for one in self.transforms)

    def has_inverse(self) -> bool:
        return any(one.has_inverse() for one in self.transforms)

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        for one in self.transforms:
            reset, step = one._wrap(reset, step)
        return reset, step

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        for one in self.transforms:
            tensordict = one.forward(tensordict)
        return tensordict

    def _call(self, entries: Any) -> Any:
        for one in self.transforms:
            entries = one._call(entries)
        return entries

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        for one in self.transforms:
            root = one._reset(root, mask)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for one in self.transforms:
            outcome = one._step(root, outcome)
        return outcome

    def _inv(self, root: Any) -> Any:
        for one in reversed(self.transforms):
            root = one._inv(root)
        return root

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        for one in reversed(self.transforms):
            tensordict = one.inv(tensordict)
        return tensordict

    def transform_specs(self, specs: Specs) -> None:
        for one in self.transforms:
            one.transform_specs(specs)
        self._set_keys()  # some choose keys by the specs

    def set_seed(self, seed: int) -> None:
        for number, one in enumerate(self.transforms):
            one.set_seed(seed + number)

    def state_dict(self) -> dict[str, Any]:
        return {"transforms": [one.state_dict() for one in self.transforms]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = state.get("transforms", [])
        if len(states) != len(self.transforms):
            raise CheckpointError(
                f"Compose has {len(self.transforms)} transforms, the state has {len(states)}: build the same ones"
            )
        for one, part in zip(self.transforms, states, strict=True):
            one.load_state_dict(part)

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:
        """Let each transform write what it has recorded."""
        for one in self.transforms:
            one.dump(suffix, step)

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __getitem__(self, index: int | slice) -> Transform:
        if isinstance(index, slice):
            return type(self)(*[one.clone() for one in self.transforms[index]])
        return self.transforms[index]

    def __repr__(self) -> str:
        return "Compose(\n" + ",\n".join(indent(repr(one), "    ") for one in self.transforms) + ")"


# ruff: noqa: SLF001  # an environment calls the hooks of its transforms, which users do not call


@foreign_arguments()
class TransformedEnv(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Environment with transforms of its entries and actions.

    Its specs follow from those of the environment and the transforms. It has a leaf form if the environment has one
    and all transforms are leafwise. Other attributes (``render``, ...) are looked up in the environment. Assigning to
    ``transform`` replaces it; reset the environment then.

    Args:
        base_env: An `EnvBase`, or any environment of the `rl.core.interfaces.Env` protocol (see `as_env`); closed with
            this one.
        transform: A `Transform`, a function from TensorDict to TensorDict, or None for an empty `Compose`.

    Raises:
        SpecError: If `base_env` lacks members of the protocol; they are named.
        RLError: If the transform belongs to another environment.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=3))
        >>> env.rollout(10)["step_count"].flatten()
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        base_env: Env,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        inner: EnvBase = as_env(base_env)
        self.transform = Compose() if transform is None else as_transform(transform)
        if type(inner) is TransformedEnv:
            taken, inner = inner.transform, inner.base_env
            taken.set_parent(None)
            self.transform = Compose(taken, self.transform)
        self.base_env: EnvBase = inner
        self.transform.set_parent(self)
        self._masks: TensorDictBase | None = None
        self._start: TensorDictBase | None = None
        self.refresh()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: ``transform`` takes effect at once, and those of the environment inside are set there.

        Raises:
            RLError: For ``base_env``, or if a transform belongs to another environment.
            SpecError: If a transform does not fit the environment; it keeps the one that it has.
        """
        if name == "transform" and "_rl" in vars(self):
            self._replace_transform(as_transform(value))
        elif name == "base_env" and "_rl" in vars(self):
            raise RLError(
                "base_env of TransformedEnv cannot be assigned: create TransformedEnv(env, transform.clone())"
            )
        elif "_rl" in vars(self) and self._is_of_base_env(name):
            setattr(self.base_env, name, value)
        else:
            super().__setattr__(name, value)

    def _is_of_base_env(self, name: str) -> bool:
        own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        return not own and hasattr(self.base_env, name)

    def _replace_transform(self, transform: Transform) -> None:
        old = self.transform
        if transform is not old:
            transform.set_parent(self)
            old.set_parent(None)
        vars(self)["transform"] = transform
        try:
            self.refresh()
        except Exception:
            transform.set_parent(None)
            old.set_parent(self)
            vars(self)["transform"] = old
            self.refresh()
            raise

    def refresh(self) -> None:
        """Derive the specs again, after a transform or the specs of the environment changed."""
        base = self.base_env
        specs = Specs(
            observation=base.observation_spec_unbatched.clone(),
            action=base.full_action_spec_unbatched.clone(),
            reward=base.full_reward_spec_unbatched.clone(),
            done=base.done_spec_unbatched.clone(),
            state=base.state_spec_unbatched.clone(),
            batch_size=base.batch_size,
            device=base.device,
        )
        self.transform.transform_specs(specs)
        super().__init__(batch_size=specs.batch_size, device=specs.device)
        self.observation_spec = specs.observation
        self.action_spec = specs.action
        self.reward_spec = specs.reward
        self.done_spec = specs.done
        self.state_spec = specs.state
        self.batch_locked = base.batch_locked
        self._rl.legal_actions = TransformedEnv._legal_actions
        inner, own = base.full_action_spec, self.full_action_spec
        choices = mask_shapes(own)  # those of the environment, not of a transform that changes their number
        self._masked = [
            key
            for key, shape in mask_shapes(inner).items()
            if choices.get(key) == shape and inner[key].shape == own[key].shape
        ]
        self._reset_through, self._step_through = self.transform._wrap(self._reset_base, self._step_base)

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        changed = set(self.transform.in_keys_inv) & set(self.base_env.state_keys)
        self._start = self.transform._inv(tensordict.copy()) if changed else tensordict  # `inv` is for stored batches
        try:
            return self._reset(tensordict if tensordict.get("_reset", None) is not None else None)
        finally:
            self._start = None

    def _reset_base(self, mask: Tensor | None) -> TensorDictBase:
        if self._start is not None:
            start, self._start = self._start, None
            return start_at(self.base_env, start)
        if mask is None:
            return self.base_env.reset()
        masks = self._masks
        if masks is None or masks.get("_reset") is not mask:  # asked for by a transform
            masks = TensorDict({"_reset": mask}, self.base_env.batch_size)
        return self.base_env.reset(partial_root(self.base_env, masks))

    def _step_base(self, root: TensorDictBase) -> TensorDictBase:
        return self.base_env.step(root.exclude("next")).get("next")  # exclude: a shallow copy

    def append_transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> TransformedEnv:
        """Append a transform to this environment, and return the environment."""
        return self.insert_transform(len(self._chain()), transform)

    def insert_transform(
        self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]
    ) -> TransformedEnv:
        """Insert a transform before the one at `index`, 0 being nearest to the environment; return the environment."""
        self._chain().insert(index, transform)
        return self

    def _chain(self) -> Compose:
        if not isinstance(self.transform, Compose):
            inner = self.transform
            inner.set_parent(None)
            chain = vars(self)["transform"] = Compose(inner)  # with the same effect: the specs stay
            chain.set_parent(self)
            return chain
        return self.transform

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self._masks = tensordict
        return self._reset_through(None if tensordict is None else tensordict.get("_reset", None))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._step_through(tensordict)

    def with_batch(self, batch_size: Iterable[int]) -> TransformedEnv:
        size = torch.Size(batch_size)
        other = self._rl.other_batch.get(size)
        if other is None:
            if _is_stateful(self.transform.state_dict()):
                raise SpecError(
                    f"{self.transform!r} keeps a state of its own and needs a fixed batch: create the environment with"
                    f" batch_size={list(size)}"
                )
            other = TransformedEnv(self.base_env.with_batch(size), self.transform.clone())
            self._rl.other_batch = {size: other}  # the last one
        return other

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        if isinstance(target, torch.dtype):
            return super().to(target)
        self.base_env.to(target)
        self.transform.to(target)
        self.refresh()
        return self

    def compile(self, **kwargs: Any) -> TransformedEnv:
        """Compile the step of the environment inside; the transforms stay as they are."""
        self.base_env.compile(**kwargs)
        return self

    def eager(self) -> TransformedEnv:
        self.base_env.eager()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"base_env": self.base_env, "transform": self.transform}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _masks=None, _start=None)
        self.refresh()

    def lowered(self) -> LeafEnv | None:
        inner = self.base_env.lowered()
        if inner is None or not self.transform.is_leafwise():
            return None
        return LeafForm(self, LeafCalls(*self.transform._wrap(reset_where(self.base_env, inner), inner.step_leaves)))

    # ---- delegated to the environment

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        self.transform.set_seed(seed)
        more = {"static_seed": True} if static_seed else {}  # an override may not have it
        return self.base_env.set_seed(seed, **more)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the environment and of the transforms."""
        inner = self.base_env.state_dict()
        return {
            "restorable": bool(inner.get("restorable", False)),
            "env": inner,
            "transform": self.transform.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Raises:
            CheckpointError: If `state` was not saved by a `TransformedEnv`.
        """
        if not {"env", "transform"} <= set(state):
            if state.get("restorable", True):
                raise CheckpointError(f"{type(self).__name__} cannot load a state with the entries {sorted(state)}")
            warn_not_restorable(type(self).__name__)
            return False
        self.transform.load_state_dict(state["transform"])
        return self.base_env.load_state_dict(state["env"])

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self.base_env._set_options(options)

    def _legal_actions(self) -> Mapping[NestedKey, Tensor]:
        masks = {key: self.base_env.full_action_spec[key].mask for key in self._masked}
        return {key: mask for key, mask in masks.items() if mask is not None}

    def _close(self) -> None:
        self.base_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in {"base_env", "transform"}:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        env = self.base_env
        try:
            return getattr(env, name)
        except AttributeError as error:
            if hasattr(type(env), name):  # a property that failed: its own error says why
                raise
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, nor has its environment {env._rl.owner}",
                name=name,
                obj=self,
            ) from error

    def __repr__(self) -> str:
        parts = f"env={self.base_env!r},\ntransform={self.transform!r}"
        return f"{type(self).__name__}(\n{indent(parts, '    ')})"


def _is_stateful(state: Any) -> bool:
    """Whether a state holds anything but empty containers."""
    if isinstance(state, Mapping):
        return any(map(_is_stateful, state.values()))
    return any(map(_is_stateful, state)) if isinstance(state, list) else state is not None
