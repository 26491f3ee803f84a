"""Arguments that the networks share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rl.core.errors import SpecError

__all__ = ["Options", "is_list", "make_norm", "per_layer", "with_defaults"]

Options = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


def is_list(value: Any) -> bool:
    """Whether an argument holds one entry per layer: a sequence, or an array or tensor with a dimension."""
    return bool(getattr(value, "shape", ())) or (isinstance(value, Sequence) and not isinstance(value, str))


def make_norm(
    owner: str, norm_class: Any, kwargs: Mapping[str, Any] | None, width: int, device: torch.device | str | None
) -> nn.Module:
    """Make a normalization layer.

    The width goes to the one required argument of the class that `kwargs` leaves out: ``num_features`` of a batch
    norm, ``normalized_shape`` of a layer norm, ``num_channels`` of a group norm; a lazy class has none.

    Args:
        owner: the network that the message names.
        norm_class: a class of modules, or a function that makes one.
        kwargs: its other arguments.
        width: number of features or channels.
        device: where its parameters are made.

    Raises:
        SpecError: if more than one required argument is left out.
    """
    given = dict(kwargs or {})
    named = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(norm_class).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in named and p.name not in given]
    if len(needed) > 1:
        name = getattr(norm_class, "__name__", norm_class)
        raise SpecError(
            f"{owner}: {name} needs {[p.name for p in needed]}, of which only one can be the width:"
            " give the others in norm_kwargs"
        )
    if needed and needed[0].kind is inspect.Parameter.POSITIONAL_ONLY:
        return norm_class(width, **given).to(device)
    return norm_class(**{p.name: width for p in needed}, **given).to(device)


def per_layer(owner: str, name: str, given: Options, count: int) -> list[dict[str, Any]]:
    """Further arguments of each of `count` layers, of one mapping for all or a list with one for each.

    Raises:
        SpecError: if there is a list of another length.
    """
    if given is None or isinstance(given, Mapping):
        return [dict(given or {})] * count
    if len(given) != count:
        raise SpecError(f"{owner} got {len(given)} {name} for {count} layers: give one mapping, or one for each layer")
    return [dict(one or {}) for one in given]


def with_defaults(
    defaults: Mapping[str, Any], given: Mapping[str, Any] | None, device: torch.device | str | None
) -> dict[str, Any]:
    """The arguments of a part of a network: those that were given, defaults for the others.

    A list of widths makes the default depth void.
    """
    merged = {"device": device, **defaults, **(given or {})}
    if given is not None and "depth" not in given and is_list(given.get("num_cells")):
        merged.pop("depth", None)
    return merged
