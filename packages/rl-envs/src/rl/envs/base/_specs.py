"""The five specs of an environment: assigned for one element, read with the batch in front."""

# ruff: noqa: SLF001  # descriptors read the rules of their environment

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_leaf_nontensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Categorical, Composite, Stacked, TensorSpec, Unbounded

__all__ = ["FLAGS", "ROLES", "EnvSpecs", "SpecNames", "flag_spec", "leaf_keys", "mask_shapes"]

FLAGS = ("done", "terminated", "truncated")
"""The flags of a done group; the first two always exist."""


ROLES = ("observation", "action", "reward", "done", "state")
"""The five kinds of entries of an environment."""


def leaf_keys(entries: Any) -> list[NestedKey]:
    """The leaf keys of a spec (outer ones first) or a TensorDict, nested ones as tuples; the keys of a mapping."""
    if isinstance(entries, Composite):
        keys: Any = entries.keys(include_nested=True, leaves_only=True)
        return sorted((unwrap(key) for key in keys), key=lambda key: len(as_tuple(key)))
    if isinstance(entries, TensorDictBase):
        return [unwrap(key) for key in entries.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)]
    return list(entries)


def mask_shapes(spec: Composite) -> dict[NestedKey, torch.Size]:
    """Shapes of masks of legal actions, for each action that may have one.

    Args:
        spec: Spec of the actions, with the batch.
    """
    return {key: spec[key].to_one_hot_spec().shape for key in leaf_keys(spec) if hasattr(spec[key], "mask")}


def flag_spec(shape: torch.Size, device: torch.device | None) -> TensorSpec:
    """One done flag: true or false, in each place of `shape`."""
    return Categorical(2, shape=shape, dtype=torch.bool, device=device)


def _with_flags(spec: Composite) -> Composite:
    """`spec` with ``done`` and ``terminated`` wherever one of the three flags is, in the customary order.

    Raises:
        SpecError: if a flag is not bool, or the flags of one group differ in shape.
    """
    groups: dict[tuple[str, ...], dict[str, TensorSpec]] = {}
    for key in leaf_keys(spec):
        *prefix, name = as_tuple(key)
        if name not in FLAGS:
            raise SpecError(f"done_spec has the entry {key!r}; a done spec holds {', '.join(FLAGS)} only")
        groups.setdefault(tuple(prefix), {})[name] = spec[key]
    out = Composite({}, shape=spec.shape, device=spec.device)
    for key, part in spec.items(include_nested=True):
        if isinstance(part, Composite):
            out[key] = part.empty()
    for prefix, found in groups.items():
        first = next(iter(found.values()))
        for name, one in found.items():
            if one.dtype != torch.bool or one.shape != first.shape:
                raise SpecError(
                    f"done_spec entry {unwrap((*prefix, name))!r} is {one.dtype} {tuple(one.shape)}; the flags of"
                    f" one group are bool and of one shape, here {tuple(first.shape)}"
                )
        for name in FLAGS:
            if name in found or name != "truncated":
                out[unwrap((*prefix, name))] = found.get(name, first).clone()
    return out


class EnvSpecs:
    """Specs by role, each as a `Composite`, without and with the batch.

    Args:
        owner: name of the environment, for messages.
        batch_size: leading dimensions of every leaf.
        device: device of the specs; as assigned if None.
    """

    def __init__(self, owner: str, batch_size: torch.Size, device: torch.device | None) -> None:
        self.owner, self.batch_size, self.device = owner, batch_size, device
        self._authored: dict[str, Composite] = {"state": Composite({}, device=device)}
        self._batched: dict[str, Composite] = {}
        self.assign("reward", Unbounded(shape=(1,), device=device))
        self.assign("done", Composite(done=flag_spec(torch.Size([1]), device)))

    def assign(self, role: str, spec: TensorSpec | None) -> None:
        """Set the spec of a role; a bare leaf gets the role's own key.

        Raises:
            SpecError: if it is not a spec, is a composite with a batch of its own, or has elements of different shapes.
        """
        if spec is None:
            spec = Composite({}, device=self.device)
        if not isinstance(spec, TensorSpec):
            raise SpecError(f"{self.owner}.{role}_spec must be a spec, got {type(spec).__name__}")
        if not isinstance(spec, Composite):
            spec = Composite({role: spec}, device=spec.device)
        if spec.shape:
            raise SpecError(
                f"{self.owner}.{role}_spec has the batch {tuple(spec.shape)}; specs are written for one element:"
                f" the environment adds its batch {tuple(self.batch_size)} by itself"
            )
        for key in leaf_keys(spec):
            part = spec[key]
            if isinstance(part, Stacked) and (part.dtype is None or -1 in part.shape):
                raise SpecError(
                    f"{self.owner}.{role}_spec: the elements of {key_str(key)} differ in keys or shapes, and steps are"
                    " stacked into tensors. Pad them to one shape, or give each a key of its own"
                )
        if self.device is not None:
            spec = spec.to(self.device)
        self._authored[role] = (_with_flags(spec) if role == "done" else spec.clone()).lock_()
        self._batched.pop(role, None)

    def has(self, role: str) -> bool:
        """Whether the role was assigned."""
        return role in self._authored

    def unbatched(self, role: str) -> Composite:
        """The spec of one element.

        Raises:
            SpecError: if it was never assigned.
        """
        if role not in self._authored:
            raise SpecError(f"{self.owner} has no {role}_spec: assign self.{role}_spec in its __init__")
        return self._authored[role]

    def batched(self, role: str) -> Composite:
        """The spec with the batch in front."""
        if role not in self._batched:
            spec = self.unbatched(role)
            self._batched[role] = spec.expand(*self.batch_size).lock_() if self.batch_size else spec
        return self._batched[role]

    def keys(self, role: str) -> list[NestedKey]:
        """The keys of a role's leaves."""
        return leaf_keys(self.unbatched(role))

    def only_key(self, role: str) -> NestedKey:
        """The key of the only leaf of a role.

        Raises:
            SpecError: if there is not exactly one.
        """
        keys = self.keys(role) if role != "done" else [k for k in self.keys("done") if as_tuple(k)[-1] == "done"]
        if len(keys) != 1:
            raise SpecError(f"{self.owner} has {len(keys)} {role} keys, not one: use {role}_keys")
        return keys[0]


class _Full:
    """A spec as a `Composite`, locked; assigning one drops what was derived from it."""

    def __init__(self, role: str, doc: str, *, batched: bool = True) -> None:
        self.role, self.batched, self.__doc__ = role, batched, doc

    def __get__(self, env: Any, _: type | None = None) -> Composite:
        if env is None:
            return self  # pyright: ignore[reportReturnType]  # the descriptor itself, for its documentation
        return (env._rl.specs.batched if self.batched else env._rl.specs.unbatched)(self.role)

    def __set__(self, env: Any, spec: TensorSpec | None) -> None:
        if not self.batched:
            raise AttributeError(f"{self.role}_spec_unbatched is derived: assign {self.role}_spec")
        env._rl.assign(self.role, spec)


class _Leaf:
    """The same as `_Full`, but the leaf itself where there is just one."""

    def __init__(self, role: str, doc: str, *, batched: bool = True) -> None:
        self._full, self.__doc__ = _Full(role, doc, batched=batched), doc

    def __get__(self, env: Any, _: type | None = None) -> TensorSpec:
        if env is None:
            return self  # pyright: ignore[reportReturnType]  # the descriptor itself, for its documentation
        spec = self._full.__get__(env)
        keys = leaf_keys(spec)
        return spec[keys[0]] if len(keys) == 1 else spec

    def __set__(self, env: Any, spec: TensorSpec | None) -> None:
        self._full.__set__(env, spec)


class _ReadOnly:
    """A value that is derived from the specs."""

    def __set__(self, env: Any, value: object) -> None:
        raise AttributeError(f"{type(env).__name__}: keys are derived from the specs: assign the spec instead")


class _Keys(_ReadOnly):
    """The leaf keys of a spec."""

    def __init__(self, role: str, doc: str) -> None:
        self._role, self.__doc__ = role, doc

    def __get__(self, env: Any, _: type | None = None) -> list[NestedKey]:
        return self if env is None else env._rl.specs.keys(self._role)  # pyright: ignore[reportReturnType]


class _Key(_ReadOnly):
    """The key of the only leaf of a spec; a SpecError if there are several."""

    def __init__(self, role: str, doc: str) -> None:
        self._role, self.__doc__ = role, doc

    def __get__(self, env: Any, _: type | None = None) -> NestedKey:
        return self if env is None else env._rl.specs.only_key(self._role)  # pyright: ignore[reportReturnType]


class SpecNames:
    """Specs and keys of an environment by name, with the batch in front; ``*_unbatched`` without it.

    ``action_spec`` and ``reward_spec`` give the leaf if there is just one, ``full_*_spec`` always the `Composite`.
    What is read is locked: assign a changed clone to change it.
    """

    # the four specs of the protocol `rl.core.interfaces.Env` are properties: type checkers match no other descriptor

    action_spec = _Leaf("action", "The actions that a step reads.")
    reward_spec = _Leaf("reward", "The rewards that a step writes.")
    done_spec = _Full("done", "The done flags.")
    state_spec = _Full("state", "Entries that a step reads at the root besides the action.")
    full_observation_spec = _Full("observation", "The same as `observation_spec`.")
    full_state_spec = _Full("state", "All state entries by key.")
    _rl: Any

    observation_spec_unbatched = _Full("observation", "`observation_spec` of one element.", batched=False)
    action_spec_unbatched = _Leaf("action", "`action_spec` of one element.", batched=False)
    reward_spec_unbatched = _Leaf("reward", "`reward_spec` of one element.", batched=False)
    done_spec_unbatched = _Full("done", "`done_spec` of one element.", batched=False)
    state_spec_unbatched = _Full("state", "`state_spec` of one element.", batched=False)
    full_action_spec_unbatched = _Full("action", "`full_action_spec` of one element.", batched=False)
    full_reward_spec_unbatched = _Full("reward", "`full_reward_spec` of one element.", batched=False)
    full_done_spec_unbatched = _Full("done", "`full_done_spec` of one element.", batched=False)
    observation_keys = _Keys("observation", "Keys of the observations.")
    action_keys = _Keys("action", "Keys of the actions.")
    reward_keys = _Keys("reward", "Keys of the rewards, without the ``next`` under which a step writes them.")
    done_keys = _Keys("done", "Keys of all done flags.")
    state_keys = _Keys("state", "Keys of the entries that a step reads at the root besides the action.")
    action_key = _Key("action", "The key of the only action.")
    reward_key = _Key("reward", "The key of the only reward.")
    done_key = _Key("done", "The key of the only ``done``.")

    @property
    def observation_spec(self) -> Composite:
        """Entries that resets and steps write, besides rewards and done flags."""
        return self._rl.specs.batched("observation")

    @observation_spec.setter
    def observation_spec(self, spec: TensorSpec) -> None:
        self._rl.assign("observation", spec)

    @property
    def full_action_spec(self) -> Composite:
        """All actions by key."""
        return self._rl.specs.batched("action")

    @full_action_spec.setter
    def full_action_spec(self, spec: TensorSpec) -> None:
        self._rl.assign("action", spec)

    @property
    def full_reward_spec(self) -> Composite:
        """All rewards by key."""
        return self._rl.specs.batched("reward")

    @full_reward_spec.setter
    def full_reward_spec(self, spec: TensorSpec) -> None:
        self._rl.assign("reward", spec)

    @property
    def full_done_spec(self) -> Composite:
        """All done flags by key."""
        return self._rl.specs.batched("done")

    @full_done_spec.setter
    def full_done_spec(self, spec: TensorSpec) -> None:
        self._rl.assign("done", spec)
