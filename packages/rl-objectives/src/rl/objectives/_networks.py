"""Calls of networks on tensors by key, without writing into the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import CompositeDistribution
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import as_integer
from rl.core.contract import Key
from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import IS_INIT, NestedKey, as_tuple, key_str, nearest, next_key, unwrap
from rl.core.recurrent import State, declared_states, set_recurrent_mode, states_of
from rl.core.tensor_functions import DistributionFunction, TensorFunction, as_distribution_function, as_function

Entries = Mapping[NestedKey, Tensor]


_STATE_REMEDY = (
    "It is a recurrent state: collect with the module that writes it, not with a function around it, and keep it in"
    " select, exclude, transforms and storages. For a recurrent critic of its own, collect with"
    " TensorDictSequential(actor, critic)"
)
_INIT_REMEDY = (
    "A Collector writes it for a recurrent policy, the transform InitTracker in an environment, SliceSampler in a"
    " replay buffer"
)


class KeyMismatchError(ContractError):
    """A network writes another key than the one that is read; ``set_keys`` may still name it."""


def _keys(module: Any, what: str) -> list[NestedKey]:
    keys = getattr(module, what, None)
    if keys is None:
        raise ContractError(
            f"{type(module).__name__} has no {what}, so its keys are unknown: wrap it in"
            " tensordict.nn.TensorDictModule(network, in_keys=[...], out_keys=[...])"
        )
    return [unwrap(key) for key in keys]


def _as_tensordict(keys: Sequence[NestedKey], leaves: Sequence[Tensor], batch_size: torch.Size) -> TensorDict:
    td = TensorDict({}, batch_size=batch_size)
    for key, leaf in zip(keys, leaves, strict=True):
        td.set(key, leaf)
    return td


def actor_keys(actor: Any) -> dict[str, Any]:
    """Return the keys under which an actor writes its action and the log-probability.

    Args:
        actor: Actor, with ``dist_sample_keys`` and ``log_prob_keys`` unless its keys are the default ones.

    Returns:
        The keys by the names ``action`` and ``sample_log_prob``; lists of keys for an actor with several actions, or
        with a composite distribution, which takes a TensorDict also if it has one part.
    """
    sampled = [unwrap(key) for key in getattr(actor, "dist_sample_keys", None) or ["action"]]
    scored = [unwrap(key) for key in getattr(actor, "log_prob_keys", None) or []]
    if len(scored) not in (1, len(sampled)):
        scored = [unwrap((*above, f"{last}_log_prob")) for *above, last in map(as_tuple, sampled)]
    return {
        "action": sampled[0] if len(sampled) == 1 and not _is_composite(actor) else sampled,
        "sample_log_prob": scored[0] if len(scored) == 1 else scored,
    }


def _is_composite(actor: Any) -> bool:
    """Return whether the distribution of an actor is a `CompositeDistribution`."""
    parts: Any = actor.modules() if isinstance(actor, nn.Module) else ()
    kinds = (getattr(part, "distribution_class", None) for part in parts)
    kinds = (kind.func if isinstance(kind, partial) else kind for kind in kinds)
    return any(isinstance(kind, type) and issubclass(kind, CompositeDistribution) for kind in kinds)


def input_key(name: NestedKey, states: Sequence[State], doc: str = "input of the network") -> Key:
    """Return an input in a contract, with the remedy for its absence.

    Args:
        name: Key of the input.
        states: Recurrent states of the network.
        doc: Description in the contract.
    """
    state = next((state for state in states if state.name == name), None)
    if state is not None:
        return Key(name, state.shape, f"state of {state.owner or 'the network'} before the step", remedy=_STATE_REMEDY)
    return Key(name, doc=doc, remedy=_INIT_REMEDY if states and _marks_starts(name) else "")


def _marks_starts(name: NestedKey) -> bool:
    return as_tuple(name)[-1] == IS_INIT


def joint_states(owner: str, *networks: Any) -> tuple[State, ...]:
    """Return the recurrent states of several networks; the states of a shared module appear once.

    Args:
        owner: Component that calls the networks on one batch, for messages.
        networks: Actors and critics.

    Raises:
        ContractError: If two modules with different weights have one state key, so that a batch can hold the states of
            only one.
    """
    owners: dict[NestedKey, nn.Module] = {}
    for network in networks:
        for part in network.modules() if isinstance(network, nn.Module) else ():
            for state in declared_states(part):
                other = owners.setdefault(state.name, part)
                if other is not part and {*map(id, other.parameters())} != {*map(id, part.parameters())}:
                    raise ContractError(
                        f"{owner}: {state.owner or type(part).__name__} of {type(network).__name__} carries"
                        f" {key_str(state.name)} from step to step, and so does {type(other).__name__} of another"
                        " network, with weights of its own: each would start from states of the other. Give one of"
                        " them other keys (in_keys=['observation', 'critic_h', 'critic_c']), or share one module"
                        " (ActorValueOperator)"
                    )
    return tuple(dict.fromkeys(state for network in networks for state in states_of(network)))


class NetworkCall:
    """A TensorDict module as a function of the tensors under its ``in_keys``.

    A recurrent module (`rl.core.states_of`) takes its batch as sequences, whose last batch dimension is time.

    Args:
        module: Module with ``in_keys`` and ``out_keys``.
        out_keys: Keys of the results, in the order of the results, by the name that ``set_keys`` has for them.
        constant: A network whose parameters get no gradient through calls of `module`, which may share them.

    Raises:
        ContractError: If the module has no ``in_keys``, or does not write one of `out_keys`.
    """

    __slots__ = ("_detached", "_fn", "_next_keys", "_positions", "_shared", "in_keys", "module", "out_keys", "states")

    def __init__(self, module: Any, out_keys: Mapping[str, NestedKey], constant: nn.Module | None = None) -> None:
        self.module, self.states = module, states_of(module)
        self.in_keys = _keys(module, "in_keys")
        self.out_keys = [unwrap(key) for key in out_keys.values()]
        written = _keys(module, "out_keys")
        for name, key in zip(out_keys, self.out_keys, strict=True):
            if key not in written:
                close = written[0] if len(written) == 1 else nearest(key, written)
                meant = "..." if close is None else key_str(close)
                raise KeyMismatchError(
                    f"{type(module).__name__} does not write {key_str(key)}, it writes"
                    f" {', '.join(map(key_str, written))}: give it that out_key, or call set_keys({name}={meant})"
                )
        lowered = as_function(module)
        if lowered is not None:
            self.in_keys = [unwrap(key) for key in lowered.in_keys]
            written = [unwrap(key) for key in lowered.out_keys]
        self._positions = {key: written.index(key) for key in (*self.out_keys, *map(next_key, self._named(written)))}
        self._next_keys = [next_key(key) for key in self.in_keys]
        self._shared = _shared_names(module, constant)
        self._detached = _FunctionalCall(module, self._run) if self._shared else None
        # The function of tensors, which `__call__` calls at once; None for modules that read a TensorDict.
        self._fn = lowered.fn if isinstance(lowered, TensorFunction) else lowered

    def _named(self, written: Sequence[NestedKey]) -> list[NestedKey]:
        """Return the keys of the states, each of which the module has to write under ``next``."""
        for state in self.states:
            if next_key(state.name) not in written:
                raise ContractError(
                    f"{type(self.module).__name__} has the recurrent state {key_str(state.name)} and does not write"
                    f" {key_str(next_key(state.name))}: keep it among its out_keys"
                )
        return [state.name for state in self.states]

    @property
    def outcome_keys(self) -> list[NestedKey]:
        """Those of `in_keys` that the environment writes under ``next``: all but states and ``is_init``."""
        if not self.states:
            return list(self.in_keys)
        carried = {state.name for state in self.states}
        return [key for key in self.in_keys if key not in carried and not _marks_starts(key)]

    def __call__(self, entries: Entries, batch_size: torch.Size) -> list[Tensor]:
        """Return the tensors under `out_keys`, from those under `in_keys` in `entries`."""
        if self.states or self._shared:
            with set_recurrent_mode(True) if self.states else nullcontext():
                return self._run_detached(entries, batch_size, self.out_keys)
        if self._fn is None:
            return self._run(entries, batch_size, self.out_keys)
        out = self._fn(*[entries[key] for key in self.in_keys])
        return [out[self._positions[key]] for key in self.out_keys]

    def _run_detached(self, entries: Entries, batch_size: torch.Size, wanted: Sequence[NestedKey]) -> list[Tensor]:
        """Return the tensors under `wanted`; shared parameters are constants."""
        if self._detached is None:
            return self._run(entries, batch_size, wanted)
        parameters = dict(self.module.named_parameters())
        constants = {f"network.{name}": parameters[name].detach() for name in self._shared}
        return torch.func.functional_call(self._detached, constants, (entries, batch_size, wanted))

    def after(self, entries: Entries, batch_size: torch.Size) -> list[Tensor]:
        """Return the tensors under `out_keys` of the outcome, from those below ``next``; for networks without state."""
        if self._fn is not None:
            out = self._fn(*[entries[key] for key in self._next_keys])
            return [out[self._positions[key]] for key in self.out_keys]
        after = zip(self.in_keys, self._next_keys, strict=True)
        return self._run({key: entries[following] for key, following in after}, batch_size, self.out_keys)

    def sequence(self, entries: Entries, batch_size: torch.Size) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors under `out_keys`, and the states after each step, in the order of `states`."""
        with set_recurrent_mode(True):
            wanted = [*self.out_keys, *[next_key(state.name) for state in self.states]]
            found = self._run_detached(entries, batch_size, wanted)
        return found[: len(self.out_keys)], found[len(self.out_keys) :]

    def following(self, entries: Entries, after: Sequence[Tensor], batch_size: torch.Size) -> list[Tensor]:
        """Return the tensors under `out_keys` for the outcome of each step, computed from the states after it.

        Args:
            entries: Entries with those under `in_keys`, and `outcome_keys` below ``next``.
            after: States from `sequence`.
            batch_size: Shape of the batch.
        """
        new = {state.name: value for state, value in zip(self.states, after, strict=True)}
        new |= {key: entries[next_key(key)] for key in self.outcome_keys}
        for key in self.in_keys:
            new.setdefault(key, torch.zeros_like(entries[key]))  # no next state is a first step
        with set_recurrent_mode(False):
            return self._run(new, batch_size, self.out_keys)

    def _run(self, entries: Entries, batch_size: torch.Size, wanted: Sequence[NestedKey]) -> list[Tensor]:
        leaves = [entries[key] for key in self.in_keys]
        if self._fn is not None:
            out = self._fn(*leaves)
            return [out[self._positions[key]] for key in wanted]
        td = self.module(_as_tensordict(self.in_keys, leaves, batch_size))
        return [td.get(key) for key in wanted]


class _FunctionalCall(nn.Module):
    """A call in the form that `torch.func.functional_call` takes."""

    def __init__(self, network: nn.Module, run: Callable[..., list[Tensor]]) -> None:
        super().__init__()
        self.network, self.run = network, run

    def forward(self, *args: Any) -> list[Tensor]:
        return self.run(*args)


def _shared_names(module: Any, other: nn.Module | None) -> list[str]:
    """Return the names of the parameters of `module` that are also parameters of `other`."""
    if other is None:
        return []
    shared = {*map(id, other.parameters())}
    return [name for name, parameter in module.named_parameters() if id(parameter) in shared]


class ActorCall:
    """An actor as a function from the tensors under its ``in_keys`` to its action distribution.

    A recurrent actor takes its batch as sequences, as in `NetworkCall`.

    Args:
        actor: Actor with ``in_keys`` and ``get_dist``.

    Raises:
        ContractError: If it has no ``get_dist``.
    """

    __slots__ = ("_fn", "actor", "in_keys", "states")

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.states = states_of(actor)
        # A composite distribution reads a complete group, of which the network before it writes the entries.
        groups = {as_tuple(key)[:end] for key in getattr(actor, "out_keys", ()) for end in range(1, len(as_tuple(key)))}
        self.in_keys = [key for key in _keys(actor, "in_keys") if as_tuple(key) not in groups]
        lowered = as_distribution_function(actor)
        if lowered is not None and any(as_tuple(key) in groups for key in lowered.in_keys):
            lowered = None
        if lowered is not None:
            self.in_keys = [unwrap(key) for key in lowered.in_keys]
        elif not callable(getattr(actor, "get_dist", None)):
            raise ContractError(
                f"{type(actor).__name__} has no get_dist, so it has no action distribution: build the actor"
                " as a ProbabilisticTensorDictSequential"
            )
        self._fn = lowered.fn if isinstance(lowered, DistributionFunction) else lowered

    def __call__(self, entries: Entries, batch_size: torch.Size) -> Distribution:
        """Return the distribution of actions, from the tensors under `in_keys` in `entries`."""
        leaves = [entries[key] for key in self.in_keys]
        if self._fn is not None and not self.states:
            return self._fn(*leaves)
        with set_recurrent_mode(True) if self.states else nullcontext():
            if self._fn is not None:
                return self._fn(*leaves)
            return self.actor.get_dist(_as_tensordict(self.in_keys, leaves, batch_size))


class HeadCall:
    """The last module of an actor as a function from the parameters of its distribution to the distribution.

    Args:
        actor: A `ProbabilisticTensorDictSequential`.

    Raises:
        ContractError: If its last module has no ``get_dist``, or the parameters' keys are not among its ``out_keys``.
    """

    __slots__ = ("head", "in_keys")

    def __init__(self, actor: Any) -> None:
        parts: Any = getattr(actor, "module", None)
        self.head: Any = parts[-1] if isinstance(parts, nn.ModuleList) else None
        starts = [as_tuple(key) for key in getattr(self.head, "in_keys", ())]
        written = list(dict.fromkeys(unwrap(key) for key in getattr(actor, "out_keys", ())))
        self.in_keys = [key for key in written if any(as_tuple(key)[: len(start)] == start for start in starts)]
        if not self.in_keys or not callable(getattr(self.head, "get_dist", None)):
            raise ContractError(
                f"{type(actor).__name__} does not write the parameters of its distribution: build the actor as a"
                " ProbabilisticTensorDictSequential that keeps them among its out_keys"
            )

    def __call__(self, entries: Entries, batch_size: torch.Size) -> Distribution:
        """Return the distribution, from the tensors under `in_keys` in `entries`; no gradient reaches them."""
        leaves = [entries[key].detach() for key in self.in_keys]
        return self.head.get_dist(_as_tensordict(self.in_keys, leaves, batch_size))


class Ensemble(nn.Module):
    """Networks with the same keys as one, whose results are stacked: ``[n, *B, ...]``.

    Members are called one after the other: on a CPU that takes the time of a batched matrix product, and less than half
    that of `torch.vmap`.

    Args:
        networks: TensorDict modules with the same ``in_keys`` and ``out_keys``; or one, of which the others are copies
            with new initial parameters.
        count: Number of networks.
        owner: Loss, for messages.

    Raises:
        ContractError: If a network has no keys, or they differ.
        ArgumentError: If the number of networks is another, or parameters cannot be initialized again.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_action_value"])
        >>> twins = Ensemble(critic, 2, "SACLoss")
        >>> twins(TensorDict(observation=torch.ones(5, 3), batch_size=[5]))["state_action_value"].shape
        torch.Size([2, 5, 1])
    """

    def __init__(self, networks: nn.Module | Sequence[nn.Module], count: int, owner: str) -> None:
        super().__init__()
        as_integer(count, owner, "num_qvalue_nets", least=1)
        if isinstance(networks, nn.Module) and not isinstance(networks, nn.ModuleList):
            members = [networks, *(_with_new_parameters(networks, owner) for _ in range(count - 1))]
        else:
            members = list(networks)
        if len(members) != count:
            raise ArgumentError(
                f"{owner}: num_qvalue_nets must be the number of networks, got {count} for {len(members)}"
            )
        for member in members:
            if not hasattr(member, "in_keys") or not hasattr(member, "out_keys"):
                raise ContractError(
                    f"{owner} got a critic {type(member).__name__} without in_keys and out_keys: wrap it, as"
                    " TensorDictModule(network, in_keys=[...], out_keys=['state_action_value'])"
                )
        self.in_keys: list[NestedKey] = [unwrap(key) for key in members[0].in_keys]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues, reportArgumentType]
        self.out_keys: list[NestedKey] = [unwrap(key) for key in members[0].out_keys]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues, reportArgumentType]
        for member in members[1:]:
            keys = [[unwrap(key) for key in found] for found in (member.in_keys, member.out_keys)]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues, reportArgumentType]
            if keys != [self.in_keys, self.out_keys]:
                raise ContractError(
                    f"{owner} got critics with different keys: {keys} and {self.in_keys, self.out_keys}"
                )
        self.members = nn.ModuleList(members)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Return the stacked results, in a TensorDict without batch."""
        found = [member(tensordict.copy()) for member in self.members]
        return TensorDict({key: torch.stack([one.get(key) for one in found]) for key in self.out_keys})  # pyright: ignore[reportArgumentType]  # nested keys

    def lowered(self) -> TensorFunction | None:
        """Return the function of tensors, if each network has one."""
        parts = [as_function(member) for member in self.members]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or any(part.in_keys != known[0].in_keys for part in known):
            return None

        functions = [part.fn if isinstance(part, TensorFunction) else part for part in known]

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            return tuple([torch.stack(column) for column in zip(*[fn(*leaves) for fn in functions], strict=True)])

        return TensorFunction(call, known[0].in_keys, known[0].out_keys)


def _with_new_parameters(network: nn.Module, owner: str) -> nn.Module:
    """Return a copy whose layers are initialized again."""
    copied = deepcopy(network)
    for part in copied.modules():
        reset: Callable[[], Any] | None = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
        elif any(True for _ in part.parameters(recurse=False)):
            raise ArgumentError(
                f"{owner} copies its critic, and {type(part).__name__} has parameters and no reset_parameters(): pass a"
                " list of networks instead"
            )
    return copied


class _Parameters(nn.Module):
    """A network call as a module, whose parameters `torch.func.functional_call` replaces."""

    def __init__(self, call: NetworkCall) -> None:
        super().__init__()
        self.module = call.module
        self.call = call

    def forward(self, entries: Mapping[NestedKey, Tensor], size: torch.Size) -> list[Tensor]:
        return self.call(entries, size)


class FrozenCall:
    """A network call through which gradients reach the inputs, and no parameter.

    Args:
        call: Network call.
    """

    def __init__(self, call: NetworkCall) -> None:
        self._module = _Parameters(call)

    def __call__(self, entries: Mapping[NestedKey, Tensor], size: torch.Size) -> list[Tensor]:
        fixed = {name: parameter.detach() for name, parameter in self._module.named_parameters(remove_duplicate=False)}
        return torch.func.functional_call(self._module, fixed, (entries, size), tie_weights=False)
