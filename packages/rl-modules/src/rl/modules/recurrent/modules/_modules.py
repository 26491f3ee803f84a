"""`LSTMModule` and `GRUModule`: recurrent layers that read and write named entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.modules import _foreign
from rl.modules.recurrent._precision import Precision
from rl.modules.recurrent.cells._cells import GRU, LSTM, check_forward
from rl.modules.recurrent.modules._base import RecurrentModule
from rl.modules.recurrent.modules._step import gru_step, lstm_step

__all__ = ["GRUModule", "LSTMModule"]


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
    """The given layers, or new ones of the given sizes.

    Raises:
        SpecError: if both or neither are given, or the layers cannot run step by step.
    """
    mode = kind.__name__
    if given is None:
        if input_size is None or hidden_size is None:
            raise SpecError(f"{owner} needs input_size= and hidden_size=, or {mode.lower()}= with a torch.nn.{mode}")
        check_forward(owner, batch_first=batch_first, bidirectional=bidirectional, proj_size=proj_size)
        return kind(input_size, hidden_size, batch_first=True, **options)
    if input_size is not None or hidden_size is not None:
        raise SpecError(f"{owner} takes sizes or {mode.lower()}=, which has its own, not both")
    if not isinstance(given, nn.RNNBase) or given.mode != mode:
        raise SpecError(f"{owner}: {mode.lower()}= is a torch.nn.{mode}, got {type(given).__name__}")
    check_forward(
        f"{owner}({mode.lower()}=...)",
        batch_first=given.batch_first,
        bidirectional=given.bidirectional,
        proj_size=given.proj_size,
    )
    return given if isinstance(given, kind) else _adopted(kind, given)


def _adopted(kind: type[LSTM | GRU], given: nn.RNNBase) -> nn.RNNBase:
    """A layer with the parameters of `given` that can be compiled; `given` itself if it is parametrized."""
    parameters = dict(given.named_parameters())
    sizes = given.input_size, given.hidden_size, given.num_layers, given.bias
    ours = kind(*sizes, dropout=given.dropout, device="meta")
    if set(parameters) != {name for name, _ in ours.named_parameters()}:
        return given
    for name, parameter in parameters.items():
        setattr(ours, name, parameter)
    return ours.train(given.training)


@_foreign.recurrent_module
class LSTMModule(RecurrentModule):
    """An LSTM that reads and writes named entries, step by step or whole sequences.

    In a policy (the default) it computes one step: it reads the state at the root, replaces it by zeros where
    ``is_init`` is true, and writes the state after the step under ``next``. Under ``set_recurrent_mode(True)``, as
    losses and value estimators run it, the last batch dimension is time: the state continues from step to step, and
    where ``is_init`` is true it is the one stored at the root of that step: zero at the start of a trajectory, the
    stored state at the start of a slice. States stored at other steps are not read.

    A `Collector` finds the states with `rl.core.states_of`, initializes and updates them and writes ``is_init``. In a
    loop of your own, the transforms `InitTracker` and `make_tensordict_primer` do.

    Args:
        input_size: width of the input.
        hidden_size: width of state and output.
        num_layers: number of layers.
        bias: whether the layers have biases.
        batch_first: True.
        dropout: probability between layers, in training.
        proj_size: 0; others are refused.
        bidirectional: False; a policy cannot read the future.
        in_key: of the input; the states are under ``("recurrent_state", "h")`` and ``("recurrent_state", "c")``.
        in_keys: instead, of input, h, c, and of ``is_init`` where it is nested.
        out_key: of the output; states are written under ``next`` where they are read at the root.
        out_keys: instead, of the output, ``("next", h)`` and ``("next", c)``.
        device: of the weights.
        lstm: a `torch.nn.LSTM` or `LSTM` whose weights to use, instead of sizes.
        recurrent_backend: back end for sequences: ``"auto"``, ``"scan"``, ``"pad"``, ``"triton"``, or one of another
            plugin. `backend` reports the selection and the reason.
        recurrent_recompute: ``"full"`` recomputes the gates in the backward pass instead of keeping them.
        recurrent_compute_dtype: dtype of computation of sequences; that of the weights if None.
        recurrent_matmul_precision: see `set_recurrent_matmul_precision`; the global mode if None.
        default_recurrent_mode: True for sequences where no `set_recurrent_mode` is active.
        n_agents: number of agents, which share the weights and have a state each: input, states and output then have
            this dimension after the batch, ``[*B, n_agents, ...]``.

    Shapes: input ``[*B, input_size]``, states ``[*B, num_layers, hidden_size]``, ``is_init`` ``[*B, 1]`` bool, output
    ``[*B, hidden_size]``. In sequence mode the last dimension of B is time; a single dimension holds
    concatenated trajectories.

    Raises:
        SpecError: if sizes are missing, `batch_first` is false, or `bidirectional` or `proj_size` is set.
        ContractError: if keys do not fit together.
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


@_foreign.recurrent_module
class GRUModule(RecurrentModule):
    """A GRU that reads and writes named entries, step by step or whole sequences.

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
