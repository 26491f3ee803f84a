"""The loop of deep Q-learning: collect with random actions, store, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictSequential, set_interaction_type
from torch import Tensor

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, NestedKey
from rl.modules import EGreedyModule, reset_noise
from rl.objectives import HardUpdate, SoftUpdate
from rl.replay import MultiStepTransform, ReplayBuffer, TensorDictReplayBuffer
from rl.trainers import _learners as learners
from rl.trainers._checks import check_no_clash
from rl.trainers._schedules import annealing_steps
from rl.trainers.actions import mask_key
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.evaluation import Evaluator
from rl.trainers.families import QLearningConfig
from rl.trainers.groups import described_inputs
from rl.trainers.loops.updater import Updater, adam, mean_norm
from rl.trainers.networks import action_of
from rl.trainers.recurrent import NEVER_DONE
from rl.trainers.replay import added_by_buffer, stored_keys, transitions_buffer
from rl.trainers.run import Stateful, new_run

__all__ = ["NEVER_DONE", "train"]


def train(
    algorithm: Algorithm,
    config: QLearningConfig,
    *,
    policy: Callable[[Any, Env], Any],
    loss: Callable[[Any, Env, Any], Any],
    sequences: Callable[[Any, Any], tuple[ReplayBuffer, int] | None] | None = None,
    explore: Callable[[Any, Env], Any] | None = None,
    **options: Any,
) -> TrainResult:
    """Train a network of action values from a replay buffer.

    Args:
        algorithm: The algorithm.
        config: Settings.
        policy: The greedy policy that is trained and evaluated, for settings and environment.
        loss: The loss, for settings, environment and policy.
        sequences: A buffer of sequences for a recurrent policy, and the frames in it that the first update needs, for
            settings and policy; None, or a function that returns None, for a buffer of single transitions.
        explore: The random actions, for settings and environment, with `eps` and `step`; of the only action if None.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = new_run(algorithm, config, **options)
    config = cast("QLearningConfig", run.share)
    env = run.make_env(config.num_envs)
    greedy = policy(config, env)
    name = algorithm.name
    run.note(described_inputs(config, env))
    random = (_explore if explore is None else explore)(config, env).to(config.device)
    losses = loss(config, env, greedy)
    check_no_clash(name, env, [greedy, losses], added_by_buffer(config))
    check_pipeline(env, greedy, losses)
    collector = run.make_collector(env, TensorDictSequential(greedy, random), frames_per_batch=config.frames_per_batch)
    own = None if sequences is None else sequences(config, greedy)
    buffer, least = (transitions_buffer(config), 0) if own is None else own
    multi_step = MultiStepTransform(config.n_steps, config.gamma) if config.n_steps > 1 else None
    keys = stored_keys(losses, env)
    update = QUpdater(config, losses, buffer, least)
    parts: dict[str, Stateful] = {
        "policy": greedy,
        "loss": losses,
        "exploration": random,
        "optimizer": update.optimizers[0],
        "collector": collector,
        "buffer": buffer,
    }
    if multi_step is not None:
        parts["multi_step"] = multi_step  # the steps that it holds back

    evaluator = Evaluator(run.make_env, greedy)
    with (
        collector,
        run.training(evaluator=evaluator, parts=parts, metrics=update.metrics, phases=("collect", "update")),
    ):
        while run.going:
            update.anneal(run.progress)
            with run.timed("collect"):
                if config.noisy:
                    greedy.apply(reset_noise)
                batch = collector.collect()
                frames = batch.numel() * learners.count()
                random.step(_annealing(config, run.frames + frames) - _annealing(config, run.frames))
                _store(batch, buffer, keys, multi_step, sequences=own is not None)
            run.record_episodes(batch)
            with run.timed("update"):
                metrics = update(run.frames, run.frames + frames)
            run.end_iteration(frames, lambda: {"epsilon": float(random.eps), **metrics()})  # noqa: B023
        return run.finish()


def _store(
    batch: TensorDictBase,
    buffer: ReplayBuffer,
    keys: Sequence[NestedKey],
    multi_step: MultiStepTransform | None,
    *,
    sequences: bool,
) -> None:
    """Put the transitions of a batch into the replay buffer."""
    stored = batch.select(*keys)
    if multi_step is not None:
        stored = multi_step.inv(stored)
        if stored is None:
            return  # all steps are held back
        stored = stored.select(*keys, "gamma")
    if sequences:
        buffer.extend(stored.set(NEVER_DONE, torch.zeros_like(batch.get((NEXT, DONE)))))
    else:
        buffer.extend(stored.reshape(-1))


def _explore(config: QLearningConfig, env: Env) -> EGreedyModule:
    key, spec = action_of(env)
    return EGreedyModule(
        spec,
        eps_init=config.eps_init,
        eps_end=config.eps_end,
        annealing_num_steps=config.annealing_num_steps,
        action_key=key,
        action_mask_key=mask_key(env),
    )


def _annealing(config: QLearningConfig, frames: int) -> int:
    """Return the steps that the schedule of random actions has taken after a number of frames."""
    return annealing_steps(config.anneal_eps, frames, config.annealing_num_steps, config.warmup_frames)


class QUpdater(Updater):
    """Gradient steps of action values on samples of the replay buffer.

    Args:
        config: Settings.
        loss: The loss.
        buffer: The replay buffer.
        least: Frames in it that the first update needs, besides a batch.
    """

    def __init__(self, config: QLearningConfig, loss: Any, buffer: ReplayBuffer, least: int) -> None:
        outputs = {"loss_critic": "loss", "q_value": "pred_value"}
        if config.tau:
            self._target: SoftUpdate | HardUpdate = SoftUpdate(loss, tau=config.tau)
        else:
            self._target = HardUpdate(loss, value_network_update_interval=1)
        super().__init__(config, loss, [adam(loss.parameters(), config.learning_rate)], outputs, {"loss": 1.0})
        self.metrics = (*outputs, "gradient_norm", "epsilon", "learning_rate")
        self._buffer, self._least = buffer, max(config.batch_size, least)
        self._loss = self.compiled(loss)
        self._has_priorities = isinstance(buffer, TensorDictReplayBuffer)

    def __call__(self, before: int, frames: int) -> Callable[[], dict[str, float]]:
        """Take the gradient steps that follow a batch; returns what computes their mean metrics.

        Args:
            before: Frames before the batch.
            frames: Number of frames with the batch.
        """
        config = self.config
        if frames < config.learning_starts or learners.any_of(len(self._buffer) < self._least)[0]:
            return dict
        with set_interaction_type(InteractionType.RANDOM) if config.noisy else nullcontext():
            seen = [self._step() for _ in range(round(config.utd_ratio * config.frames_per_batch))]
        if not config.tau and frames // config.target_every > before // config.target_every:
            self._target.step()
        return lambda: {
            **self.means([out for out, _ in seen]),
            **mean_norm([norm for _, norm in seen]),
            "learning_rate": self.learning_rate,
        }

    def _step(self) -> tuple[dict[str, Tensor], Tensor | None]:
        """One gradient step: loss and mean value, norm of the gradient."""
        if self.config.noisy:
            self.loss.apply(reset_noise)
        batch = self._buffer.sample()
        # a loss writes td_error into the batch, which priorities are made of
        out = self.forward(self._loss, batch)
        if self._has_priorities and batch.get("priority_weight", None) is not None:
            self._buffer.update_priority(batch.get("index"), batch.get("td_error"))
        norm = self.step(out)
        if self.config.tau:
            self._target.step()
        return {"loss": out.get("loss").detach(), "pred_value": out.get("pred_value")}, norm
