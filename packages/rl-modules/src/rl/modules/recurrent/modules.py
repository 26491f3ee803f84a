"""Recurrent modules on TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import dropout

from rl.core import RecurrentOptions, State, load, recurrent_mode
from rl.core.arguments import as_integer, foreign_arguments, one_of
from rl.core.backends import Backend
from rl.core.contract import Contract, Key, missing_key_message
from rl.core.errors import ArgumentError, BackendError, ContractError, ShapeError, SpecError
from rl.core.keys import IS_INIT, NEXT, NestedKey, as_tuple, key_str, leaf_keys, next_key
from rl.core.policy_program import ProgramBuilder, Register, reader
from rl.core.sequences import check_time_last
from rl.core.specs import Unbounded
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list
from rl.modules.recurrent._layout import Cell, Precision, concrete, rows_of
from rl.modules.recurrent.backends import Found, find_backend, is_offered
from rl.modules.recurrent.cells import GRU, LSTM, check_forward

__all__ = ["GRUModule", "LSTMModule"]


def recurrent_keys(
    owner: str,
    parts: Sequence[str],
    in_key: NestedKey | None,
    in_keys: Sequence[NestedKey] | None,
    out_key: NestedKey | None,
    out_keys: Sequence[NestedKey] | None,
) -> tuple[list[NestedKey], list[NestedKey]]:
    """Return all input keys and all output keys.

    Args:
        owner: Component that messages name.
        parts: Names of the states, ``("h", "c")``.
        in_key: Key of the input; states and ``is_init`` have their default keys.
        in_keys: Instead of `in_key`, keys of the input, the states, and of ``is_init`` if it is nested.
        out_key: Key of the output; states are written under ``next``.
        out_keys: Instead of `out_key`, keys of the output and the states.

    Raises:
        ArgumentError: if both or none of a pair are given, their number is wrong, or states are written elsewhere.
    """
    for one, many, names in ((in_key, in_keys, "in_key"), (out_key, out_keys, "out_key")):
        if (one is None) == (many is None):
            raise ArgumentError(f"{owner} takes either {names}= or {names}s=, got {one!r} and {many!r}")
    states: list[NestedKey] = [("recurrent_state", part) for part in parts]
    reads = [*key_list([in_key]), *states] if in_keys is None else key_list(in_keys)
    if in_keys is None and out_keys is not None and len(out_keys) == len(parts) + 1:
        states = [_root(key, owner) for key in key_list(out_keys)[1:]]
        reads = [reads[0], *states]
    if len(reads) == len(parts) + 1:
        reads = [*reads, IS_INIT]
    if len(reads) != len(parts) + 2 or as_tuple(reads[-1])[-1] != IS_INIT:
        raise ArgumentError(
            f"{owner} reads its input, {_list_states(parts)}, and {IS_INIT!r}: in_keys has {len(parts) + 1} or"
            f" {len(parts) + 2} entries, the last of the longer form ending in {IS_INIT!r}; got {in_keys}"
        )
    states = reads[1:-1]
    _check_distinct(owner, "in_keys", reads)
    writes = [*key_list([out_key]), *map(next_key, states)] if out_keys is None else key_list(out_keys)
    if writes[1:] != [next_key(state) for state in states]:
        expected = ", ".join(key_str(next_key(state)) for state in states)
        raise ArgumentError(
            f"{owner} reads its states under {', '.join(map(key_str, states))} and writes them under {expected}, which"
            f" move to the root of the next step; got out_keys {writes}"
        )
    if writes[0] in reads[1:]:
        raise ArgumentError(
            f"{owner} would write its output over {key_str(writes[0])}, which it reads as a state or ``is_init``: give"
            " the output another key with out_key="
        )
    return reads, writes


def _check_distinct(owner: str, what: str, keys: Sequence[NestedKey]) -> None:
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise ArgumentError(
                f"{owner}: {what} has {key_str(key)} twice: input and states need keys of their own, got {list(keys)}"
            )


def _root(key: NestedKey, owner: str) -> NestedKey:
    head, *rest = as_tuple(key)
    if head != NEXT or not rest:
        raise ArgumentError(f"{owner} writes states under {NEXT!r}, for the following step; got {key_str(key)}")
    return tuple(rest) if len(rest) > 1 else rest[0]


def _list_states(parts: Sequence[str]) -> str:
    return f"{'states' if len(parts) > 1 else 'the state'} {' and '.join(parts)}"


_FEW = 256
"""Number of flags up to which a Python list is searched faster than a tensor."""

_NAMES = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")


def with_restarts(states: tuple[Tensor, ...], is_init: Tensor) -> tuple[Tensor, ...]:
    """`states` ``[N, layers, H]``, zero where `is_init` ``[N, 1]`` is true."""
    if not _may_restart(is_init):
        return states
    restart = is_init.unsqueeze(-1)
    return tuple([state.masked_fill(restart, 0.0) for state in states])


def _may_restart(is_init: Tensor) -> bool:
    """Whether a flag may be true; not evaluated on other devices, which would synchronize, or in a graph."""
    if torch.compiler.is_compiling() or is_init.device.type != "cpu":
        return True
    if is_init.numel() <= _FEW:
        return [True] in is_init.tolist()
    return bool(is_init.any())


def lstm_step(module: nn.RNNBase, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Output ``[N, H]`` and states ``[N, layers, H]`` after one step; none of them shares memory."""
    if module.num_layers == 1:
        x, c = torch.lstm_cell(x, (h.squeeze(1), c.squeeze(1)), *_weights(module, 0))
        return x, torch.stack([x], 1), c.unsqueeze(1)
    hs: list[Tensor] = []
    cs: list[Tensor] = []
    for layer in range(module.num_layers):
        x = _drop(module, layer, x)
        x, cell = torch.lstm_cell(x, (h[:, layer], c[:, layer]), *_weights(module, layer))
        hs.append(x)
        cs.append(cell)
    return x, torch.stack(hs, 1), torch.stack(cs, 1)


def gru_step(module: nn.RNNBase, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Output ``[N, H]`` and state ``[N, layers, H]`` after one step; they share no memory."""
    if module.num_layers == 1:
        x = torch.gru_cell(x, h.squeeze(1), *_weights(module, 0))
        return x, torch.stack([x], 1)
    hs: list[Tensor] = []
    for layer in range(module.num_layers):
        x = _drop(module, layer, x)
        x = torch.gru_cell(x, h[:, layer], *_weights(module, layer))
        hs.append(x)
    return x, torch.stack(hs, 1)


def _drop(module: nn.RNNBase, layer: int, x: Tensor) -> Tensor:
    return dropout(x, module.dropout) if layer and module.dropout and module.training else x


def _weights(module: nn.RNNBase, layer: int) -> list[Any]:
    found = module.__dict__["_parameters"]  # attribute access costs a tenth of a small step
    names = [f"{stem}{layer}" for stem in (_NAMES if module.bias else _NAMES[:2])]
    try:
        return [found[name] for name in names]
    except KeyError:  # parametrized or replaced
        return [getattr(module, name) for name in names]


_CARRIED = (
    "A Collector writes it for a policy that is a module (a function around one hides it: pass the module itself, or"
    " give the function states = rl.core.states_of(module)); in a loop of your own the transform of"
    " make_tensordict_primer() does. A buffer, a transform or a select() that removes keys must keep it."
)
_MARKED = (
    "It marks the first step of each trajectory, and of each slice: a Collector writes it for a recurrent policy that"
    " is a module, in an environment the transform InitTracker(), in a buffer SliceSampler."
)

_assert_async: Any = torch._assert_async  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  the check that a graph keeps


class RecurrentModule(TensorDictModuleBase):
    """Base of `LSTMModule` and `GRUModule`, which define `cell`, `parts` and `_advance`."""

    cell: ClassVar[Cell]
    parts: ClassVar[tuple[str, ...]]
    _advance: ClassVar[Callable[..., tuple[Tensor, ...]]]

    n_agents: int | None = None

    def __init__(
        self,
        network: nn.RNNBase,
        in_key: NestedKey | None,
        in_keys: Sequence[NestedKey] | None,
        out_key: NestedKey | None,
        out_keys: Sequence[NestedKey] | None,
        recurrent_backend: str,
        recurrent_recompute: Literal["none", "full"],
        recurrent_compute_dtype: torch.dtype | None,
        recurrent_matmul_precision: Precision | None,
        default_recurrent_mode: bool | None,  # noqa: FBT001
    ) -> None:
        super().__init__()
        owner = self._owner
        reads, writes = recurrent_keys(owner, self.parts, in_key, in_keys, out_key, out_keys)
        one_of(recurrent_recompute, owner, "recurrent_recompute", ("none", "full"))
        one_of(default_recurrent_mode, owner, "default_recurrent_mode", (True, False, None))
        if recurrent_compute_dtype is not None and not getattr(recurrent_compute_dtype, "is_floating_point", False):
            raise ArgumentError(
                f"{owner}: recurrent_compute_dtype is a floating torch.dtype or None, got {recurrent_compute_dtype!r}"
            )
        concrete(recurrent_matmul_precision)
        self.add_module(self.cell, network)
        self.in_keys: list[Any] = reads
        self.out_keys: list[Any] = writes
        self.recurrent_backend = recurrent_backend
        self.recurrent_recompute: Literal["none", "full"] = recurrent_recompute
        self.recurrent_compute_dtype = recurrent_compute_dtype
        self.recurrent_matmul_precision: Precision | None = recurrent_matmul_precision
        self.default_recurrent_mode = default_recurrent_mode
        self._found: dict[str, Found] = {}
        self._look_up(strict=True)

    @property
    def network(self) -> nn.RNNBase:
        """The layers, an `LSTM` or a `GRU`, which hold the weights."""
        return self.__dict__["_modules"][self.cell]

    @property
    def _weight(self) -> Tensor:
        return cast("Tensor", self.network.weight_hh_l0)

    @property
    def _owner(self) -> str:
        return str(type(self).__name__)

    @property
    def states(self) -> tuple[State, ...]:
        """Recurrent states, ``[*B, layers, hidden]`` each, zero before the first step."""
        network, owner = self.network, self._owner
        shape, dtype = (*self._agents, network.num_layers, network.hidden_size), self._weight.dtype
        return tuple(State(key, shape, dtype, 0.0, owner) for key in self.in_keys[1:-1])

    def _set_agents(self, n_agents: int | None) -> None:
        """Give input, states and output a dimension of agents."""
        self.n_agents = None if n_agents is None else as_integer(n_agents, self._owner, "n_agents", least=1)

    @property
    def _agents(self) -> tuple[int, ...]:
        """The dimension of agents, if there is one."""
        return () if self.n_agents is None else (self.n_agents,)

    @property
    def contract(self) -> Contract:
        """Keys read and written."""
        remedy = "Name the entry that the environment writes with in_key=, or rename it there."
        states = [Key(s.name, s.shape, "state before the step", s.dtype, remedy=_CARRIED) for s in self.states]
        written = [Key(next_key(s.name), s.shape, "state after it", s.dtype) for s in self.states]
        outside, inside = (
            () if isinstance(key, tuple) else self._agents for key in (self.in_keys[0], self.out_keys[0])
        )
        return Contract(
            (
                Key(self.in_keys[0], (*outside, self.network.input_size), "input of the network", remedy=remedy),
                *states,
                Key(self.in_keys[-1], (1,), "first step of a trajectory", torch.bool, remedy=_MARKED),
            ),
            (Key(self.out_keys[0], (*inside, self.network.hidden_size), "output of the last layer"), *written),
        )

    @property
    def backend(self) -> Backend:
        """Selected back end for sequences on the device of the weights, and the reason.

        Raises:
            BackendError: if the requested one does not support the device.
        """
        return self._backend_for(self._weight.device)[1]

    def make_tensordict_primer(self) -> Any:
        """Return the transform that writes the initial state at each reset, for a loop without a `Collector`.

        Raises:
            UnknownComponentError: if rl-envs is not installed.
        """
        primer = load("transform", "tensordict-primer")
        return primer({state.name: Unbounded(state.shape, dtype=state.dtype) for state in self.states})

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the output and the states after each step.

        Raises:
            ContractError: if a required key is absent, or time is not the last dimension of a sequence.
            ShapeError: if an entry has another shape.
            SpecError: if an entry has another dtype or device than the weights.
        """
        if not torch.compiler.is_compiling() and self._is_sequence():
            check_time_last(tensordict, self._owner)
        leaves: list[Any] = [tensordict.get(key, None) for key in self.in_keys]
        if any(leaf is None for leaf in leaves):
            leaves = self._add_initial_states(tensordict, leaves)
        for key, value in zip(self.out_keys_source, self._function(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a function of tensors; None if it has hooks or was overridden."""
        plain = type(self).forward is RecurrentModule.forward and self.out_keys == self.out_keys_source
        return TensorFunction(self._function, self.in_keys, self.out_keys) if plain and unhooked(self) else None

    def describe(self, builder: ProgramBuilder, x: Register, *rest: Register) -> tuple[Register, ...]:
        """Append one step of the layers to a program; see `rl.core.policy_program`."""
        *states, is_init = rest
        network, owner = self.network, self._owner
        if self.n_agents is not None or network.dropout or self.default_recurrent_mode:
            builder.reject(f"{owner} has agents, dropout, or runs over sequences")
        stems = _NAMES if network.bias else _NAMES[:2]
        names = [f"{stem}{layer}" for layer in range(network.num_layers) for stem in stems]
        if any(name not in network._parameters for name in names):  # noqa: SLF001  parametrized or replaced
            builder.reject(f"{owner} has layers without parameters of their own")
        units, layers = network.hidden_size, network.num_layers
        builder.expect(x, network.input_size, owner)
        is_init.dtype = torch.bool
        builder.expect(is_init, 1, owner)
        for state in states:
            builder.expect(state, layers * units, owner)
            state.shape = (layers, units)
        y, *after = [Register(units), *(Register(layers * units, shape=(layers, units)) for _ in states)]
        tensors = [
            reader(network, f"{stem}{layer}") if stem in stems else lambda: None
            for layer in range(layers)
            for stem in _NAMES
        ]
        builder.add(self.cell, [x, *states, is_init], [y, *after], tensors, units=units, layers=layers)
        return (y, *after)

    @property
    def _function(self) -> Callable[..., tuple[Tensor, ...]]:
        """Function from the entries under `in_keys` to those under `out_keys`."""
        return self._compute if self.n_agents is None else self._compute_agents

    def _compute_agents(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *states, is_init = rest
        (n_agents,) = self._agents
        place = is_init.ndim - 1  # dimension of the agents, which become the first one of the batch
        if any(one.ndim <= place or one.shape[place] != n_agents for one in (x, *states)):
            found = ", ".join(
                f"{key_str(key)} {list(one.shape)}" for key, one in zip(self.in_keys, (x, *states), strict=False)
            )
            raise ShapeError(
                f"{self._owner} has n_agents={n_agents} after the batch {list(is_init.shape[:-1])}, got {found}"
            )
        moved = [one.movedim(place, 0) for one in (x, *states)]
        done = self._compute(*moved, is_init.expand(n_agents, *is_init.shape))
        return tuple(one.movedim(0, place) for one in done)

    def _compute(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *states, is_init = rest
        if self._is_sequence():
            if torch.is_autocast_enabled(x.device.type) and x.is_floating_point():
                x = x.to(self._weight.dtype)  # from the dtype of autocast to that of the states
            self._check(x, states, is_init)
            return self._sequence(x, states, is_init)
        one, other = states[0].shape, states[-1].shape
        fits = (
            len(one) == len(other) == 3 and one[1] == other[1] == self.network.num_layers
        )  # torch's cells would accept more layers
        if fits and x.dim() == 2 and is_init.shape == (len(x), 1):
            try:  # the path of a collector: the cell checks sizes itself
                return self._advance(self.network, x, *with_restarts(tuple(states), is_init))
            except RuntimeError:
                self._check(x, states, is_init)
                raise
        self._check(x, states, is_init)
        return self._step(x, states, is_init)

    def _is_sequence(self) -> bool:
        mode = recurrent_mode()
        return bool(self.default_recurrent_mode if mode is None else mode)

    def _step(self, x: Tensor, states: Sequence[Tensor], is_init: Tensor) -> tuple[Tensor, ...]:
        batch = is_init.shape[:-1]
        rows = (tensor.reshape(-1, *tensor.shape[len(batch) :]) for tensor in (x, *states, is_init))
        x, *states, is_init = rows
        done = self._advance(self.network, x, *with_restarts(tuple(states), is_init))
        return tuple(tensor.view(*batch, *tensor.shape[1:]) for tensor in done)

    def _sequence(self, x: Tensor, states: Sequence[Tensor], is_init: Tensor) -> tuple[Tensor, ...]:
        rows = rows_of(is_init, self._owner)
        stored = tuple(rows.split(state) for state in states)
        first = tuple(state[:, 0] for state in stored)
        backend = self._backend_for(x.device)[0]
        flags = rows.split(is_init).squeeze(-1)
        out, after = backend(self.network, rows.split(x), first, flags, stored, self._options())
        return tuple(rows.join(tensor) for tensor in (out, *after))

    def _options(self) -> RecurrentOptions:
        precision = concrete(self.recurrent_matmul_precision)
        return RecurrentOptions(self.recurrent_recompute, self.recurrent_compute_dtype, precision)

    def _check(self, x: Tensor, states: Sequence[Tensor], is_init: Tensor) -> None:
        network, batch = self.network, is_init.shape[:-1]
        if is_init.dtype is not torch.bool or is_init.shape[-1:] != (1,):
            self._raise_shape(self.in_keys[-1], is_init, "bool [*B, 1]")
        if x.shape != (*batch, network.input_size):
            self._raise_shape(
                self.in_keys[0], x, f"{[*batch, network.input_size]}, as is_init has the batch {list(batch)}"
            )
        size = (*batch, network.num_layers, network.hidden_size)
        for key, state in zip(self.in_keys[1:], states, strict=False):
            if state.shape != size:
                self._raise_shape(key, state, str(list(size)))
        dtype, device = self._weight.dtype, self._weight.device
        if any(tensor.device != device for tensor in (x, *states, is_init)):
            found = ", ".join(
                f"{key_str(key)} {t.device}" for key, t in zip(self.in_keys, (x, *states, is_init), strict=True)
            )
            raise SpecError(f"{self._owner}: the weights are on {device}, and {found}: move one with .to(device)")
        if x.dtype is not dtype or any(state.dtype is not dtype for state in states):
            found = ", ".join(str(tensor.dtype) for tensor in (x, *states))
            raise SpecError(
                f"{self._owner}: the weights are {dtype}, input and states {found}: convert the module with"
                " .to(dtype=...), or the data"
            )

    def _raise_shape(self, key: NestedKey, found: Tensor, expected: str) -> None:
        raise ShapeError(f"{self._owner}: {key_str(key)} is {found.dtype} {list(found.shape)}, expected {expected}")

    def _add_initial_states(self, td: TensorDictBase, leaves: list[Any]) -> list[Any]:
        """Complete entries by initial states if these are absent and each row begins with a reset.

        Raises:
            ContractError: if another key is absent.
        """
        x, *given, is_init = leaves
        keys = self.contract
        if x is None or is_init is None or any(state is not None for state in given):
            place = next(place for place, leaf in enumerate(leaves) if leaf is None)
            keys.refuse(td, self.in_keys[place] if is_init is not None else self.in_keys[-1], self)
        is_init = cast("Tensor", is_init)
        sequence, batch = self._is_sequence(), is_init.shape[:-1]
        first = is_init[..., :1, :] if sequence and len(batch) > 0 else is_init
        if torch.compiler.is_compiling():
            why = f"{self._owner}: steps that are not first ones need stored states"
            _assert_async(first.all(), why)
        elif not bool(first.all()):
            which = "the first step of a row" if sequence else "a step"
            raise ContractError(
                f"{missing_key_message(self._owner, keys.reads[1], leaf_keys(td))} It may be left out only where"
                f" every trajectory begins, and {key_str(self.in_keys[-1])} is false at {which}."
            )
        return [x, *(state.start(batch, is_init.device) for state in self.states), is_init]

    def _backend_for(self, device: torch.device) -> Found:
        found = self._found.get(device.type)
        if found is None:
            found = find_backend(self._owner, self.cell, self.recurrent_backend, device)
            self._found[device.type] = found
        return found

    def _look_up(self, *, strict: bool = False) -> None:
        """Select the back end now, outside of compiled functions; another device may follow later."""
        try:
            self._backend_for(self._weight.device)
        except BackendError:
            if strict and not is_offered(self.recurrent_backend):
                raise

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  as in torch.nn.Module
        moved = super()._apply(fn, recurse)
        self._look_up()
        return moved

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._look_up()


def _network(
    owner: str,
    kind: type[LSTM | GRU],
    given: nn.RNNBase | None,
    input_size: int | None,
    hidden_size: int | None,
    *,
    batch_first: bool,
    bidirectional: bool,
    proj_size: int = 0,
    **options: Any,
) -> nn.RNNBase:
    """Return `given` as layers of this package, or new layers of the given sizes.

    Raises:
        ArgumentError: if both or neither are given, or the layers cannot run step by step.
    """
    mode = kind.__name__
    if given is None:
        if input_size is None or hidden_size is None:
            raise ArgumentError(f"{owner} needs input_size= and hidden_size=, or {mode.lower()}= of torch.nn.{mode}")
        check_forward(owner, batch_first=batch_first, bidirectional=bidirectional, proj_size=proj_size)
        return kind(input_size, hidden_size, batch_first=True, **options)
    if input_size is not None or hidden_size is not None:
        raise ArgumentError(f"{owner} takes sizes or {mode.lower()}=, which has its own, not both")
    if not isinstance(given, nn.RNNBase) or given.mode != mode:
        raise ArgumentError(f"{owner}: {mode.lower()}= is a torch.nn.{mode}, got {type(given).__name__}")
    check_forward(
        f"{owner}({mode.lower()}=...)",
        batch_first=given.batch_first,
        bidirectional=given.bidirectional,
        proj_size=given.proj_size,
    )
    return given if isinstance(given, kind) else _adopt(kind, given)


def _adopt(kind: type[LSTM | GRU], given: nn.RNNBase) -> nn.RNNBase:
    """Return a layer with the parameters of `given` that can be compiled; `given` itself if it is parametrized."""
    parameters = dict(given.named_parameters())
    sizes = given.input_size, given.hidden_size, given.num_layers, given.bias
    ours = kind(*sizes, dropout=given.dropout, device="meta")
    if set(parameters) != {name for name, _ in ours.named_parameters()}:
        return given
    for name, parameter in parameters.items():
        setattr(ours, name, parameter)
    return ours.train(given.training)


@foreign_arguments()
class LSTMModule(RecurrentModule):
    """An LSTM that reads and writes named entries, step by step or complete sequences.

    In a policy (the default) it computes one step: it reads the state at the root, replaces it by zeros where
    ``is_init`` is true, and writes the state after the step under ``next``. Under ``set_recurrent_mode(True)``, as
    losses and value estimators run it, the last batch dimension is time: the state continues from step to step, and
    where ``is_init`` is true it is the one stored at the root of that step: zero at the start of a trajectory, the
    stored state at the start of a slice. States stored at other steps are not read.

    A `Collector` finds the states with `rl.core.states_of`, initializes and updates them and writes ``is_init``. In a
    loop of your own, the transforms `InitTracker` and `make_tensordict_primer` do.

    Args:
        input_size: Width of the input.
        hidden_size: Width of state and output.
        num_layers: Number of layers.
        bias: Whether the layers have biases.
        batch_first: True.
        dropout: Probability of dropping a feature between layers, in training.
        proj_size: Width of a projection: 0; other values raise.
        bidirectional: False; a policy cannot read the future.
        in_key: Key of the input; the states are under ``("recurrent_state", "h")`` and ``("recurrent_state", "c")``.
        in_keys: Instead of `in_key`, keys of input, h, c, and of ``is_init`` where it is nested.
        out_key: Key of the output; states are written under ``next`` where they are read at the root.
        out_keys: Instead of `out_key`, keys of the output, ``("next", h)`` and ``("next", c)``.
        device: Device of the weights.
        lstm: Layers of `torch.nn.LSTM` or `LSTM` whose weights are used, instead of sizes.
        recurrent_backend: Back end for sequences: ``"auto"``, ``"scan"``, ``"pad"``, ``"triton"``, or one of another
            plugin. `backend` reports the selection and the reason.
        recurrent_recompute: Whether the backward pass recomputes the gates, ``"full"``, or they are stored, ``"none"``.
        recurrent_compute_dtype: Dtype in which sequences are computed; that of the weights if None.
        recurrent_matmul_precision: Precision, see `set_recurrent_matmul_precision`; the global mode if None.
        default_recurrent_mode: True for sequences where no `set_recurrent_mode` is active.
        n_agents: Number of agents, which share the weights and have a state each: input, states and output then have
            this dimension after the batch, ``[*B, n_agents, ...]``.

    Shapes: input ``[*B, input_size]``, states ``[*B, num_layers, hidden_size]``, ``is_init`` ``[*B, 1]`` bool, output
    ``[*B, hidden_size]``. In sequence mode the last dimension of B is time; a single dimension holds
    concatenated trajectories.

    Raises:
        ArgumentError: if sizes are missing, `batch_first` is false, `bidirectional` or `proj_size` is set, or keys do
            not fit together.
        BackendError: if no plugin has the back end of that name.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.modules import set_recurrent_mode
        >>> lstm = LSTMModule(3, 4, in_key="observation", out_key="features")
        >>> is_init = torch.tensor([True, False]).expand(5, 2).unsqueeze(-1)
        >>> td = TensorDict(observation=torch.zeros(5, 2, 3), is_init=is_init, batch_size=[5, 2])
        >>> with set_recurrent_mode(True):
        ...     td = lstm(td)
        >>> td["features"].shape, td["next", "recurrent_state", "c"].shape
        (torch.Size([5, 2, 4]), torch.Size([5, 2, 1, 4]))
    """

    cell = "lstm"
    parts = ("h", "c")
    _advance = staticmethod(lstm_step)

    def __init__(  # noqa: PLR0913  the arguments that users of TorchRL know
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,  # noqa: FBT001, FBT002
        batch_first: bool = True,  # noqa: FBT001, FBT002
        dropout: float = 0.0,
        proj_size: int = 0,
        bidirectional: bool = False,  # noqa: FBT001, FBT002
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | None = None,
        lstm: nn.RNNBase | None = None,
        recurrent_backend: str = "auto",
        recurrent_recompute: Literal["none", "full"] = "none",
        recurrent_compute_dtype: torch.dtype | None = None,
        recurrent_matmul_precision: Precision | None = None,
        default_recurrent_mode: bool | None = None,
        n_agents: int | None = None,
    ) -> None:
        network = _network(
            "LSTMModule",
            LSTM,
            lstm,
            input_size,
            hidden_size,
            batch_first=batch_first,
            bidirectional=bidirectional,
            proj_size=proj_size,
            num_layers=num_layers,
            bias=bias,
            dropout=dropout,
            device=device,
        )
        super().__init__(
            network,
            in_key,
            in_keys,
            out_key,
            out_keys,
            recurrent_backend,
            recurrent_recompute,
            recurrent_compute_dtype,
            recurrent_matmul_precision,
            default_recurrent_mode,
        )
        self._set_agents(n_agents)


@foreign_arguments()
class GRUModule(RecurrentModule):
    """A GRU that reads and writes named entries, step by step or complete sequences.

    See `LSTMModule`; there is one state, ``("recurrent_state", "h")``,
    and no projection; `in_keys` are the input, h, and ``is_init`` where it is nested, `out_keys` the output and
    ``("next", h)``; `gru` is a `torch.nn.GRU` or `GRU` whose weights to use.

    Example:
        >>> from tensordict import TensorDict
        >>> gru = GRUModule(3, 4, num_layers=2, in_key="observation", out_key="features")
        >>> [state.name for state in gru.states], gru.out_keys
        ([('recurrent_state', 'h')], ['features', ('next', 'recurrent_state', 'h')])
        >>> start = torch.ones(5, 1, dtype=torch.bool)
        >>> td = gru(TensorDict(observation=torch.zeros(5, 3), is_init=start, batch_size=[5]))
        >>> td["next", "recurrent_state", "h"].shape
        torch.Size([5, 2, 4])
    """

    cell = "gru"
    parts = ("h",)
    _advance = staticmethod(gru_step)

    def __init__(  # noqa: PLR0913  the arguments that users of TorchRL know
        self,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        bias: bool = True,  # noqa: FBT001, FBT002
        batch_first: bool = True,  # noqa: FBT001, FBT002
        dropout: float = 0.0,
        bidirectional: bool = False,  # noqa: FBT001, FBT002
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | None = None,
        gru: nn.RNNBase | None = None,
        recurrent_backend: str = "auto",
        recurrent_recompute: Literal["none", "full"] = "none",
        recurrent_compute_dtype: torch.dtype | None = None,
        recurrent_matmul_precision: Precision | None = None,
        default_recurrent_mode: bool | None = None,
        n_agents: int | None = None,
    ) -> None:
        network = _network(
            "GRUModule",
            GRU,
            gru,
            input_size,
            hidden_size,
            batch_first=batch_first,
            bidirectional=bidirectional,
            num_layers=num_layers,
            bias=bias,
            dropout=dropout,
            device=device,
        )
        super().__init__(
            network,
            in_key,
            in_keys,
            out_key,
            out_keys,
            recurrent_backend,
            recurrent_recompute,
            recurrent_compute_dtype,
            recurrent_matmul_precision,
            default_recurrent_mode,
        )
        self._set_agents(n_agents)
