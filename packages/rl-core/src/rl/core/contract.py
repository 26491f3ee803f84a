"""Contracts: which entries a component reads and writes, and the check of several in a row."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, NoReturn

from torch import nn

from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import (
    ADVANTAGE,
    BUFFER_KEYS,
    IS_INIT,
    NEXT,
    VALUE_TARGET,
    NestedKey,
    as_tuple,
    key_str,
    leaf_keys,
    nearest,
    next_key,
    unwrap,
)
from rl.core.recurrent import declared_states, states_of

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase
    from torch import Tensor

__all__ = [
    "Contract",
    "Explanation",
    "Key",
    "KeyUse",
    "MissingKey",
    "check_pipeline",
    "contract_of",
    "explain",
    "missing_key_message",
    "missing_keys_message",
]


@dataclass(frozen=True)
class Key:
    """One entry that a component reads or writes.

    Args:
        name: String or a tuple of strings.
        shape: Dimensions behind the batch, letters or numbers: ``("O",)``, ``(1,)``, ``()``; None if it
            is not known. Of an entry of a group of agents, ``("agents", "action")``, those behind the agents.
        doc: Description with unit or range.
        dtype: None if any.
        optional: Reader does without it.
        remedy: Remedy if nothing writes it, part of the error message.
        batched: Whether the batch stands in front of `shape`; false for the scalars of a loss.
    """

    name: NestedKey
    shape: tuple[str | int, ...] | None = None
    doc: str = ""
    dtype: torch.dtype | None = None
    optional: bool = False
    remedy: str = ""
    batched: bool = True

    def __post_init__(self) -> None:
        parts = (self.name,) if isinstance(self.name, str) else self.name
        if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, str) for part in parts):
            raise ArgumentError(f"a key is a string or a tuple of strings, got {self.name!r}")
        object.__setattr__(self, "name", unwrap(self.name))


@dataclass(frozen=True)
class MissingKey:
    """A key that is read and that nothing wrote before.

    Args:
        owner: Component that reads it.
        key: Key that is read.
        present: Keys that were written before.
    """

    owner: str
    key: Key
    present: tuple[NestedKey, ...]

    @property
    def hint(self) -> str:
        """The nearest key that exists, as a question; empty if none is near."""
        close = nearest(self.key.name, self.present)
        return f" Did you mean {key_str(close)}?" if close is not None else ""


def missing_key_message(owner: str, key: Key, present: Iterable[NestedKey], where: str = "this batch") -> str:
    """Return the sentence that names a missing key, its reader, the keys that are present, and the remedy."""
    return missing_keys_message([MissingKey(owner, key, tuple(present))], where)


def missing_keys_message(missing: Sequence[MissingKey], where: str = "this batch") -> str:
    """One message about one or several missing keys: a line for each reader and remedy, what is there once."""
    groups: dict[tuple[str, str, str], list[MissingKey]] = {}
    for one in missing:
        groups.setdefault((one.owner, one.hint, one.key.remedy), []).append(one)
    present = dict.fromkeys(one.present for one in missing)
    alone = len(groups) == 1
    lines: list[str] = []
    for (owner, hint, remedy), ones in groups.items():
        listed = f" ({_listed(ones[0].present)})" if alone or len(present) > 1 else ""
        names = " and ".join(key_str(one.key.name) for one in ones)
        lines.append(
            f"{owner} reads {names}, which nothing in {where} wrote{listed}.{hint}{f' {remedy}' if remedy else ''}"
        )
    if not alone and len(present) == 1:
        lines.append(f"({_listed(missing[0].present)})")
    return "\n".join(lines)


def _listed(present: Iterable[NestedKey]) -> str:
    return f"keys: {', '.join('.'.join(as_tuple(key)) for key in present) or 'none'}"


@dataclass(frozen=True)
class Contract:
    """Keys read and keys written, in the order in which they are documented.

    Args:
        reads: Keys that the component reads from its input.
        writes: Keys that it adds, or returns.

    Example:
        >>> contract = Contract(reads=(Key("reward", (1,)),), writes=(Key("advantage", (1,)),))
        >>> contract.rename({"reward": ("agents", "reward")}).in_keys
        [('agents', 'reward')]
    """

    reads: tuple[Key, ...] = ()
    writes: tuple[Key, ...] = ()
    _names: tuple[list[NestedKey], list[NestedKey]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for role, keys in (("reads", self.reads), ("writes", self.writes)):
            if not isinstance(keys, tuple) or not all(isinstance(key, Key) for key in keys):
                raise ArgumentError(f"{role} of a Contract is a tuple of Key objects, got {keys!r}")
        required = [key.name for key in self.reads if not key.optional]
        object.__setattr__(self, "_names", (required, [key.name for key in self.writes]))

    @property
    def in_keys(self) -> list[NestedKey]:
        """Names of the keys that must be there."""
        return list(self._names[0])

    @property
    def out_keys(self) -> list[NestedKey]:
        """Names of the keys that are written."""
        return list(self._names[1])

    def rename(self, names: Mapping[NestedKey, NestedKey]) -> Contract:
        """Return the same contract under other names.

        Raises:
            ContractError: If a name to be replaced is not in the contract.
        """
        known = {key.name for key in (*self.reads, *self.writes)}
        for old in names:
            if unwrap(old) not in known:
                close = nearest(old, known)
                hint = f"; did you mean {key_str(close)}?" if close is not None else ""
                raise ContractError(f"cannot rename {key_str(old)}: the contract has no such key{hint}")
        table = {unwrap(old): unwrap(new) for old, new in names.items()}

        def renamed(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            return tuple(replace(key, name=table.get(key.name, key.name)) for key in keys)

        return Contract(reads=renamed(self.reads), writes=renamed(self.writes))

    def read(self, td: TensorDictBase, owner: object) -> list[Tensor]:
        """Return the tensors under `in_keys`, in order.

        Raises:
            ContractError: If one is absent; the message names the key, the reader and the nearest key.
        """
        values: list[Any] = [td.get(name, None) for name in self._names[0]]
        for value, name in zip(values, self._names[0], strict=True):
            if value is None:
                self.refuse(td, name, owner)
        return values

    def refuse(self, td: TensorDictBase, name: NestedKey, owner: object) -> NoReturn:
        """Raise the error about the absent key `name`; it also names all others that are required and absent.

        Raises:
            ContractError: Always.
        """
        key = next((key for key in self.reads if key.name == name), Key(name))
        who = owner if isinstance(owner, str) else type(owner).__name__
        present = tuple(leaf_keys(td))
        others = [k for k in self.reads if k.name != name and not k.optional and td.get(k.name, None) is None]
        raise ContractError(missing_keys_message([MissingKey(who, k, present) for k in (key, *others)]))


_Shape = tuple[str | int, ...]


class Shapes:
    """Shapes of the entries of a pipeline, with the number of agents of each group.

    The specs of environments say what an entry is. Contracts of other components give entries of groups without the
    dimension of agents, recurrent states excepted.

    Args:
        envs: Environments of the pipeline.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self._known: dict[NestedKey, _Shape] = {}
        self._groups: dict[tuple[str, ...], int | None] = {}
        self._alone = not envs
        for env in envs:
            actions, rewards, flags = env.full_action_spec, env.full_reward_spec, env.full_done_spec
            specs = [env.observation_spec, getattr(env, "full_state_spec", None), actions, rewards, flags]
            dims = len(env.batch_size)
            shapes = {
                key: tuple(spec[key].shape[dims:]) for spec in specs if spec is not None for key in leaf_keys(spec)
            }
            self._known.update(shapes)
            outcome = {*leaf_keys(rewards), *leaf_keys(flags)}
            for group in {as_tuple(key)[:-1] for key in leaf_keys(actions)} - {()}:
                inside = {key: shape for key, shape in shapes.items() if as_tuple(key)[: len(group)] == group}
                first = {shape[:1] for shape in inside.values()}
                if len(first) == 1 and () not in first and all(len(inside[key]) > 1 for key in outcome & {*inside}):
                    (n,) = first.pop()
                    self._groups[group] = n if any(len(shape) > 1 for shape in inside.values()) else None

    def of(self, component: Any, contract: Contract) -> Contract:
        """Return the contract of a component, with the shapes of all agents; without those that are not known."""
        modules = component.modules() if isinstance(component, nn.Module) else [component]
        names = [state.name for module in modules for state in declared_states(module)]
        exact = {*names, *map(next_key, names)}
        groups = {self._group(key) for key in (*contract.reads, *contract.writes)}
        mixed = any(group in self._groups for group in groups)

        def shown(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            return tuple(
                key if key.name in exact else replace(key, shape=self._shape(key, mixed=mixed)) for key in keys
            )

        return Contract(shown(contract.reads), shown(contract.writes))

    def _group(self, key: Key) -> tuple[str, ...]:
        """Return the group of agents that a key is in; all that stands before its name where no environment says it."""
        path = _current(key.name)
        for group in self._groups:
            if path[: len(group)] == group:
                return group
        return path[:-1] if self._alone else ()

    def _shape(self, key: Key, *, mixed: bool) -> _Shape | None:
        """Shape of an entry, None if it is not known.

        Args:
            key: Key of a contract.
            mixed: Whether the component has entries of agents: those outside may be for each agent or for all.
        """
        if not key.batched:
            return key.shape
        if (known := self._known.get(unwrap(_current(key.name)))) is not None or key.shape is None:
            return known
        group = self._group(key)
        n = self._groups.get(group)
        if n is not None:
            return (n, *key.shape)
        return None if group or mixed else key.shape


def _current(name: NestedKey) -> tuple[str, ...]:
    """Return the key without ``next``."""
    path = as_tuple(name)
    return path[1:] if path[0] == NEXT else path


_WHERE = "this pipeline"
_OF_LOSSES = BUFFER_KEYS | {
    ADVANTAGE,
    VALUE_TARGET,
}  # losses read these names as their own entries


@dataclass
class KeyUse:
    """Row of the table: a key with its description, writers and readers."""

    name: NestedKey
    shape: tuple[str | int, ...] | None = None
    batched: bool = True
    dtype: str = ""
    writers: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)

    def row(self) -> tuple[str, str, str, str, str]:
        """Key, shape, dtype, writers, readers, as text."""
        shape = "?" if self.shape is None else "[" + ", ".join([*(["*B"] * self.batched), *map(str, self.shape)]) + "]"
        writers = ", ".join(self.writers) or "-"
        return (
            ".".join(as_tuple(self.name)),
            shape,
            self.dtype or "?",
            writers,
            ", ".join(self.readers) or "-",
        )


@dataclass
class Explanation:
    """What `explain` found; prints as a table.

    Args:
        uses: Uses by key, in the order of the pipeline.
        missing: Keys that are read before a component writes them.
        clashes: Messages about observations that a component overwrites, or reads as an entry of its own.
    """

    uses: dict[NestedKey, KeyUse] = field(default_factory=dict)
    missing: list[MissingKey] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    _observed: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False)

    @property
    def problems(self) -> list[str]:
        """One message for each missing key and each clash."""
        return [*(missing_keys_message([one], where=_WHERE) for one in self.missing), *self.clashes]

    def __str__(self) -> str:
        rows = [
            ("key", "shape", "dtype", "written by", "read by"),
            *(use.row() for use in self.uses.values()),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)

    def observes(self, env: str, names: Iterable[NestedKey]) -> None:
        """Note the observations of an environment, which no other component may write."""
        self._observed.update((as_tuple(name), env) for name in names)

    def check_clashes(self, owner: str, contract: Contract) -> None:
        """Note the observations that `owner` overwrites, and those that it reads as entries of its own."""
        for key in contract.writes:
            path = as_tuple(key.name)
            path = path[1:] if path[0] == NEXT else path
            clashes = [name for name in self._observed if name[: len(path)] == path[: len(name)]]
            if key.batched and clashes:
                self.clashes.append(
                    f"{owner} writes {key_str(key.name)} and would overwrite the observation {key_str(clashes[0])} of"
                    f" {self._observed[clashes[0]]}. Choose another key in out_keys, and where it is read, as"
                    " in_keys={parameter: key} of a ProbabilisticActor, or rename the observation with RenameTransform."
                )
        for key in contract.reads:
            if key.name in _OF_LOSSES and as_tuple(key.name) in self._observed:
                self.clashes.append(
                    f"{owner} reads {key_str(key.name)}{f' ({key.doc})' if key.doc else ''}, and"
                    f" {self._observed[as_tuple(key.name)]} has an observation of that name. Rename the observation"
                    " with RenameTransform, or the entry that is read with set_keys."
                )

    def writes(self, owner: str, key: Key) -> None:
        """Note that `owner` writes `key`."""
        use = self.uses.setdefault(key.name, KeyUse(key.name))
        self._learn(use, key)
        if owner not in use.writers:
            use.writers.append(owner)

    def reads(self, owner: str, key: Key) -> None:
        """Note that `owner` reads `key`, and that it is missing if no component wrote it so far."""
        use = self.uses.get(key.name)
        if use is None or not use.writers:
            if key.optional:
                return
            present = tuple(name for name, other in self.uses.items() if other.writers)
            self.missing.append(MissingKey(owner, key, present))
            use = self.uses.setdefault(key.name, KeyUse(key.name))
        self._learn(use, key)
        if owner not in use.readers:
            use.readers.append(owner)

    @staticmethod
    def _learn(use: KeyUse, key: Key) -> None:
        if key.shape is not None and (use.shape is None or any(isinstance(n, str) for n in use.shape)):
            use.shape, use.batched = key.shape, key.batched
        if key.dtype is not None and not use.dtype:
            use.dtype = str(key.dtype).removeprefix("torch.")


def contract_of(component: Any) -> Contract:
    """Return the contract of a component.

    Args:
        component: Object with a ``contract``, or ``in_keys`` and ``out_keys``.

    Raises:
        ContractError: If it has neither.
        ArgumentError: If it is a class.
    """
    if isinstance(component, type):
        raise ArgumentError(f"{component.__name__} is a class: pass an object of it, which reads and writes")
    own = getattr(component, "contract", None)
    if isinstance(own, Contract):
        return own
    if hasattr(component, "in_keys") and hasattr(component, "out_keys"):
        reads = tuple(Key(unwrap(key)) for key in component.in_keys)
        return Contract(reads, tuple(Key(unwrap(key)) for key in component.out_keys if key != "_"))  # "_": thrown away
    raise ContractError(
        f"{type(component).__name__} does not say what it reads and writes: give it a `contract`, or `in_keys`"
        " and `out_keys` (a TensorDictModule around it has both)"
    )


def explain(*components: Any, file: IO[str] | None = None) -> Explanation:
    """Print the writers and readers of each key of a pipeline, and reject one that cannot run.

    Rejected are also components that overwrite an observation of the environment, such as a network that writes the
    parameter ``loc`` where an observation has that name, and losses that would read an observation as an entry of
    their own, such as ``gamma``.

    Args:
        components: Components in the order of data: an environment, a policy, an estimator, a loss; any of them
            may be left out. An environment is anything with the specs of `rl.core.interfaces.Env`. What a policy behind
            one carries from step to step counts as written by the collector.
        file: File to which the table is printed; standard output if None.

    Returns:
        The table as an object.

    Raises:
        ContractError: If a key is read that nothing before wrote, or an observation is overwritten or read as
            something else. The table is printed first.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(torch.nn.Identity(), in_keys=["hidden"], out_keys=["action"])
        >>> encoder = TensorDictModule(torch.nn.Identity(), in_keys=[], out_keys=["hidden"])
        >>> table = explain(encoder, actor)
        key     shape  dtype  written by          read by
        ------  -----  -----  ------------------  ------------------
        hidden  ?      ?      TensorDictModule    TensorDictModule 2
        action  ?      ?      TensorDictModule 2  -
        >>> explain(actor)
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: TensorDictModule reads 'hidden', which nothing in this pipeline wrote ...
    """
    found = _trace(components)
    out = sys.stdout if file is None else file
    out.write(f"{found}\n")
    _raise_problems(found)
    return found


def check_pipeline(*components: Any) -> Explanation:
    """`explain` without the printing: what collectors, trainers and losses call once, at construction.

    Raises:
        ContractError: As of `explain`.
    """
    found = _trace(components)
    _raise_problems(found)
    return found


def _raise_problems(found: Explanation) -> None:
    missing = [missing_keys_message(found.missing, where=_WHERE)] if found.missing else []
    if missing or found.clashes:
        raise ContractError("\n".join([*missing, *found.clashes]))


def _trace(components: tuple[Any, ...]) -> Explanation:
    found = Explanation()
    names = _names(components)
    shapes = Shapes([one for one in components if _is_env(one)])
    waiting: Any = None
    for component in components:
        name = names[id(component)]
        if _is_env(component):
            waiting = component
            for key in _env_reset_keys(component):
                found.writes(f"{name}.reset", key)
            states = getattr(component, "full_state_spec", None)  # written by a policy, such as the noise of gSDE
            inputs = [] if states is None else leaf_keys(states)
            found.observes(name, [key for key in leaf_keys(component.observation_spec) if key not in inputs])
            continue
        waiting = _step_if_ready(found, waiting, names)
        if waiting is not None:
            _begin_states(found, component)
        contract = shapes.of(component, contract_of(component))
        found.check_clashes(name, contract)
        for key in contract.reads:
            found.reads(name, key)
        for key in contract.writes:
            found.writes(name, key)
    if waiting is not None and len(components) > 1:
        _env_step(found, waiting, names)
    return found


def _begin_states(found: Explanation, policy: Any) -> None:
    """List the entries that a collector writes at the root for a recurrent policy, unless the environment does."""
    states = states_of(policy)
    keys = [Key(state.name, state.shape, dtype=state.dtype) for state in states]
    for key in [*keys, Key(IS_INIT, (1,))] if states else []:
        if key.name not in found.uses:
            found.writes("Collector", key)


def _step_if_ready(found: Explanation, env: Any, names: dict[int, str]) -> Any:
    """Take the environment's step once every action is written; None then, else the environment."""
    if env is None:
        return None
    actions = [key.name for key in _env_action_keys(env)]
    if all(name in found.uses and found.uses[name].writers for name in actions):
        _env_step(found, env, names)
        return None
    return env


def _env_step(found: Explanation, env: Any, names: dict[int, str]) -> None:
    name = f"{names[id(env)]}.step"
    for key in _env_action_keys(env):
        found.reads(name, key)
    for key in _env_step_keys(env):
        found.writes(name, key)


def _is_env(component: Any) -> bool:
    if isinstance(component, type):
        return False
    return hasattr(component, "observation_spec") and hasattr(component, "full_action_spec")


def _names(components: tuple[Any, ...]) -> dict[int, str]:
    """Return a name for each component, by identity: its class, with a number if it is not the first of that class."""
    names: dict[int, str] = {}
    count: dict[str, int] = {}
    for component in components:
        if id(component) not in names:
            kind = type(component).__name__
            count[kind] = count.get(kind, 0) + 1
            names[id(component)] = kind if count[kind] == 1 else f"{kind} {count[kind]}"
    return names


def _keys_of(spec: Any, batch_dims: int) -> Iterator[Key]:
    for name in leaf_keys(spec):
        leaf = spec[name]
        yield Key(name, tuple(leaf.shape[batch_dims:]), dtype=leaf.dtype)


def _env_reset_keys(env: Any) -> Iterator[Key]:
    dims = len(env.batch_size)
    yield from _keys_of(env.observation_spec, dims)
    yield from _keys_of(env.full_done_spec, dims)
    state = getattr(env, "full_state_spec", None)
    if state is not None:
        yield from _keys_of(state, dims)


def _env_action_keys(env: Any) -> list[Key]:
    return list(_keys_of(env.full_action_spec, len(env.batch_size)))


def _env_step_keys(env: Any) -> Iterator[Key]:
    dims = len(env.batch_size)
    for spec in (env.observation_spec, env.full_reward_spec, env.full_done_spec):
        for key in _keys_of(spec, dims):
            yield Key(next_key(key.name), key.shape, dtype=key.dtype)
