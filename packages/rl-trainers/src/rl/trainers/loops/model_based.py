"""The loop of algorithms with a learned ensemble of dynamics: collect, fit the ensemble, train or plan in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase, set_interaction_type

from rl.core import check_pipeline
from rl.core.errors import ArgumentError
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, TERMINATED, NestedKey
from rl.core.mdp import step_mdp
from rl.envs import WorldModelEnv
from rl.modules import EnsembleDynamics
from rl.objectives import WorldModelLoss
from rl.replay import LazyTensorStorage, ReplayBuffer
from rl.trainers._checks import check_no_clash
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.evaluation import Evaluator
from rl.trainers.groups import described_inputs
from rl.trainers.loops.off_policy import OffPolicyUpdater
from rl.trainers.loops.updater import Updater
from rl.trainers.replay import stored_keys
from rl.trainers.run import Run
from rl.trainers.world_models import model_env

__all__ = ["MixedBuffer", "ModelFit", "train"]

MODEL_OUTPUTS = {"model_loss": "loss_likelihood"}
"""Metrics of the gradient steps of a fit."""


def train(
    algorithm: Algorithm,
    config: Any,
    *,
    policy: Callable[[Any, Env], TensorDictModuleBase],
    model: Callable[[Any, Env, Any], EnsembleDynamics],
    loss: Callable[[Any, Env, Any], Any] | None = None,
    **options: Any,
) -> TrainResult:
    """Train an ensemble of the dynamics of the environment, and a policy on what it predicts.

    Args:
        algorithm: The algorithm.
        config: Settings, with those of `rl.trainers.families.EnsembleFields`.
        policy: The policy that collects and is evaluated, for settings and environment.
        model: The ensemble, for settings, environment and policy.
        loss: The loss of the policy, an off-policy one, for settings, environment and policy; the policy needs no
            training of its own if None, as one that plans with the ensemble.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = Run(algorithm, config, **options)
    env = run.make_env(config.num_envs)
    actor = policy(config, env)
    run.note(described_inputs(config, env))
    dynamics = model(config, env, actor)
    losses = None if loss is None else loss(config, env, actor)
    trained = [actor] if losses is None else [actor, losses]
    check_no_clash(algorithm.name, env, trained)
    check_pipeline(env, *trained)
    collector = run.make_collector(
        env, actor, frames_per_batch=config.frames_per_batch, init_random_frames=config.learning_starts
    )
    needed = [*dynamics.in_keys, *dynamics.out_keys, (NEXT, DONE), (NEXT, TERMINATED)]
    keys: list[NestedKey] = [*dict.fromkeys([*needed, *([] if losses is None else stored_keys(losses, env))])]
    storage = LazyTensorStorage(config.buffer_size, device=config.device)
    buffer = ReplayBuffer(storage=storage, batch_size=config.model_batch_size)
    fit = ModelFit(config, dynamics, buffer)
    parts = {"policy": actor, "model": dynamics, "collector": collector, "buffer": buffer, "fit": fit}
    metrics, imagined = fit.metrics, None
    if losses is not None:
        imagined = ImaginedTraining(config, model_env(config, env, dynamics), actor, losses, buffer, keys)
        parts |= {"loss": losses, "imagined": imagined.buffer, "learner": imagined.update}
        metrics = (*imagined.update.metrics, *metrics)
    evaluator = Evaluator(run.make_env, actor)
    with (
        collector,
        run.training(evaluator=evaluator, parts=parts, metrics=metrics, phases=("collect", "fit", "update")),
    ):
        while run.going:
            if imagined is not None:
                imagined.update.anneal(run.progress)
            with run.timed("collect"):
                batch = collector.collect()
                check_termination(config, batch)
                buffer.extend(batch.select(*keys).reshape(-1))
            run.record_episodes(batch)
            frames = run.frames + batch.numel()
            with run.timed("fit"):
                fitted = fit.is_due(frames) and fit(frames)
                if fitted and imagined is not None:
                    imagined.roll_out(frames)
            with run.timed("update"):
                found = dict if imagined is None else imagined.update(frames)
            run.end_iteration(batch.numel(), lambda found=found: {**found(), **fit.last})
        return run.finish()


def check_termination(config: Any, batch: TensorDictBase) -> None:
    """Raise if an episode was terminal, and there is no rule by which the model knows.

    Raises:
        ArgumentError: If so.
    """
    if not config.termination and bool(batch.get((NEXT, TERMINATED)).any()):
        raise ArgumentError(
            f"{config.recipe}: an episode of {config.env!r} ended in a terminal state, and episodes of its model never"
            " end: name the rule of the environment with termination=module:function, which returns bool [*B, 1] for a"
            " TensorDict of a step"
        )


class ModelFit(Updater):
    """Fits of an ensemble to all real steps, each until steps that are held out are no longer predicted better.

    Janner et al., "When to trust your model: model-based policy optimization", 2019, appendix A. After each pass over
    the data, members whose error has fallen by a hundredth are kept. A fit ends after `model_patience` passes without
    such a member, or `model_max_epochs` passes, and the members with the smallest errors become the elites.

    Args:
        config: Settings.
        model: The ensemble.
        buffer: Buffer of real steps.
    """

    def __init__(self, config: Any, model: EnsembleDynamics, buffer: ReplayBuffer) -> None:
        loss = WorldModelLoss(model, losses=["likelihood"])
        # AdamW in one fused kernel; the bounds of the variances are weights, too
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.model_learning_rate, weight_decay=config.model_weight_decay, fused=True
        )
        super().__init__(config, loss, [optimizer], MODEL_OUTPUTS)
        self.model, self._buffer = model, buffer
        self._loss = self.compiled(loss)
        self._fitted: int | None = None
        self.last: dict[str, float] = {}
        self.metrics = (*MODEL_OUTPUTS, "model_error", "model_epochs")

    def is_due(self, frames: int) -> bool:
        """Whether the ensemble is to be fitted after a number of frames."""
        if frames < self.config.learning_starts:
            return False
        return self._fitted is None or frames - self._fitted >= self.config.model_every

    def __call__(self, frames: int) -> bool:
        """Fit the ensemble to all stored steps, and return true."""
        self._fitted = frames
        rows: TensorDictBase = self._buffer[:]
        order = torch.randperm(len(rows), device=rows.device)
        held = max(1, round(self.config.model_holdout * len(rows)))
        kept_out, rows = rows[order[:held]], rows[order[held:]]
        self.model.fit_inputs(rows)
        weights = list(self.model.net.parameters())
        best = [weight.detach().clone() for weight in weights]
        lowest, waited, epochs, seen = self.model.set_elites(kept_out), 0, 0, []
        while waited < self.config.model_patience and epochs < self.config.model_max_epochs:
            for part in torch.randperm(len(rows), device=rows.device).split(self.config.model_batch_size):
                out = self.forward(self._loss, rows[part])
                self.step(out)
                seen.append(out)
            epochs += 1
            error = self.model.set_elites(kept_out)
            better = error < 0.99 * lowest  # [members]
            waited = 0 if bool(better.any()) else waited + 1
            lowest = error.where(better, lowest)
            for weight, kept in zip(weights, best, strict=True):
                kept[better] = weight.detach()[better]
        with torch.no_grad():
            for weight, kept in zip(weights, best, strict=True):
                weight.copy_(kept)
        error = self.model.set_elites(kept_out)
        self.last = {**self.means(seen), "model_error": float(error.mean()), "model_epochs": float(epochs)}
        return True

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer, frames at the last fit, and its metrics."""
        return {**super().state_dict(), "fitted": self._fitted, "last": dict(self.last)}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""
        super().load_state_dict(state)
        self._fitted, self.last = state["fitted"], dict(state["last"])


class ImaginedTraining:
    """Rollouts of a policy in an ensemble, from states of a buffer of real steps, and gradient steps on both.

    Args:
        config: Settings.
        env: Environment of the ensemble.
        policy: The policy, which samples its actions.
        loss: The loss of the policy.
        real: Buffer of real steps.
        keys: Keys of a step that are kept.

    Attributes:
        buffer: Buffer of imagined steps, those of one fit.
        update: Gradient steps of the policy.
    """

    def __init__(
        self, config: Any, env: WorldModelEnv, policy: Any, loss: Any, real: ReplayBuffer, keys: list[NestedKey]
    ) -> None:
        self._config, self._env, self._policy, self._real, self._keys = config, env, policy, real, keys
        self._starts = config.rollouts_per_step * config.model_every
        size = self._starts * max(config.rollout_length, config.rollout_length_end)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(size, device=config.device))
        mixed: Any = MixedBuffer(real, self.buffer, config.batch_size, config.real_ratio)
        self.update = OffPolicyUpdater(config, loss, mixed, 1, (0.9, 0.999))

    @torch.no_grad()
    def roll_out(self, frames: int) -> None:
        """Store the steps of new rollouts."""
        observed = self._env.observation_keys
        td: TensorDictBase = self._real.sample(self._starts).select(*observed)
        with set_interaction_type(InteractionType.RANDOM):
            for _ in range(self._config.rollout_steps(frames)):
                td = self._env.step(self._policy(td))
                self.buffer.extend(td.select(*self._keys))
                td = step_mdp(td).select(*observed)[~td.get((NEXT, DONE)).squeeze(-1)]
                if not len(td):
                    break


class MixedBuffer:
    """Minibatches of real and imagined steps.

    Args:
        real: Buffer of real steps.
        imagined: Buffer of imagined steps.
        batch_size: Number of steps of a minibatch.
        real_ratio: Share of real ones.
    """

    def __init__(self, real: ReplayBuffer, imagined: ReplayBuffer, batch_size: int, real_ratio: float) -> None:
        count = round(real_ratio * batch_size)
        self._parts = [(one, n) for one, n in ((real, count), (imagined, batch_size - count)) if n]

    def __len__(self) -> int:
        return min(len(one) for one, _ in self._parts)

    def sample(self) -> TensorDictBase:
        """Sample a minibatch ``[batch_size]``."""
        return TensorDict.cat([one.sample(n) for one, n in self._parts])
