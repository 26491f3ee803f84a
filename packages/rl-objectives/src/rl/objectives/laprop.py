"""LaProp: an optimizer that scales gradients before momentum, with clipping of each tensor and a warm-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from rl.core.arguments import as_integer, as_number

__all__ = ["LaProp"]

# ruff: noqa: SLF001 - operators on lists of tensors have no public names; those of torch.optim use them, too
_torch: Any = torch


class LaProp(Optimizer):
    """Optimizer of DreamerV3: clipping of each tensor, scaling by the root mean square, then momentum.

    Ziyin et al., "LaProp: separating momentum and adaptivity in Adam", 2020; the clipping is that of Brock et al.,
    "High-performance large-scale image recognition without normalization", 2021, of *entire tensors* in place of rows:
    the norm of a gradient is at most `clip` times that of its parameter. Both averages are bias-corrected.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate after the warm-up.
        betas: Decay of the momentum, and of the mean square.
        eps: Addend to the root of the mean square.
        clip: Largest norm of a gradient, in norms of the parameter; 0 for none.
        clip_floor: Smallest norm of a parameter that counts.
        warmup: Number of steps in which the learning rate rises linearly. The first one has `lr` / `warmup`, where the
            official implementation has 0.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = LaProp([weight], lr=0.1, warmup=0)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight
        Parameter containing:
        tensor([0.9000, 0.9000], requires_grad=True)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 4e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-20,
        *,
        clip: float = 0.3,
        clip_floor: float = 1e-3,
        warmup: int = 1000,
    ) -> None:
        defaults = {
            "lr": as_number(lr, "LaProp", "lr", least=0),
            "betas": tuple(as_number(beta, "LaProp", "betas", least=0, below=1) for beta in betas),
            "eps": as_number(eps, "LaProp", "eps", least=0),
            "clip": as_number(clip, "LaProp", "clip", least=0),
            "clip_floor": as_number(clip_floor, "LaProp", "clip_floor", least=0),
            "warmup": as_integer(warmup, "LaProp", "warmup", least=0),
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [one for one in group["params"] if one.grad is not None]
            if params:
                self._update(group, params)
        return loss

    def _update(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        group["step"] = step = group.get("step", 0) + 1
        (beta1, beta2), clip = group["betas"], group["clip"]
        grads: list[torch.Tensor] = [one.grad for one in params]  # pyright: ignore[reportAssignmentType]
        states = [self.state[one] for one in params]
        for state, one in zip(states, params, strict=True):
            if not state:
                state["mean_square"], state["momentum"] = torch.zeros_like(one), torch.zeros_like(one)
        squares, momenta = ([state[name] for state in states] for name in ("mean_square", "momentum"))
        if clip:
            limits = _torch._foreach_clamp_min(_torch._foreach_norm(params), group["clip_floor"])
            _torch._foreach_mul_(limits, clip)
            excess = _torch._foreach_div(_torch._foreach_norm(grads), limits)
            grads = _torch._foreach_div(grads, _torch._foreach_clamp_min(excess, 1.0))
        _torch._foreach_mul_(squares, beta2)
        _torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        roots = _torch._foreach_sqrt(_torch._foreach_div(squares, 1 - beta2**step))
        _torch._foreach_add_(roots, group["eps"])
        _torch._foreach_lerp_(momenta, _torch._foreach_div(grads, roots), 1 - beta1)
        rate = group["lr"] * min(1.0, step / group["warmup"]) if group["warmup"] else group["lr"]
        _torch._foreach_add_(params, momenta, alpha=-rate / (1 - beta1**step))
