"""One step of all layers, as policies run it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

__all__ = ["gru_step", "lstm_step", "with_restarts"]

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
        x = _dropped(module, layer, x)
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
        x = _dropped(module, layer, x)
        x = torch.gru_cell(x, h[:, layer], *_weights(module, layer))
        hs.append(x)
    return x, torch.stack(hs, 1)


def _dropped(module: nn.RNNBase, layer: int, x: Tensor) -> Tensor:
    return dropout(x, module.dropout) if layer and module.dropout and module.training else x


def _weights(module: nn.RNNBase, layer: int) -> list[Any]:
    found = module.__dict__["_parameters"]  # attribute access costs a tenth of a small step
    names = [f"{stem}{layer}" for stem in (_NAMES if module.bias else _NAMES[:2])]
    try:
        return [found[name] for name in names]
    except KeyError:  # parametrized or replaced
        return [getattr(module, name) for name in names]
