"""The loop of off-policy actor-critic algorithms: collect, store, update actor and critics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, cast

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.modules import AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule
from rl.objectives import SoftUpdate
from rl.replay import MultiStepTransform, ReplayBuffer, TensorDictReplayBuffer
from rl.trainers import _learners as learners
from rl.trainers._checks import check_no_clash
from rl.trainers._schedules import annealing_steps
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.evaluation import Evaluator
from rl.trainers.families import OffPolicyConfig
from rl.trainers.groups import described_inputs
from rl.trainers.loops.updater import Updater, adam
from rl.trainers.replay import added_by_buffer, buffer_with_dataset, stored_keys, take_networks, transitions_buffer
from rl.trainers.run import new_run

__all__ = ["train"]

OUTPUTS = {
    "loss_critic": ("loss_qvalue", "loss_value"),
    "loss_actor": "loss_actor",
    "q_value": "pred_value",
    "alpha": "alpha",
    "entropy": "entropy",
}


def train(
    algorithm: Algorithm,
    config: OffPolicyConfig,
    *,
    policy: Callable[[Any, Env], TensorDictModuleBase],
    loss: Callable[[Any, Env, Any], Any],
    explore: Callable[[Any, Env], Any] | None = None,
    actor_every: str = "",
    betas: tuple[float, float] = (0.9, 0.999),
    **options: Any,
) -> TrainResult:
    """Train an actor and critics from a replay buffer.

    Args:
        algorithm: The algorithm.
        config: Settings.
        policy: The policy that is trained and evaluated, for settings and environment. It stays in the mode
            (training or evaluation) that it has, except for the losses of the actor.
        loss: The loss, for settings, environment and policy.
        explore: Noise that follows the policy, for settings and environment; the policy explores by itself if None.
        actor_every: Setting with the number of gradient steps of the critics for each of the actor, with which the
            targets move; 1 if empty.
        betas: Coefficients of Adam.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = new_run(algorithm, config, **options)
    config = cast("OffPolicyConfig", run.share)
    env = run.make_env(config.num_envs)
    actor = policy(config, env)
    name = algorithm.name
    run.note(described_inputs(config, env))
    losses = loss(config, env, actor)
    check_no_clash(name, env, [actor, losses], added_by_buffer(config))
    check_pipeline(env, actor, losses)
    if config.init and options.get("resume") is None:
        take_networks(config, actor, losses)
    noise = None if explore is None else explore(config, env)
    collector = run.make_collector(
        env,
        actor if noise is None else TensorDictSequential(actor, noise),
        frames_per_batch=config.frames_per_batch,
        init_random_frames=0 if config.init else ceil(config.learning_starts / learners.count()),
    )
    keys: Sequence[NestedKey] = stored_keys(losses, env)
    if config.dataset:
        buffer, keys = buffer_with_dataset(config, env, losses.in_keys, keys)
    else:
        buffer = _buffer(config)
    update = OffPolicyUpdater(config, losses, buffer, getattr(config, actor_every) if actor_every else 1, betas)
    parts = {"policy": actor, "loss": losses, "collector": collector, "buffer": buffer, "learner": update}
    evaluator = Evaluator(run.make_env, actor)
    with (
        collector,
        run.training(evaluator=evaluator, parts=parts, metrics=update.metrics, phases=("collect", "update")),
    ):
        _anneal_noise(config, noise, 0, run.frames)  # those before a resume
        while run.going:
            update.anneal(run.progress)
            with run.timed("collect"):
                batch = collector.collect()
                stored = batch.select(*keys)
                buffer.extend(stored if config.n_steps > 1 else stored.reshape(-1))
                frames = batch.numel() * learners.count()
                _anneal_noise(config, noise, run.frames, run.frames + frames)
            run.record_episodes(batch)
            with run.timed("update"):
                metrics = update(run.frames + frames)
            run.end_iteration(frames, metrics)
        return run.finish()


def _anneal_noise(config: Any, noise: nn.Module | None, before: int, after: int) -> None:
    """Lower the noise on actions by the frames of a batch, if the settings say so."""
    shape = getattr(config, "anneal_exploration_noise", False)
    if noise is None or not shape:
        return
    warmup = config.warmup_frames
    done, due = (annealing_steps(shape, n, config.total_frames - warmup, warmup) for n in (before, after))
    for module in noise.modules():
        if isinstance(module, AdditiveGaussianModule | OrnsteinUhlenbeckProcessModule):
            module.step(due - done)


def _buffer(config: OffPolicyConfig) -> ReplayBuffer:
    buffer = transitions_buffer(config)
    if config.n_steps > 1:
        buffer.append_transform(_flat, invert=True)  # after the other one, which needs the order of the steps
        buffer.append_transform(MultiStepTransform(config.n_steps, config.gamma))
    return buffer


def _flat(batch: TensorDictBase) -> TensorDictBase:
    return batch.reshape(-1)


class OffPolicyUpdater(Updater):
    """Gradient steps of critics and actor on samples of the replay buffer.

    Args:
        config: Settings.
        loss: Loss with `critic_loss`, `actor_loss`, `critic_parameters` and `actor_network`.
        buffer: The replay buffer.
        actor_every: Gradient steps of the critics for each of the actor.
        betas: Coefficients of Adam.
    """

    def __init__(
        self, config: OffPolicyConfig, loss: Any, buffer: ReplayBuffer, actor_every: int, betas: tuple[float, float]
    ) -> None:
        # two optimizers: the actor's loss must not move the critics
        critics = {id(one) for one in loss.critic_parameters()}
        groups = (
            [one for one in loss.parameters() if id(one) in critics],
            [one for one in loss.parameters() if id(one) not in critics],
        )
        optimizers = [adam(group, config.learning_rate, eps=1e-8) for group in groups]
        for optimizer in optimizers:
            optimizer.param_groups[0]["betas"] = betas
        super().__init__(config, loss, optimizers, OUTPUTS)
        self.metrics = (*OUTPUTS, *self.rate)
        self._buffer, self._every = buffer, actor_every
        self._critic_loss, self._actor_loss = self.compiled(loss.critic_loss), self.compiled(loss.actor_loss)
        self._has_priorities = isinstance(buffer, TensorDictReplayBuffer)
        self._target = SoftUpdate(loss, tau=config.tau) if _has_targets(loss) else None

    def __call__(self, frames: int) -> Callable[[], dict[str, float]]:
        """Take the gradient steps that follow a batch; returns what computes their mean metrics.

        Args:
            frames: Number of frames that were collected so far.
        """
        config = self.config
        if frames < config.learning_starts or learners.any_of(len(self._buffer) < config.batch_size)[0]:
            return dict
        seen = [self._step() for _ in range(round(config.utd_ratio * config.frames_per_batch))]
        return lambda: {**self.means(seen), **self.rate}

    def _step(self) -> dict[str, Tensor]:
        batch = self._buffer.sample()
        # TD3, algorithm 1: actor and targets move in each `actor_every`th step of the critics
        both = (self.count + 1) % self._every == 0
        out = self._losses(batch, both=both)
        self.step(out, 2 if both else 1)
        if both and self._target is not None:
            self._target.step()
        if self._has_priorities and batch.get("priority_weight", None) is not None:
            self._buffer.update_priority(batch.get("index"), batch.get("td_error"))
        return {name: value.detach() for name, value in out.items()}

    def _losses(self, batch: TensorDictBase, *, both: bool) -> dict[str, Tensor]:
        """Compute the losses of the critics, and those of the actor, which is in training mode for these alone."""
        out = dict(self.forward(self._critic_loss, batch).items())
        if both:
            actor = self.loss.actor_network
            mode = actor.training
            actor.train()
            out.update(self.forward(self._actor_loss, batch).items())
            actor.train(mode)
        return out


def _has_targets(loss: nn.Module) -> bool:
    return any(name.rpartition(".")[2].startswith("target_") for name, _ in loss.named_modules())
