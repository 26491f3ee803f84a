"""The functions that create the environments of a batch, and what these have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from rl.core.arguments import constructor_setting
from rl.core.env_specs import describe_entry, stack_faults
from rl.core.errors import ArgumentError, ContractError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Bounded, Composite, TensorSpec, Unbounded
from rl.core.workers import write_leaves
from rl.envs.base._base import EnvBase
from rl.envs.base._rules import partial_root, state_root
from rl.envs.base._specs import leaf_keys

# ruff: noqa: SLF001  # environments that consist of others use their rules


class MembersBase(EnvBase):
    """Base of environments that consist of others, the members, which have numbers.

    Where the specs of two members differ, all data are lazy stacks of the members' TensorDicts, and the methods of an
    `EnvBase` run those of each member (``_rl.members``) on its part.
    """

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

    # ---- members whose specs differ

    def _run_members(
        self,
        method: str,
        parts: Mapping[int, Any],
        *,
        set_state: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> dict[int, TensorDictBase]:
        """Call a method of some members at once.

        Args:
            method: Name of the method, ``reset`` or ``step``.
            parts: TensorDict of each member, by number.
            set_state: Argument of `reset`.
            options: Argument of `reset`.

        Returns:
            Root entries, or the entries under ``next``, by number.
        """
        raise NotImplementedError

    def _member_masks(self, number: int) -> dict[NestedKey, Tensor]:
        """Return the masks of legal actions of one member, by action."""
        raise NotImplementedError

    def _parts(self, tensordict: TensorDictBase, method: str) -> list[Any]:
        """Return the TensorDicts of the members."""
        self._rl.check_batch(tensordict, method)
        faults = {} if _is_stack(tensordict) else stack_faults(self)
        if faults:
            raise SpecError(
                f"{self._rl.owner}.{method} was given a {type(tensordict).__name__}, and no tensor can hold the entries"
                f" of all environments:\n{fault_lines(faults)}\nPass a lazy stack of one TensorDict for each, such as"
                " that of reset()"
            )
        return list(tensordict.unbind(0))

    def reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        set_state: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> TensorDictBase:
        members = self._rl.members
        if not members:
            return super().reset(tensordict, set_state=set_state, options=options)
        self._rl.check_open()
        if tensordict is None:
            fresh = self._run_members("reset", dict.fromkeys(range(len(members))), set_state=set_state, options=options)
            return lazy_rows([fresh[number] for number in range(len(members))])
        parts = self._parts(tensordict, "reset")
        masks = [[key for key in leaf_keys(part) if as_tuple(key)[-1] == "_reset"] for part in parts]
        chosen = {
            number: part
            for number, (part, keys) in enumerate(zip(parts, masks, strict=True))
            if not keys or any(bool(part.get(key).any()) for key in keys)
        }
        fresh = self._run_members("reset", chosen, set_state=set_state, options=options) if chosen else {}
        for number, (part, keys) in enumerate(zip(parts, masks, strict=True)):
            part.exclude(*keys, inplace=True)
            if number in fresh:
                part.update(fresh[number])
        if _is_stack(tensordict):  # the parts are its own
            return tensordict
        return tensordict.exclude("_reset", *self.reset_keys, inplace=True).update(lazy_rows(parts))

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        members = self._rl.members
        if not members:
            return super().step(tensordict)
        self._rl.check_open()
        parts = self._parts(tensordict, "step")
        moving = [mask is None or bool(mask.any()) for mask in (part.get("_step", None) for part in parts)]
        written = [part.get("next", None) for part in parts]  # by a policy
        outcomes = self._run_members("step", {i: part for i, part in enumerate(parts) if moving[i]})
        rows: list[Any] = []
        for number, (env, part, kept) in enumerate(zip(members, parts, written, strict=True)):
            outcome = outcomes[number] if moving[number] else _held_outcome(env, part)
            rows.append(outcome if kept is None else kept.copy().update(outcome))
        return tensordict.set("next", lazy_rows(rows))

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        members = self._rl.members
        if not members:
            return super().step_mdp(tensordict)
        parts = self._parts(tensordict, "step_mdp")
        return lazy_rows([env.step_mdp(part) for env, part in zip(members, parts, strict=True)])

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        members = self._rl.members
        if not members:
            return super().maybe_reset(tensordict)
        parts = self._parts(tensordict, "maybe_reset")
        flags = [[part.get(key) for key in env._rl.flags.done_keys] for env, part in zip(members, parts, strict=True)]
        if not any(bool(flag.any()) for row in flags for flag in row):
            return tensordict
        for env, part, row in zip(members, parts, flags, strict=True):
            for key, flag in zip(env.reset_keys, row, strict=True):
                part.set(key, flag.clone())
        return self.reset(lazy_rows(parts))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        if not self._rl.members:
            return super().rand_action(tensordict)
        actions = self.full_action_spec.rand()
        if tensordict is None:
            return actions
        self._parts(tensordict, "rand_action")  # rejects one that cannot hold them
        return tensordict.update(actions)

    def fake_tensordict(self) -> TensorDictBase:
        members = self._rl.members
        return lazy_rows([env.fake_tensordict() for env in members]) if members else super().fake_tensordict()

    # ---- seeds

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


def fault_lines(faults: Mapping[NestedKey, str]) -> str:
    """Return faults of entries for a message, one line for each."""
    return "\n".join(f"  {key_str(key)}: {fault}" for key, fault in faults.items())


def _is_stack(tensordict: TensorDictBase) -> bool:
    """Whether a TensorDict is a lazy stack of one for each member."""
    return isinstance(tensordict, LazyStackedTensorDict) and tensordict.stack_dim == 0


def legal_masks(env: EnvBase) -> dict[NestedKey, Tensor]:
    """Return the masks of legal actions that the action spec of an environment has."""
    masks = {key: getattr(env.full_action_spec[key], "mask", None) for key in env.action_keys}
    return {key: mask for key, mask in masks.items() if mask is not None}


def _held_outcome(env: EnvBase, part: TensorDictBase) -> Any:
    """Return the outcome of an environment that is not stepped: its root entries, and zeros for what is not there."""
    outcome: Any = env.fake_tensordict().get("next")
    for key in leaf_keys(outcome):
        old = None if key in env.reward_keys else part.get(key, None)
        if old is not None and old.shape == outcome.get(key).shape:
            outcome.set(key, old)
    return outcome


def described(env: EnvBase) -> dict[str, Any]:
    """Batch size, device and specs of an environment, as `join_specs` reads them."""
    specs = {
        "observation": env.observation_spec_unbatched,
        "action": env.full_action_spec_unbatched,
        "reward": env.full_reward_spec_unbatched,
        "done": env.done_spec_unbatched,
        "state": env.state_spec_unbatched,
    }
    return {"batch_size": env.batch_size, "device": env.device, "specs": specs}


def common_device(found: Iterable[Mapping[str, Any]], owner: str) -> torch.device | None:
    """Return the device of different environments if they have one, else None.

    Raises:
        SpecError: If there are two, which a lazy stack cannot have.
    """
    devices = {one["device"] for one in found}
    if len(devices - {None}) > 1:
        raise SpecError(
            f"{owner}: environments whose specs differ must be on one device, and are on"
            f" {', '.join(sorted(map(str, devices)))}: create them there"
        )
    return devices.pop() if len(devices) == 1 else None


def lazy_rows(rows: Sequence[Any]) -> Any:
    """Return the lazy stack of TensorDicts, without a device if they do not have the same."""
    if any(row.device != rows[0].device for row in rows):
        rows = [row.copy().clear_device_() for row in rows]
    return lazy_stack(list(rows))


def join_specs(found: Sequence[Mapping[str, Any]], starts: Sequence[int], owner: str) -> tuple[dict[str, Any], str]:
    """Return the batch size and specs of environments as those of one batch, and how the specs of two of them differ.

    Where bounds of observations, rewards or states differ, those of the batch contain them all.

    Args:
        found: Batch size and specs of environments, or of batches of alike ones.
        starts: Number of the first environment of each.
        owner: Name of the component in messages.

    Returns:
        The batch size and specs, and an empty text; or, if keys, shapes, dtypes, kinds of specs, or bounds of actions
        differ, those of the first and a text that names the environments and the entries.

    Raises:
        SpecError: If batch sizes differ.
    """
    joined = dict(found[0])
    for number, other in zip(starts[1:], found[1:], strict=True):
        if other["batch_size"] != joined["batch_size"]:
            raise SpecError(
                f"{owner}: environment {number} has batch size {tuple(other['batch_size'])}, environment 0"
                f" {tuple(joined['batch_size'])}"
            )
    for number, other in zip(starts[1:], found[1:], strict=True):
        specs: dict[str, Composite] = {}
        for role, expected in joined["specs"].items():
            got = other["specs"][role]
            specs[role], lines = (expected, []) if got == expected else _join(expected, got, number, role)
            if lines:
                differ = f"the {role} specs of environments 0 and {number} differ:\n" + "\n".join(lines)
                return dict(found[0]), differ
        joined["specs"] = specs
    return joined, ""


def _join(expected: Composite, got: Composite, number: int, role: str) -> tuple[Composite, list[str]]:
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
    return joined, lines


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


class MemberView(EnvBase):
    """One environment of a batch of different ones, whose resets and steps leave the others as they are.

    Args:
        parent: Batch, which must stay open; closing the view does not close it.
        number: Number of the environment.
        specs: Result of `described` for it.
    """

    def __init__(self, parent: MembersBase, number: int, specs: Mapping[str, Any]) -> None:
        super().__init__(batch_size=specs["batch_size"], device=parent.device)
        self._parent, self._number = parent, number
        self._rl.rename(f"{type(parent).__name__}[{number}]")
        for role, spec in specs["specs"].items():
            setattr(self, f"{role}_spec", spec)
        self._rl.legal_actions = MemberView._legal_actions

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        root = None if tensordict is None else partial_root(self, tensordict)
        return self._parent._run_members("reset", {self._number: root})[self._number]

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        root = state_root(self, tensordict)
        return self._parent._run_members("reset", {self._number: root}, set_state=True)[self._number]

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._parent._run_members("step", {self._number: tensordict.copy()})[self._number]

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self._parent._set_options(options)

    def _legal_actions(self) -> dict[NestedKey, Tensor]:
        return self._parent._member_masks(self._number)

    def update_masks(self) -> None:
        """Give the action spec the masks of legal actions that the environment has."""
        self._rl.update_masks(self, look=True)

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        return self._parent.set_member_seed(self._number, seed, static_seed=static_seed)

    def __repr__(self) -> str:
        return f"MemberView({self._parent!r}, {self._number})"


def view_of(parent: MembersBase, index: Any) -> EnvBase:
    """Return a view of some environments of a batch, with the batch dimension unless `index` is an integer."""
    members = parent._rl.members
    if members and isinstance(index, int) and -len(members) <= index < len(members):
        return MemberView(parent, index % len(members), described(members[index]))
    return EnvView(parent, index)


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
        self._parent = parent
        self._index: Any = chosen.tolist() if chosen.ndim else int(chosen)
        if parent._rl.members:
            members = [parent._rl.members[number] for number in self._index]
            self._rl.stack_members(members, parent._rl.specs.difference)
            return
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

    def _run_members(
        self,
        method: str,
        parts: Mapping[int, Any],
        *,
        set_state: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> dict[int, TensorDictBase]:
        chosen = {self._index[i]: part for i, part in parts.items()}
        rows = self._parent._run_members(method, chosen, set_state=set_state, options=options)
        return {i: rows[self._index[i]] for i in parts}

    def _member_masks(self, number: int) -> dict[NestedKey, Tensor]:
        return self._parent._member_masks(self._index[number])

    def _legal_actions(self) -> dict[NestedKey, Tensor]:
        return {key: mask[self._index] for key, mask in legal_masks(self._parent).items()}

    def _rows(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rl.tensordict({key: tensordict.get(key)[self._index] for key in leaf_keys(tensordict)})

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self._parent._set_options(options)

    def _member_numbers(self) -> Iterable[int]:
        return self._index if isinstance(self._index, list) else [self._index]

    def set_member_seed(self, number: int, seed: int, *, static_seed: bool = False) -> int:
        """Seed one environment of the batch; return the seed for the next one."""
        return self._parent.set_member_seed(number, seed, static_seed=static_seed)

    def __repr__(self) -> str:
        return f"EnvView({self._parent!r}, {self._index})"
