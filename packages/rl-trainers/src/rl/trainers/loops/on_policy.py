"""The loop of on-policy algorithms: collect, estimate advantages, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import ADVANTAGE, VALUE_TARGET, NestedKey
from rl.objectives import ClipPPOLoss
from rl.trainers._checks import check_no_clash
from rl.trainers.actors import on_policy_critic
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.evaluation import Evaluator
from rl.trainers.families import OnPolicyConfig
from rl.trainers.groups import described_inputs
from rl.trainers.loops.updater import Updater, adam, mean_norm
from rl.trainers.run import Run

__all__ = ["BatchUpdater", "MinibatchUpdater", "train"]

#: of `target_kl`, at which an update stops; the share of Stable-Baselines3 and Spinning Up
KL_STOP = 1.5

PPO_OUTPUTS = {
    "loss_actor": "loss_objective",
    "loss_critic": "loss_critic",
    "entropy": "entropy",
    "kl": "kl_approx",
    "clip_fraction": "clip_fraction",
}


def train(
    algorithm: Algorithm,
    config: OnPolicyConfig,
    *,
    policy: Callable[[Any, Env], Any],
    updater: Callable[[Any, Env, Any, Any], BatchUpdater],
    critic: Callable[[Any, Env], Any] = on_policy_critic,
    **options: Any,
) -> TrainResult:
    """Train an actor and a critic on batches that the actor collects.

    Args:
        algorithm: The algorithm.
        config: Settings.
        policy: The actor, for settings and environment.
        updater: Gradient steps on a batch, for settings, environment, actor and critic; it has the loss.
        critic: The critic, for settings and environment.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = Run(algorithm, config, **options)
    env = run.make_env(config.num_envs)
    actor, values = policy(config, env), critic(config, env)
    name = algorithm.name
    run.note(described_inputs(config, env))
    update = updater(config, env, actor, values)
    recurrent = config.policy != "mlp"  # the critic then has a recurrent state as well
    acting = TensorDictSequential(actor, values) if recurrent else actor
    check_no_clash(name, env, [actor, values, *update.pipeline, *update.parts.values()], update.adds)
    check_pipeline(env, acting, *update.pipeline)
    collector = run.make_collector(env, acting, frames_per_batch=config.frames_per_batch)
    parts = {"policy": actor, "critic": values, **update.parts, "collector": collector}
    phases = ("collect", "update") if update.estimate is None else ("collect", "estimate", "update")
    evaluator = Evaluator(run.make_env, actor)
    with collector, run.training(evaluator=evaluator, parts=parts, metrics=update.metrics, phases=phases):
        while run.going:
            update.anneal(run.progress)
            with run.timed("collect"):
                batch = collector.collect()
            run.record_episodes(batch)
            if update.estimate is not None:
                with run.timed("estimate"), torch.no_grad():
                    batch = update.estimate(batch)
            with run.timed("update"):
                metrics = update(batch)
            run.end_iteration(batch.numel(), metrics)
        return run.finish()


class BatchUpdater(Updater):
    """Gradient steps on whole batches.

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

    def anneal(self, progress: float) -> None:
        """Set the learning rate for the share of the run that is done."""
        if self.config.anneal_lr:
            self.set_learning_rate(self.config.learning_rate * (1 - progress))

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what gives their mean metrics."""
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
            clip = self.config.clip_epsilon * (1 - progress)
            for module in (one for loss in self._losses for one in loss.modules()):
                if isinstance(module, ClipPPOLoss):
                    module.clip_epsilon = clip

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what gives the mean metrics of the last epoch."""
        rows = {key: self._rows(batch.get(key), batch.ndim) for key in self._keys}
        seen: list[tuple[Any, Tensor | None]] = []
        for epoch in range(1, self.config.epochs + 1):
            last = epoch == self.config.epochs or self.config.target_kl > 0  # any may be
            call = self._call_with_diagnostics if last else self._call
            steps: list[tuple[Any, Tensor | None]] = []  # outputs are kept of the last epoch only
            stopped = False
            for minibatch in self._minibatches(rows):
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
        return limit > 0 and float(out.get("kl_approx")) > limit

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
