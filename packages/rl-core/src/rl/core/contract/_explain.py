"""`explain` and `check_pipeline`: which component writes and reads each key of a pipeline, before it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from rl.core.contract._agents import Shapes
from rl.core.contract._contract import Contract, Key, MissingKey, missing_keys_message
from rl.core.errors import ContractError
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
    next_key,
    unwrap,
)
from rl.core.recurrent import states_of

__all__ = ["Explanation", "KeyUse", "check_pipeline", "contract_of", "explain"]

_WHERE = "this pipeline"
_OF_LOSSES = BUFFER_KEYS | {ADVANTAGE, VALUE_TARGET}  # what has such a name is no observation to a loss


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
        uses: by key, in the order in which the pipeline meets them.
        missing: the keys that are read before a component writes them.
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
    """What a component reads and writes.

    Args:
        component: has a ``contract``, or ``in_keys`` and ``out_keys``.

    Raises:
        ContractError: if it has neither.
    """
    if isinstance(component, type):
        raise ContractError(f"{component.__name__} is a class; what reads and writes is an object of it")
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
    """Print the writers and readers of each key of a pipeline, and refuse one that cannot run.

    Refused are also components that overwrite an observation of the environment, such as a network that writes the
    parameter ``loc`` where an observation has that name, and losses that would read an observation as an entry of
    their own, such as ``gamma``.

    Args:
        components: in the order in which data flows: an environment, a policy, an estimator, a loss; any of them
            may be left out. An environment is anything with the specs of `rl.core.interfaces.Env`. What a policy behind
            one carries from step to step counts as written by the collector.
        file: where the table goes; standard output if None.

    Returns:
        The table as an object.

    Raises:
        ContractError: if a key is read that nothing before wrote, or an observation is overwritten or read as
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
        ContractError: as of `explain`.
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
            states = getattr(component, "full_state_spec", None)  # a policy writes these, as the noise of gSDE
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
    """What a collector writes at the root for a policy that carries state, unless the environment does."""
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
    """A name for each component, by identity: its class, with a number if it is not the first of that class."""
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
