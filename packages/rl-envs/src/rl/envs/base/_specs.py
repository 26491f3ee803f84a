"""The five specs of an environment: assigned for one element, read with the batch in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_leaf_nontensor
from torch import Tensor

from rl.core.errors import ArgumentError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import complete_done, done_levels, reset_masks
from rl.core.specs import Binary, Categorical, Composite, NonTensor, Stacked, TensorSpec, Unbounded

# ruff: noqa: SLF001  # descriptors read the rules of their environment


FLAGS = ("done", "terminated", "truncated")
"""The flags of a done group; the first two always exist."""


ROLES = ("observation", "action", "reward", "done", "state")
"""The five kinds of entries of an environment."""


def leaf_keys(entries: Any) -> list[NestedKey]:
    """Return the leaf keys of a spec (outer ones first) or a TensorDict; the keys of a mapping.

    Of a stack of specs they are those that all of them have.
    """
    if isinstance(entries, (Composite, Stacked)):
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
    """One done flag: true or false, in each element of `shape`."""
    return Categorical(2, shape=shape, dtype=torch.bool, device=device)


def _with_flags(spec: Composite) -> Composite:
    """`spec` with ``done`` and ``terminated`` wherever one of the three flags is, in the customary order.

    Raises:
        SpecError: If a flag is not bool, or the flags of one group differ in shape.
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
        owner: Name of the environment, for messages.
        batch_size: Leading dimensions of every leaf.
        device: Device of the specs; as assigned if None.
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
            SpecError: If it is not a spec, is a composite with a batch of its own, or has elements of different shapes.
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
        """Return the spec of one element.

        Raises:
            SpecError: If it was never assigned.
        """
        if role not in self._authored:
            raise SpecError(f"{self.owner} has no {role}_spec: assign self.{role}_spec in its __init__")
        return self._authored[role]

    def batched(self, role: str) -> Composite:
        """Return the spec with the batch in front."""
        if role not in self._batched:
            spec = self.unbatched(role)
            self._batched[role] = spec.expand(*self.batch_size).lock_() if self.batch_size else spec
        return self._batched[role]

    def keys(self, role: str) -> list[NestedKey]:
        """Return the keys of a role's leaves."""
        return leaf_keys(self.unbatched(role))

    def only_key(self, role: str) -> NestedKey:
        """Return the key of the only leaf of a role.

        Raises:
            SpecError: If there is not exactly one.
        """
        keys = self.keys(role) if role != "done" else [k for k in self.keys("done") if as_tuple(k)[-1] == "done"]
        if len(keys) != 1:
            raise SpecError(f"{self.owner} has {len(keys)} {role} keys, not one: use {role}_keys")
        return keys[0]

    def leaf(self, role: str, *, batched: bool) -> TensorSpec:
        """Return the only leaf of a role, or the `Composite` if there are several."""
        spec = self.batched(role) if batched else self.unbatched(role)
        keys = leaf_keys(spec)
        return spec[keys[0]] if len(keys) == 1 else spec


class StackedSpecs(EnvSpecs):
    """Specs of a batch of environments whose specs differ: stacks of those of the members.

    Args:
        owner: Name of the batch, for messages.
        members: Environments of the batch.
        batch_size: Batch size of the batch.
        device: Device of the batch.
        difference: How two of the members differ, for messages.
    """

    def __init__(
        self, owner: str, members: Sequence[Any], batch_size: torch.Size, device: torch.device | None, difference: str
    ) -> None:
        self.owner, self.batch_size, self.device = owner, batch_size, device
        self._members, self.difference = members, difference

    def assign(self, role: str, spec: TensorSpec | None) -> None:
        del spec
        raise SpecError(f"{self.owner}.{role}_spec is a stack of the specs of its environments: assign theirs")

    def has(self, role: str) -> bool:
        return all(env._rl.specs.has(role) for env in self._members)

    def unbatched(self, role: str) -> Composite:
        first, *others = [env._rl.specs.unbatched(role) for env in self._members]
        if any(other != first for other in others):
            raise SpecError(
                f"{self.owner} has no {role}_spec of one element, as {self.difference}\nUse each environment by itself"
                " (env[0]), and append transforms to the environments inside"
            )
        return first

    def batched(self, role: str) -> Any:
        specs: Any = [env._rl.specs.batched(role) for env in self._members]
        # Random actions obey the masks that the environments update in their own specs, which a merged spec would copy.
        return Stacked(*specs) if role == "action" else torch.stack(specs)

    def keys(self, role: str) -> list[NestedKey]:
        return leaf_keys(self.batched(role))

    def leaf(self, role: str, *, batched: bool) -> TensorSpec:
        """Return the stack of the only leaves, or that of the `Composite` specs if leaves cannot be stacked."""
        if not batched:
            return super().leaf(role, batched=False)
        keys = {tuple(env._rl.specs.keys(role)) for env in self._members}
        leaves: Any = [env._rl.specs.leaf(role, batched=True) for env in self._members]
        single = len(keys) == 1 and len(keys.pop()) == 1
        alike = single and len({(leaf.dtype, leaf.ndim) for leaf in leaves}) == 1
        stacked: Any = torch.stack(leaves) if alike else self.batched(role)
        return stacked


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
        self._full, self._batched, self.__doc__ = _Full(role, doc, batched=batched), batched, doc

    def __get__(self, env: Any, _: type | None = None) -> TensorSpec:
        if env is None:
            return self  # pyright: ignore[reportReturnType]  # the descriptor itself, for its documentation
        return env._rl.specs.leaf(self._full.role, batched=self._batched)

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

    ``action_spec`` and ``reward_spec`` return the leaf if there is just one, ``full_*_spec`` always the `Composite`.
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


# ruff: noqa: SLF001  # the parts of an environment call its hooks


Keys = NestedKey | Sequence[NestedKey] | None


def infer_specs(
    env: Any,
    policy: Callable[[TensorDictBase], TensorDictBase] | None,
    tensordict: TensorDictBase | None,
    action: Keys,
    observation: Keys,
    reward: Keys,
    done: Keys,
) -> dict[str, Composite]:
    """Return the specs of `EnvBase.auto_specs_` by role, without the batch; ``action`` only if it is not assigned."""
    root = env._reset(tensordict)
    owner, known = env._rl.owner, env._rl.specs.has("action")
    td = _acted(env, policy, root)
    outcome = env._step(td)
    named = {as_tuple(key)[-1] for key in _as_list(reward)}
    written = leaf_keys(outcome)
    flags = _existing(done, outcome, owner) or [key for key in written if as_tuple(key)[-1] in FLAGS]
    rewards = [key for key in written if as_tuple(key)[-1] in named]
    if not rewards:
        raise SpecError(f"{owner}.auto_specs_: a step writes no entry named {sorted(named)}: pass reward_key=...")
    seen = _existing(observation, root, owner) or [key for key in leaf_keys(root) if key not in flags]
    found = {"observation": _specs(env, root, seen), "reward": _specs(env, outcome, rewards)}
    if flags:
        found["done"] = _specs(env, outcome, flags)
    if not known:
        found["action"] = _specs(env, td, _existing(action, td, owner))
    return found


def _acted(env: Any, policy: Callable[[TensorDictBase], TensorDictBase] | None, root: TensorDictBase) -> Any:
    """Return the root with an action."""
    if policy is not None:
        return root.copy().update(policy(root.copy()))
    if not env._rl.specs.has("action"):
        raise ArgumentError(
            f"{env._rl.owner}.auto_specs_ steps the environment and has no action: pass a policy, or assign action_spec"
            " first"
        )
    return env.rand_action(root.copy())


def _as_list(keys: Keys) -> list[NestedKey]:
    return [] if keys is None else [keys] if isinstance(keys, str) else [unwrap(key) for key in keys]


def _existing(keys: Keys, entries: Any, owner: str) -> list[NestedKey]:
    """Return the keys as a list; all of them must be there."""
    for key in _as_list(keys):
        if entries.get(key, None) is None:
            listed = ", ".join(map(key_str, leaf_keys(entries)))
            raise SpecError(f"{owner}.auto_specs_: {key_str(key)} is not written; there is {listed}")
    return _as_list(keys)


def _specs(env: Any, entries: Any, keys: Sequence[NestedKey]) -> Composite:
    spec = Composite({}, device=env.device)
    for key in keys:
        spec[key] = _spec(entries.get(key), len(env.batch_size))
    return spec


def _spec(value: Any, ndim: int) -> TensorSpec:
    if not isinstance(value, Tensor):
        return NonTensor(())
    shape = value.shape[ndim:]
    if value.dtype == torch.bool and shape:
        return Binary(shape=shape, dtype=torch.bool)
    return Unbounded(shape, dtype=value.dtype)


Masks = dict[tuple[str, ...], Tensor]
"""Reset masks by level, as `rl.core.mdp.reset_masks` returns them."""


class Flags:
    """The done flags of an environment, by level.

    Args:
        keys: All flags of its done spec.

    Example:
        >>> flags = Flags(["done", "terminated"])
        >>> flags.complete({"terminated": torch.tensor([True])})["done"]
        tensor([True])
    """

    def __init__(self, keys: Sequence[NestedKey]) -> None:
        self.keys = list(keys)
        self.levels = done_levels(keys)
        self.done_keys: list[NestedKey] = [unwrap((*level, "done")) for level in self.levels]
        self.reset_keys: list[NestedKey] = [unwrap((*level, "_reset")) for level in self.levels]
        self._names = [[as_tuple(key)[-1] for key in keys if as_tuple(key)[:-1] == level] for level in self.levels]

    def complete(self, entries: Any, spec: Composite | None = None, owner: str = "the environment") -> Any:
        """Add the flags that a step did not write, by the rules of `rl.core.mdp.complete_done`.

        Args:
            entries: A mapping or a TensorDict; written in place.
            spec: The batched done spec, which says the shape where there is no flag at all.
            owner: Name of the environment, for messages.
        """
        if any(entries.get(key, None) is None for key in self.keys):
            for level, done, names in zip(self.levels, self.done_keys, self._names, strict=True):
                shape = None if spec is None else spec[done].shape
                complete_done(entries, level=level, flags=names, shape=shape, owner=owner)
        return entries

    def check(self, entries: Any, owner: str) -> None:
        """Raise a ContractError unless ``done = terminated | truncated`` at each level; all flags must be there."""
        for level in self.levels:
            complete_done(entries, level=level, flags=(), owner=owner)

    def clear(self, entries: Any, spec: Composite) -> Any:
        """Add the flags that a reset did not write: all false."""
        for key in self.keys:
            if entries.get(key, None) is None:
                entries[key] = spec[key].zero()
        return entries

    def take_masks(self, td: Any, spec: Composite, owner: str) -> Masks | None:
        """Remove the ``_reset`` entries from `td` and return them.

        Returns:
            None if there is none: everything is reset.

        Raises:
            ShapeError: If a mask is not bool or does not have the shape of the flag next to it.
        """
        masks = reset_masks(td, self.done_keys)
        for level, mask in masks.items():
            done = unwrap((*level, "done"))
            shape = spec[done].shape if level in self.levels else None
            if mask.dtype != torch.bool or (shape is not None and mask.shape != shape):
                wanted = tuple(mask.shape if shape is None else shape)
                raise ShapeError(
                    f"{owner}.reset was given {key_str((*level, '_reset'))} of {mask.dtype} {tuple(mask.shape)}; it"
                    " must be"
                    f" torch.bool {wanted}, as {key_str(done)}"
                )
        for key in {*self.reset_keys, "_reset"}:
            if td.get(key, None) is not None:
                del td[key]
        return masks or None
