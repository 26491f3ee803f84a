"""From a network's last features to the parameters of a normal distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from rl.core.errors import ShapeError, SpecError

__all__ = ["NormalParamExtractor", "scale_mapping"]


def scale_mapping(name: str) -> Callable[[Tensor], Tensor]:
    """A function from real numbers to positive ones.

    Args:
        name: ``"exp"``, ``"softplus"``, ``"relu"``, ``"expln"``, ``"biased_softplus"`` (0 becomes 1),
            ``"biased_softplus_V"`` (0 becomes V) or ``"biased_softplus_V_M"`` (and nothing becomes less than M,
            otherwise 0.01).

    Raises:
        SpecError: if there is no such mapping.

    Example:
        >>> scale_mapping("biased_softplus_0.5")(torch.zeros(1))
        tensor([0.5000])
    """
    simple: dict[str, Callable[[Tensor], Tensor]] = {
        "exp": torch.exp,
        "softplus": softplus,
        "relu": torch.relu,
        "expln": _expln,
    }
    if name in simple:
        return simple[name]
    if not name.startswith("biased_softplus"):
        raise SpecError(f"no scale mapping is called {name!r}: use one of {[*simple, 'biased_softplus_1.0']}")
    try:
        given = [float(part) for part in name.removeprefix("biased_softplus").split("_") if part]
        bias, least = (*given, *(1.0, 0.01)[len(given) :])
    except ValueError:
        raise SpecError(f"expected biased_softplus_V or biased_softplus_V_M with numbers, got {name!r}") from None
    if not 0 <= least < bias:
        raise SpecError(f"{name!r}: the least value {least} must lie between 0 and the value at zero, {bias}")
    shift = math.log(math.expm1(bias - least))
    return partial(_biased_softplus, shift=shift, least=least)  # a closure could not be sent to a worker


def _biased_softplus(x: Tensor, shift: float, least: float) -> Tensor:
    return softplus(x + shift) + least


def _expln(x: Tensor) -> Tensor:
    """Exponential below zero, ``1 + log(1 + x)`` above: positive and growing slowly (van Hoof et al., 2017)."""
    return torch.where(x > 0, x.clamp_min(0).log1p() + 1, torch.where(x > 0, 0, x).exp())


class NormalParamExtractor(nn.Module):
    """Split the last dimension into means and standard deviations.

    Args:
        scale_mapping: how the second half becomes positive; see the function of that name.
        scale_lb: lower bound of the standard deviations.

    Shapes: ``[*B, 2 A]`` to ``loc`` and ``scale``, ``[*B, A]`` each.

    Raises:
        SpecError: if there is no such mapping, or `scale_lb` is negative.
        ShapeError: in the call, if the last dimension is odd.

    Example:
        >>> loc, scale = NormalParamExtractor()(torch.zeros(3, 4))
        >>> loc.shape, scale
        (torch.Size([3, 2]), tensor([[1., 1.],
                [1., 1.],
                [1., 1.]]))
    """

    def __init__(self, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4) -> None:
        super().__init__()
        if not scale_lb >= 0:
            raise SpecError(f"NormalParamExtractor got scale_lb={scale_lb}; it is at least 0")
        self.scale_mapping, self.scale_lb = scale_mapping, scale_lb
        self._mapping = _mapping_named(scale_mapping)

    def forward(self, *features: Tensor) -> tuple[Tensor, ...]:
        """Means, standard deviations, and further inputs as they came."""
        first, *rest = features
        if first.shape[-1] % 2:
            raise ShapeError(
                f"NormalParamExtractor halves the last dimension, got {tuple(first.shape)}:"
                " the network before it needs 2 outputs per action dimension"
            )
        loc, raw = first.chunk(2, -1)
        return (loc, self._mapping(raw).clamp_min(self.scale_lb), *rest)

    def extra_repr(self) -> str:
        return f"scale_mapping={self.scale_mapping!r}, scale_lb={self.scale_lb}"


_mapping_named = scale_mapping
