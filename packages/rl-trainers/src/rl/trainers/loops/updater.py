"""Gradient steps: one class for the loss, its optimizers, clipping and metrics, and its forms for on-policy batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from math import prod
from operator import add
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.keys import ADVANTAGE, VALUE_TARGET, NestedKey
from rl.objectives import ClipPPOLoss, compile_with_warmup
from rl.trainers import _learners as learners
from rl.trainers._device import float_outputs, mixed_precision
from rl.trainers._schedules import learning_rate_factor, remaining

__all__ = ["BatchUpdater", "MinibatchUpdater", "Updater", "adam", "clip_gradients", "optimizer_by_name"]

#: of `target_kl`, at which an update stops; the share of Stable-Baselines3 and Spinning Up
KL_STOP = 1.5

PPO_OUTPUTS = {
    "loss_actor": "loss_objective",
    "loss_critic": "loss_critic",
    "entropy": "entropy",
    "kl": "kl_approx",
    "clip_fraction": "clip_fraction",
}


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
        self._rates = [[group["lr"] for group in one.param_groups] for one in self.optimizers]
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
        learners.average_gradients(chain.from_iterable(self._parameters[:count]))
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

    def anneal(self, progress: float) -> None:
        """Set the learning rates for the share of the run that is done, if the settings have a schedule."""
        if self.has_schedule:
            warmup = self.config.warmup_frames / self.config.total_frames
            factor = learning_rate_factor(self.config.anneal_lr, progress, warmup)
            for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * factor

    @property
    def has_schedule(self) -> bool:
        """Whether learning rates change during the run."""
        return bool(self.config.anneal_lr or self.config.warmup_frames)

    @property
    def rate(self) -> dict[str, float]:
        """The step size as a metric; nothing where it is constant."""
        return {"learning_rate": self.learning_rate} if self.has_schedule else {}

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


class BatchUpdater(Updater):
    """Gradient steps on full batches.

    Args:
        config: Settings.
        loss: The loss.
        outputs: Names of the outputs of the loss that are logged, by metric.
        optimizer: Optimizer of the parameters of the loss; Adam if None.
        weights: Weights of the outputs of the loss that are added up.
        estimate: Function that writes advantages into a batch; None if the loss computes them.
        epochs: Gradient steps on each batch.

    Attributes:
        adds: Keys that it writes into a batch besides those of its networks.
        parts: Parts that a checkpoint contains.
        pipeline: Modules that read a batch, in order.
    """

    adds: tuple[NestedKey, ...] = ()

    def __init__(
        self,
        config: Any,
        loss: Any,
        outputs: Mapping[str, str],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        weights: Mapping[str, float] | None = None,
        estimate: Callable[[TensorDictBase], TensorDictBase] | None = None,
        epochs: int = 1,
    ) -> None:
        optimizer = adam(loss.parameters(), config.learning_rate) if optimizer is None else optimizer
        super().__init__(
            config, loss, [optimizer], outputs, actor_critic_weights(config) if weights is None else weights
        )
        self._call, self._epochs = self.compiled(loss), epochs
        self.estimate = estimate
        self.pipeline: list[Any] = [loss] if estimate is None else [estimate, loss]
        self.parts: dict[str, Any] = {"optimizer": optimizer}
        self.metrics = (*outputs, "gradient_norm", "learning_rate")

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what computes their mean metrics."""
        seen: list[tuple[Any, Tensor | None]] = []
        for _ in range(self._epochs):
            out = self.forward(self._call, batch)
            seen.append((out, self.step(out)))
        return lambda: self._mean_metrics(seen)

    def _mean_metrics(self, seen: Sequence[tuple[Any, Tensor | None]]) -> dict[str, float]:
        means = self.means([out for out, _ in seen])
        return {**means, **mean_norm([norm for _, norm in seen]), "learning_rate": self.learning_rate}


def actor_critic_weights(config: Any) -> dict[str, float]:
    """Return the weights of the outputs of an actor-critic loss with an entropy bonus."""
    entropy = {"loss_entropy": 1.0} if config.entropy_coeff else {}
    return {"loss_objective": 1.0, "loss_critic": config.critic_coeff, **entropy}


class MinibatchUpdater(BatchUpdater):
    """Epochs of minibatches over a batch, as PPO has them: of steps, or of sequences for a recurrent policy.

    Args:
        config: Settings, those of `PPOConfig`.
        loss: Function that returns a loss, called with ``diagnostics``: with metrics, which the last epoch has, or
            without.
        estimate: Function that writes advantages into a batch.
        more: Parameters that are trained with those of the loss.
        reads: Keys that the minibatches have besides those that the loss needs.
        advantages: Keys of advantages and value targets whose explained variance is logged.
        parts: Parts that a checkpoint contains besides the optimizer.
    """

    def __init__(
        self,
        config: Any,
        loss: Callable[..., Any],
        estimate: Callable[[TensorDictBase], TensorDictBase],
        *,
        more: Iterable[Tensor] = (),
        reads: Iterable[NestedKey] = (),
        advantages: Sequence[tuple[NestedKey, NestedKey]] = ((ADVANTAGE, VALUE_TARGET),),
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        plain, last = loss(diagnostics=False), loss(diagnostics=True)
        optimizer = adam([*plain.parameters(), *more], config.learning_rate)
        super().__init__(config, plain, PPO_OUTPUTS, optimizer=optimizer, estimate=estimate)
        # of several learners it is normalized over the minibatches of all of them
        self._normalizes = learners.count() > 1 and plain.normalize_advantage
        if self._normalizes:
            plain.normalize_advantage = last.normalize_advantage = False
        self._call_with_diagnostics = self.compiled(last)
        self._losses = plain, last
        self.parts |= parts or {}
        self.metrics = (*self.metrics[:-1], "explained_variance", "learning_rate")
        self._keys: list[NestedKey] = [*plain.in_keys, *reads]
        self._advantages = advantages
        # dimensions of a sequence, which stays whole
        self._row = () if config.policy == "mlp" else (config.sequence_length,)
        self._size = config.minibatch_size // prod(self._row)

    def anneal(self, progress: float) -> None:
        """Set learning rate and clip range for the share of the run that is done."""
        super().anneal(progress)
        if self.config.anneal_clip_epsilon:
            warmup = self.config.warmup_frames / self.config.total_frames
            clip = self.config.clip_epsilon * remaining(self.config.anneal_clip_epsilon, progress, warmup)
            for module in (one for loss in self._losses for one in loss.modules()):
                if isinstance(module, ClipPPOLoss):
                    module.clip_epsilon = clip

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what computes the mean metrics of the last epoch."""
        rows = {key: self._rows(batch.get(key), batch.ndim) for key in self._keys}
        seen: list[tuple[Any, Tensor | None]] = []
        for epoch in range(1, self.config.epochs + 1):
            last = epoch == self.config.epochs or self.config.target_kl > 0  # any may be
            call = self._call_with_diagnostics if last else self._call
            steps: list[tuple[Any, Tensor | None]] = []  # outputs are kept of the last epoch only
            stopped = False
            for minibatch in self._minibatches(rows):
                if self._normalizes:
                    advantage = minibatch.get(ADVANTAGE)
                    mean, deviation = learners.mean_and_deviation(advantage)
                    minibatch.set(ADVANTAGE, (advantage - mean) / deviation.clamp_min(1e-6))
                out = self.forward(call, minibatch)
                if self._is_far(out):
                    stopped = True
                    break
                step = self.learn(out, minibatch)
                if last:
                    steps.append(step)
            seen = steps or seen
            if stopped:
                break
        return lambda: self._mean_metrics(seen) | self.diagnostics(rows)

    def learn(self, out: Any, minibatch: TensorDict) -> tuple[Any, Tensor | None]:  # noqa: ARG002  of subclasses
        """One gradient step; returns the outputs of the loss and the norm of the gradient."""
        return out, self.step(out)

    def _is_far(self, out: TensorDictBase) -> bool:
        """Whether the policy has moved too far for another step."""
        limit = KL_STOP * self.config.target_kl
        return limit > 0 and float(learners.gather(out.get("kl_approx").detach()).mean()) > limit

    def _rows(self, leaf: Tensor, batch_dims: int) -> Tensor:
        return leaf.reshape(-1, *self._row, *leaf.shape[batch_dims:])

    def _minibatches(self, rows: Mapping[NestedKey, Tensor]) -> Iterator[TensorDict]:
        """Shuffled rows, cut into pieces; a last piece below half a minibatch joins the one before."""
        size, total = self._size, next(iter(rows.values())).shape[0]
        order = torch.randperm(total).to(self.config.device, non_blocking=True)  # pageable: read when it returns
        shuffled = {key: leaf.index_select(0, order) for key, leaf in rows.items()}
        count = max(1, round(total / size))  # rounding joins a rest below half a minibatch, and keeps a longer one
        for i in range(count):
            end = (i + 1) * size if i < count - 1 else total
            piece: dict[Any, Any] = {key: leaf[i * size : end] for key, leaf in shuffled.items()}
            yield TensorDict(piece, batch_size=[end - i * size, *self._row])

    def diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:
        """Figures of the batch: the share of the variance of the value targets that the critic explains."""
        # the share that is not explained: variance of target - value, of that of the target
        shares = [rows[advantage].var() / rows[target].var().clamp_min(1e-12) for advantage, target in self._advantages]
        return {"explained_variance": 1 - float(torch.stack(shares).mean())}  # target - value is the advantage
