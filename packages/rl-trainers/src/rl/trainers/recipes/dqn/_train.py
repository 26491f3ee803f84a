"""The recipe ``dqn``: deep Q-learning, the whole algorithm on one page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor

from rl.collectors import Collector
from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import ACTION_VALUE, DONE, NEXT, TERMINATED, NestedKey
from rl.modules import EGreedyModule, QValueActor
from rl.objectives import DQNLoss, HardUpdate, SoftUpdate, compile_with_warmup
from rl.replay import (
    BurnInTransform,
    LazyTensorStorage,
    MultiStepTransform,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl.trainers._build.actions import single_choice
from rl.trainers._build.device import storing_device
from rl.trainers._build.memory import replay_sampler, with_memory
from rl.trainers._build.networks import action_of, described_observations, network
from rl.trainers._build.optimizer import adam, descend, set_learning_rate
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._report.display import DisplayMode
from rl.trainers._run.run import Run, Stateful, TrainResult
from rl.trainers.recipes.dqn._config import DQN, DQNConfig

__all__ = ["dqn_policy", "train_dqn"]


def train_dqn(
    config: DQNConfig,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    display: DisplayMode = "auto",
    should_stop: Callable[[int], bool] | None = None,
) -> TrainResult:
    """Train with deep Q-learning.

    Args:
        config: what to train, and how.
        out: the run folder, which must not exist; the next free one under ``runs/`` if None.
        resume: the folder of an earlier run, which continues from its last checkpoint.
        display: ``rich``, ``plain``, ``none``, or ``auto`` for what fits the standard output.
        should_stop: called with the frames so far after each round; true ends the run as Ctrl-C does.

    Raises:
        UnknownComponentError: if there is no such environment.
        SpecError: if the environment's actions are not discrete.
        RLError: if the run folder exists, or a loss is not finite.
        CheckpointError: if there is nothing to resume.

    Example:
        >>> import tempfile
        >>> config = DQNConfig(total_frames=256, learning_starts=128, frames_per_batch=128, updates_per_step=0.02,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_dqn(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    run = Run(DQN, config, out=out, resume=resume, display=display, should_stop=should_stop)
    env = run.make_env(config.num_envs)
    policy = dqn_policy(config, env)
    run.note(described_observations(env, config.observation_layout))
    explore = EGreedyModule(
        action_of(env)[1],
        eps_init=config.epsilon_start,
        eps_end=config.epsilon_end,
        annealing_num_steps=config.epsilon_frames,
        action_key=action_of(env)[0],
    ).to(config.device)
    loss = q_loss(config, policy)
    check_pipeline(env, policy, loss)
    if config.target_tau:
        target = SoftUpdate(loss, tau=config.target_tau)
    else:
        target = HardUpdate(loss, value_network_update_interval=1)
    optimizer = adam(policy.parameters(), config.learning_rate)
    collector = Collector(
        env,
        TensorDictSequential(policy, explore),
        frames_per_batch=config.frames_per_batch,
        storing_device=storing_device(config.device),
    )
    buffer = replay_buffer(config, policy)
    multi_step = MultiStepTransform(config.n_step, config.gamma) if config.n_step > 1 else None
    called = compile_with_warmup(loss) if config.compile else loss
    learn = _Learner(config, called, target, optimizer, buffer, multi_step)
    parts: dict[str, Stateful] = {
        "policy": policy,
        "loss": loss,
        "exploration": explore,
        "optimizer": optimizer,
        "collector": collector,
        "buffer": buffer,
    }
    if multi_step is not None:
        parts["multi_step"] = multi_step  # the steps that it holds back
    evaluator = Evaluator(run.make_env, policy)
    with collector, run.training(evaluator=evaluator, parts=parts, metrics=METRICS, phases=("collect", "update")):
        while run.going:
            if config.anneal:
                set_learning_rate(optimizer, config.learning_rate * (1 - run.progress))
            with run.timed("collect"):
                batch = collector.collect()
                explore.step(batch.numel())
                learn.remember(batch)
            run.record_episodes(batch)
            with run.timed("update"):
                figures = learn(run.frames, run.frames + batch.numel())
            run.end_iteration(batch.numel(), lambda: {"epsilon": float(explore.eps), **figures()})  # noqa: B023
        return run.finish()


#: never true: to a recurrent policy the whole life of an environment is one sequence
BREAK = (NEXT, "break")
METRICS = ("loss_critic", "q_value", "gradient_norm", "epsilon", "learning_rate")


def q_loss(config: DQNConfig, policy: QValueActor) -> DQNLoss:
    """DQN loss with one-step targets, or with lambda returns for a recurrent policy, whose samples are sequences.

    Actions that were not greedy are not corrected for, as in Kapturowski et al.; Kozuno et al., "Revisiting Peng's
    Q(lambda) for modern reinforcement learning", 2021, explain why this works.
    """
    loss = DQNLoss(policy, loss_function="smooth_l1", delay_value=True, double_dqn=config.double, gamma=config.gamma)
    if config.policy != "mlp":
        loss.make_value_estimator("td-lambda", gamma=config.gamma, lmbda=config.td_lambda)
    return loss


def replay_buffer(config: DQNConfig, policy: QValueActor) -> ReplayBuffer:
    """Transitions; for a recurrent policy, sequences ``[slices, sequence_length]`` with burned-in states.

    Sequences continue over the ends of episodes; the state is reset where ``is_init`` is true. Every step is therefore
    sampled with the same probability, also in episodes shorter than a sequence.
    """
    size, device = config.buffer_size, config.device
    if config.policy == "mlp":
        kind = ReplayBuffer if config.sampler == "random" else TensorDictReplayBuffer  # a uniform sample has no info
        storage = LazyTensorStorage(size, device=device)
        return kind(storage=storage, sampler=replay_sampler(config), batch_size=config.minibatch_size)
    length = config.burn_in + config.sequence_length
    values: Any = policy[0]  # the network before the choice of the action
    return ReplayBuffer(
        storage=LazyTensorStorage(size - size % config.frames_per_batch, device=device, ndim=2),  # whole batches
        sampler=SliceSampler(slice_len=length, end_key=BREAK, pad_output=True),
        batch_size=config.minibatch_size // config.sequence_length * length,
        transform=BurnInTransform(values[:-1], config.burn_in),  # without the layers after the recurrent ones
    )


class _Learner:
    """Gradient steps on what the replay buffer gives."""

    def __init__(
        self,
        config: DQNConfig,
        loss: Any,
        target: SoftUpdate | HardUpdate,
        optimizer: torch.optim.Optimizer,
        buffer: ReplayBuffer,
        multi_step: MultiStepTransform | None,
    ) -> None:
        self._config, self._loss, self._target = config, loss, target
        self._optimizer, self._buffer, self._multi_step = optimizer, buffer, multi_step
        self._parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self._keys: list[NestedKey] = [*loss.in_keys, (NEXT, TERMINATED)]
        self._informed = isinstance(buffer, TensorDictReplayBuffer)
        self._least = config.minibatch_size
        if config.policy != "mlp":
            self._least = max(self._least, config.num_envs * (config.burn_in + config.sequence_length))

    def remember(self, batch: TensorDictBase) -> None:
        """Put the transitions of a batch into the replay buffer."""
        stored = batch.select(*self._keys)
        if self._multi_step is not None:
            stored = self._multi_step.inv(stored)
            if stored is None:
                return  # all steps are held back
            stored = stored.select(*self._keys, "gamma")
        if self._config.policy == "mlp":
            self._buffer.extend(stored.reshape(-1))
        else:
            self._buffer.extend(stored.set(BREAK, torch.zeros_like(batch.get((NEXT, DONE)))))

    def __call__(self, before: int, frames: int) -> Callable[[], dict[str, float]]:
        """Take the gradient steps that follow a batch; returns what gives their mean figures.

        Args:
            before: frames before the batch.
            frames: and with it.
        """
        config = self._config
        if frames < config.learning_starts or len(self._buffer) < self._least:
            return dict
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        for _ in range(round(config.updates_per_step * config.frames_per_batch)):
            batch = self._buffer.sample()
            out = self._loss(batch)
            if self._informed and batch.get("priority_weight", None) is not None:
                self._buffer.update_priority(batch.get("index"), batch.get("td_error"))
            loss = out.get("loss")
            norm = descend(loss, self._optimizer, self._parameters, config.max_grad_norm)
            if config.target_tau:
                self._target.step()
            seen.append((loss.detach(), out.get("pred_value"), norm))
        if not config.target_tau and frames // config.target_every > before // config.target_every:
            self._target.step()
        return lambda: self._figures(seen)

    def _figures(self, seen: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        loss, value, norm = (float(torch.stack(column).mean()) for column in zip(*seen, strict=True))
        return {
            "loss_critic": loss,
            "q_value": value,
            "gradient_norm": norm,
            "learning_rate": self._optimizer.param_groups[0]["lr"],
        }


def dqn_policy(config: DQNConfig, env: Env) -> QValueActor:
    """The untrained greedy policy: reads observations, writes action values and ``action``.

    Raises:
        SpecError: if the environment's action is not one choice of several.
    """
    spec = single_choice(env, "dqn")
    net = partial(
        network,
        env,
        out_features=int(spec.n),
        hidden=config.hidden,
        activation=config.activation,
        last_gain=None,
        layout=config.observation_layout,
        device=config.device,
    )
    return QValueActor(with_memory(config, env, net, [ACTION_VALUE]), spec=spec)
