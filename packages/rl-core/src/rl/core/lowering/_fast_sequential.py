"""A network's layers without the machinery of `nn.Module.__call__`, which costs more than a small layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules import module as _module

__all__ = ["changed", "plain_network", "run_layers"]


def run_layers(layers: nn.Sequential, x: Tensor) -> Tensor:
    """What ``layers(x)`` of a plain `torch.nn.Sequential` gives, several microseconds earlier.

    A layer of a class that is not known here, one with hooks, and a compiled one are called as they are; so are all of
    them while anything is hooked onto every module, or the call is being compiled.

    Args:
        layers: any sequence of modules with one input and one output.
        x: the input of the first.

    Example:
        >>> layers = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
        >>> x = torch.ones(1, 3)
        >>> bool((run_layers(layers, x) == layers(x)).all())
        True
    """
    if torch.compiler.is_compiling() or _module._has_any_global_hook():
        for layer in layers:
            x = layer(x)
        return x
    ours = False  # whether `x` is an intermediate result of this loop
    for layer in layers._modules.values():
        kind, own = type(layer), layer.__dict__
        if kind not in _KNOWN or changed(own):
            x, ours = layer(x), False  # pyright: ignore[reportOptionalCall]
        elif kind is nn.Linear:
            parameters = own["_parameters"]  # reading them as attributes costs half of a small product
            x, ours = linear(x, parameters["weight"], parameters["bias"]), True
        elif ours and kind in _IN_PLACE and not x.requires_grad and not torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]  # documented
            # Memory that is new costs as much as half of the function. A traced graph must not depend on requires_grad.
            x = _IN_PLACE[kind](x)
        else:
            x, ours = layer.forward(x), False  # pyright: ignore[reportOptionalMemberAccess]
    return x


#: layers whose call does nothing but `forward`; a subclass, also a parametrized one, is another type
_KNOWN = frozenset({nn.Linear, nn.Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, nn.LayerNorm})
#: of these, functions that need no other memory than their input's
_IN_PLACE = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_, nn.Sigmoid: torch.sigmoid_}


def changed(own: dict[str, Any]) -> bool:
    """Whether a module was given hooks, a compiled call or another `forward`."""
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or own.get("_compiled_call_impl") is not None
    )


def plain_network(network: Any) -> Callable[..., Any]:
    """`network` itself, or a cheaper way to call it that gives the same."""
    kind = type(network)
    if getattr(kind, "forward", None) is not nn.Sequential.forward or kind.__call__ is not nn.Module.__call__:
        return network

    def call(x: Tensor) -> Tensor:
        return network(x) if changed(network.__dict__) else run_layers(network, x)

    return call
