"""Gradient steps: one class for the loss, its optimizers, clipping and metrics. Small networks need little else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from rl.objectives import compile_with_warmup
from rl.trainers._device import float_outputs, mixed_precision

__all__ = ["Updater", "adam", "clip_gradients", "optimizer_by_name"]


def adam(parameters: Iterable[Tensor], learning_rate: float, eps: float = 1e-5) -> torch.optim.Adam:
    """Adam in one fused kernel.

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    Args:
        parameters: The trained parameters; those without gradient are skipped.
        learning_rate: Step size.
        eps: Number that is added to the denominator.
    """
    trained = [p for p in parameters if p.requires_grad]
    return torch.optim.Adam(trained, lr=learning_rate, eps=eps, fused=True)


def optimizer_by_name(name: str, parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    """`adam`, or RMSprop with the constants of Stable-Baselines3.

    Tieleman and Hinton, "Lecture 6.5 - RMSProp", 2012.

    Args:
        name: Name, ``"adam"`` or ``"rmsprop"``.
        parameters: The trained parameters; those without gradient are skipped.
        learning_rate: Step size.
    """
    if name == "adam":
        return adam(parameters, learning_rate)
    trained = [p for p in parameters if p.requires_grad]
    return torch.optim.RMSprop(trained, lr=learning_rate, alpha=0.99, eps=1e-5, foreach=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use another step size from now on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients down so that their common norm is at most `max_norm`.

    In a quarter of the time of `torch.nn.utils.clip_grad_norm_` on a CPU, which rounds the scale to float32.

    Args:
        parameters: Parameters whose gradients are scaled; all have one.
        max_norm: Largest norm, above 0.

    Returns:
        The norm before, a scalar; on other devices than the CPU nothing is synchronized.

    Example:
        >>> weight = torch.zeros(2, requires_grad=True)
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> float(clip_gradients([weight], 1.0)), weight.grad
        (5.0, tensor([0.6000, 0.8000]))
    """
    kernels: Any = torch  # those on many tensors have no public names
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(kernels._foreach_norm(gradients)))  # noqa: SLF001
    if norm.is_cpu:  # a number costs nothing there, and multiplies faster than a tensor
        scale = max_norm / (float(norm) + 1e-6)
        if scale < 1:
            kernels._foreach_mul_(gradients, scale)
    else:
        kernels._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_max(1.0))
    return norm


class Updater:
    """Gradient steps on what a loss puts out.

    Args:
        config: Settings: `max_grad_norm`, where 0 does not clip, `compile` and `precision`.
        loss: The loss.
        optimizers: Optimizers of its parameters. Gradients are clipped together where they are optimized together.
        outputs: Outputs of the loss that are logged, by metric; of several the first one that there is. Those that the
            loss does not have are left out.
        weights: Weights of the outputs that are added up; all whose names begin with ``loss`` if None.

    Attributes:
        count: Gradient steps.
        metrics: Names of the metrics.
    """

    def __init__(
        self,
        config: Any,
        loss: Any,
        optimizers: Sequence[torch.optim.Optimizer],
        outputs: Mapping[str, str | Sequence[str]],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.config, self.loss, self.optimizers, self.count = config, loss, list(optimizers), 0
        self._outputs = {name: (keys,) if isinstance(keys, str) else tuple(keys) for name, keys in outputs.items()}
        self._weights = weights
        self._parameters = [[p for group in one.param_groups for p in group["params"]] for one in self.optimizers]
        self.metrics: tuple[str, ...] = tuple(outputs)
        float_outputs(config, loss)

    def compiled(self, call: Any) -> Any:
        """Compile a loss, or a method of it, if the settings say so."""
        return compile_with_warmup(call) if self.config.compile else call

    def forward(self, call: Any, batch: Any) -> Any:
        """Compute the outputs of a loss for a batch, in the precision of the settings."""
        with mixed_precision(self.config):
            return call(batch)

    def step(self, out: Mapping[str, Any] | Any, count: int | None = None) -> Tensor | None:
        """One gradient step of the first `count` optimizers; of all if None.

        Args:
            out: Outputs of the loss.
            count: Number of optimizers.

        Returns:
            The norm of the gradients of the last of them before it was clipped; None if they are not clipped.
        """
        norm = None
        # also of optimizers that are not stepped, whose parameters the loss may reach
        for parameters in self._parameters:
            for one in parameters:
                one.grad = None
        self.total(out).backward()
        for optimizer, parameters in zip(self.optimizers[:count], self._parameters, strict=False):
            if self.config.max_grad_norm:
                norm = clip_gradients(parameters, self.config.max_grad_norm)
            optimizer.step()
        self.count += 1
        return norm

    def total(self, out: Any) -> Tensor:
        """Add up what is minimized."""
        if self._weights is None:
            return torch.stack([value for name, value in out.items() if name.startswith("loss")]).sum()
        return reduce(add, (weight * out.get(name) for name, weight in self._weights.items()))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use another step size from now on."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

    @property
    def learning_rate(self) -> float:
        """Step size."""
        return self.optimizers[0].param_groups[0]["lr"]

    def means(self, seen: Sequence[Any]) -> dict[str, float]:
        """Average each metric over the outputs of several calls of the loss; waits for the device."""
        found: dict[str, float] = {}
        for name, keys in self._outputs.items():
            values = [value for out in seen for key in keys if (value := out.get(key)) is not None]
            if values:
                found[name] = float(torch.stack([value.detach() for value in values]).mean())
        return found

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizers."""
        return {"count": self.count, "optimizers": [one.state_dict() for one in self.optimizers]}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""
        self.count = state["count"]
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)


def mean_norm(norms: Sequence[Tensor | None]) -> dict[str, float]:
    """Average norms of gradients as a metric; nothing where they were not clipped."""
    there = [norm for norm in norms if norm is not None]
    return {"gradient_norm": float(torch.stack(there).mean())} if there else {}
