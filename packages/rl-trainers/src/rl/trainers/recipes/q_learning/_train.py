"""The loop of the recipes of deep Q-learning: collect, store, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictSequential, set_interaction_type
from torch import Tensor

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, NestedKey
from rl.modules import EGreedyModule, QValueActor, reset_noise
from rl.objectives import HardUpdate, SoftUpdate, compile_with_warmup
from rl.replay import MultiStepTransform, ReplayBuffer, TensorDictReplayBuffer
from rl.trainers._build.clashes import check_no_clash
from rl.trainers._build.device import float_outputs, mixed_precision
from rl.trainers._build.legal_actions import mask_key
from rl.trainers._build.memory import added_by_buffer, stored_keys, transitions_buffer
from rl.trainers._build.networks import action_of, described_observations
from rl.trainers._build.optimizer import adam, descend, set_learning_rate
from rl.trainers._config.recipe import Recipe
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._run.run import Run, Stateful, TrainResult
from rl.trainers.recipes.q_learning._config import QLearningConfig

__all__ = ["BREAK", "train_q_learning"]

#: never true: to a recurrent policy the whole life of an environment is one sequence
BREAK = (NEXT, "break")
METRICS = ("loss_critic", "q_value", "gradient_norm", "epsilon", "learning_rate")

C = TypeVar("C", bound=QLearningConfig)


def train_q_learning(
    recipe: Recipe,
    config: C,
    make_policy: Callable[[C, Env], Any],
    make_loss: Callable[..., Any],
    make_sequences: Callable[[C, QValueActor], ReplayBuffer] | None = None,
    *,
    least: int = 0,
    describe: Callable[[Env, str], str] | None = None,
    make_explore: Callable[[C, Env], Any] | None = None,
    with_env: bool = False,
    **options: Any,
) -> TrainResult:
    """Train a network of action values from a replay buffer.

    Args:
        recipe: the recipe.
        config: its settings.
        make_policy: the greedy policy that is trained and evaluated, for settings and environment.
        make_loss: the loss, for settings, the environment if `with_env`, and policy.
        make_sequences: a buffer of sequences for a recurrent policy; None for one of single transitions.
        least: frames in the buffer that the first update needs.
        describe: states what the policy reads, from environment and recipe; as vectors and images if None.
        make_explore: the random actions, for settings and environment, with `eps` and `step`; of the only action if
            None.
        with_env: whether `make_loss` is called with the environment, too.
        options: ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = Run(recipe, config, **options)
    env = run.make_env(config.num_envs)
    policy = make_policy(config, env)
    run.note(described_observations(env, config.observation_layout) if describe is None else describe(env, recipe.name))
    explore: Any = (_explore if make_explore is None else make_explore)(config, env).to(config.device)
    loss = make_loss(config, env, policy) if with_env else make_loss(config, policy)
    check_no_clash(recipe.name, env, [policy, loss], added_by_buffer(config))
    check_pipeline(env, policy, loss)
    if config.target_tau:
        target: SoftUpdate | HardUpdate = SoftUpdate(loss, tau=config.target_tau)
    else:
        target = HardUpdate(loss, value_network_update_interval=1)
    optimizer = adam(loss.parameters(), config.learning_rate)
    collector = run.make_collector(
        env,
        TensorDictSequential(policy, explore),
        frames_per_batch=config.frames_per_batch,
    )
    buffer = transitions_buffer(config) if make_sequences is None else make_sequences(config, policy)
    multi_step = MultiStepTransform(config.n_step, config.gamma) if config.n_step > 1 else None
    sequences, keys = make_sequences is not None, stored_keys(loss, env)
    learn = _Learner(config, loss, keys, target, optimizer, buffer, multi_step, least, sequences=sequences)
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
                if config.noisy:
                    policy.apply(reset_noise)
                batch = collector.collect()
                explore.step(batch.numel())
                learn.store(batch)
            run.record_episodes(batch)
            with run.timed("update"):
                figures = learn(run.frames, run.frames + batch.numel())
            run.end_iteration(batch.numel(), lambda: {"epsilon": float(explore.eps), **figures()})  # noqa: B023
        return run.finish()


def _explore(config: QLearningConfig, env: Env) -> EGreedyModule:
    key, spec = action_of(env)
    return EGreedyModule(
        spec,
        eps_init=config.epsilon_start,
        eps_end=config.epsilon_end,
        annealing_num_steps=config.epsilon_frames,
        action_key=key,
        action_mask_key=mask_key(env),
    )


class _Learner:
    """Gradient steps on what the replay buffer gives."""

    def __init__(
        self,
        config: QLearningConfig,
        loss: Any,
        keys: Sequence[NestedKey],
        target: SoftUpdate | HardUpdate,
        optimizer: torch.optim.Optimizer,
        buffer: ReplayBuffer,
        multi_step: MultiStepTransform | None,
        least: int,
        *,
        sequences: bool,
    ) -> None:
        self._config, self._module, self._target = config, loss, target
        self._loss: Any = compile_with_warmup(loss) if config.compile else loss
        self._optimizer, self._buffer, self._multi_step = optimizer, buffer, multi_step
        self._parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        float_outputs(config, loss)
        self._keys = keys
        self._informed = isinstance(buffer, TensorDictReplayBuffer)
        self._least, self._sequences = max(config.minibatch_size, least), sequences

    def store(self, batch: TensorDictBase) -> None:
        """Put the transitions of a batch into the replay buffer."""
        stored = batch.select(*self._keys)
        if self._multi_step is not None:
            stored = self._multi_step.inv(stored)
            if stored is None:
                return  # all steps are held back
            stored = stored.select(*self._keys, "gamma")
        if self._sequences:
            self._buffer.extend(stored.set(BREAK, torch.zeros_like(batch.get((NEXT, DONE)))))
        else:
            self._buffer.extend(stored.reshape(-1))

    def __call__(self, before: int, frames: int) -> Callable[[], dict[str, float]]:
        """Take the gradient steps that follow a batch; returns what gives their mean figures.

        Args:
            before: frames before the batch.
            frames: and with it.
        """
        config = self._config
        if frames < config.learning_starts or len(self._buffer) < self._least:
            return dict
        with set_interaction_type(InteractionType.RANDOM) if config.noisy else nullcontext():
            seen = [self._step() for _ in range(round(config.updates_per_step * config.frames_per_batch))]
        if not config.target_tau and frames // config.target_every > before // config.target_every:
            self._target.step()
        return lambda: self._figures(seen)

    def _step(self) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step: loss, mean value, norm of the gradient."""
        if self._config.noisy:
            self._module.apply(reset_noise)
        batch = self._buffer.sample()
        with mixed_precision(self._config):
            out = self._loss(batch)
        if self._informed and batch.get("priority_weight", None) is not None:
            self._buffer.update_priority(batch.get("index"), batch.get("td_error"))
        loss = out.get("loss")
        norm = descend(loss, self._optimizer, self._parameters, self._config.max_grad_norm)
        if self._config.target_tau:
            self._target.step()
        return loss.detach(), out.get("pred_value"), norm

    def _figures(self, seen: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        loss, value, norm = (float(torch.stack(column).mean()) for column in zip(*seen, strict=True))
        return {
            "loss_critic": loss,
            "q_value": value,
            "gradient_norm": norm,
            "learning_rate": self._optimizer.param_groups[0]["lr"],
        }
