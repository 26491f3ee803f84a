"""Base class of `LSTMModule` and `GRUModule`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl.core import RecurrentOptions, State, load, recurrent_mode
from rl.core.arguments import as_integer
from rl.core.backends import Backend
from rl.core.contract import Contract, Key, missing_key_message
from rl.core.errors import BackendError, ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, key_str, leaf_keys, next_key
from rl.core.lowering import Lowered, unhooked
from rl.core.sequences import check_time_last
from rl.core.specs import Unbounded
from rl.modules.recurrent._layout import rows_of
from rl.modules.recurrent._precision import Precision, concrete
from rl.modules.recurrent._weights import Cell
from rl.modules.recurrent.backends._select import Found, find_backend, is_offered
from rl.modules.recurrent.modules._keys import recurrent_keys
from rl.modules.recurrent.modules._step import with_restarts

__all__ = ["RecurrentModule"]

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
        if recurrent_recompute not in ("none", "full"):
            raise SpecError(f"{owner}: recurrent_recompute is 'none' or 'full', got {recurrent_recompute!r}")
        if default_recurrent_mode not in (None, True, False):
            raise SpecError(f"{owner}: default_recurrent_mode is True, False or None, got {default_recurrent_mode!r}")
        if recurrent_compute_dtype is not None and not getattr(recurrent_compute_dtype, "is_floating_point", False):
            raise SpecError(
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
        """The transform that writes the initial state at the start of an episode, for a loop without a `Collector`.

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
            leaves = self._completed(tensordict, leaves)
        for key, value in zip(self.out_keys_source, self._compute(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> Lowered | None:
        """The module as a function of tensors; None if it has hooks or was overridden."""
        plain = type(self).forward is RecurrentModule.forward and self.out_keys == self.out_keys_source
        return Lowered(self._compute, self.in_keys, self.out_keys) if plain and unhooked(self) else None

    def _compute(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        if self.n_agents is None:
            return self._of_one(x, *rest)
        *states, is_init = rest
        place = is_init.ndim - 1  # of the agents, which become the first dimension of the batch
        if any(one.ndim <= place or one.shape[place] != self.n_agents for one in (x, *states)):
            found = ", ".join(
                f"{key_str(key)} {list(one.shape)}" for key, one in zip(self.in_keys, (x, *states), strict=False)
            )
            raise ShapeError(
                f"{self._owner} has n_agents={self.n_agents} after the batch {list(is_init.shape[:-1])}, got {found}"
            )
        moved = [one.movedim(place, 0) for one in (x, *states)]
        done = self._of_one(*moved, is_init.expand(self.n_agents, *is_init.shape))
        return tuple(one.movedim(0, place) for one in done)

    def _of_one(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
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
            self._refuse(self.in_keys[-1], is_init, "bool [*B, 1]")
        if x.shape != (*batch, network.input_size):
            self._refuse(self.in_keys[0], x, f"{[*batch, network.input_size]}, as is_init has the batch {list(batch)}")
        size = (*batch, network.num_layers, network.hidden_size)
        for key, state in zip(self.in_keys[1:], states, strict=False):
            if state.shape != size:
                self._refuse(key, state, str(list(size)))
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

    def _refuse(self, key: NestedKey, found: Tensor, expected: str) -> None:
        raise ShapeError(f"{self._owner}: {key_str(key)} is {found.dtype} {list(found.shape)}, expected {expected}")

    def _completed(self, td: TensorDictBase, leaves: list[Any]) -> list[Any]:
        """The leaves, with initial states if they are absent and the state restarts at each first step.

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
