"""The loop of the off-policy actor-critic recipes: collect, store, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.objectives import SoftUpdate, compile_with_warmup
from rl.replay import MultiStepTransform, ReplayBuffer, TensorDictReplayBuffer
from rl.trainers._build.clashes import check_no_clash
from rl.trainers._build.device import float_outputs, mixed_precision
from rl.trainers._build.memory import added_by_buffer, stored_keys, transitions_buffer
from rl.trainers._build.networks import described_observations
from rl.trainers._build.optimizer import adam, clip_gradients
from rl.trainers._config.recipe import Recipe
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._run.run import Run, TrainResult
from rl.trainers.recipes.off_policy._config import OffPolicyConfig
from rl.trainers.recipes.off_policy._offline import buffer_with_dataset, take_networks

__all__ = ["train_off_policy"]

METRICS = ("loss_critic", "loss_actor", "q_value", "alpha", "entropy")


def train_off_policy(
    recipe: Recipe,
    config: OffPolicyConfig,
    make_policy: Callable[[Any, Env], TensorDictModuleBase],
    make_loss: Callable[[Any, Env, Any], Any],
    make_noise: Callable[[Any, Env], Any] | None = None,
    *,
    actor_every: int = 1,
    betas: tuple[float, float] = (0.9, 0.999),
    describe: Callable[[Env, str], str] | None = None,
    **options: Any,
) -> TrainResult:
    """Train an actor and critics from a replay buffer.

    Args:
        recipe: the recipe.
        config: its settings.
        make_policy: the policy that is trained and evaluated, for settings and environment. It stays in the mode
            (training or evaluation) that it has, except for the losses of the actor.
        make_loss: the loss, for settings, environment and policy.
        make_noise: exploration that follows the policy; the policy explores by itself if None.
        actor_every: gradient steps of the critics for each of the actor, with which the targets move.
        betas: of Adam.
        describe: states what the policy reads, from environment and recipe; as vectors and images if None.
        options: ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = Run(recipe, config, **options)
    env = run.make_env(config.num_envs)
    policy = make_policy(config, env)
    run.note(described_observations(env, config.observation_layout) if describe is None else describe(env, recipe.name))
    loss = make_loss(config, env, policy)
    check_no_clash(recipe.name, env, [policy, loss], added_by_buffer(config))
    check_pipeline(env, policy, loss)
    if config.init and options.get("resume") is None:
        take_networks(config, policy, loss)
    noise = None if make_noise is None else make_noise(config, env)
    collector = run.make_collector(
        env,
        policy if noise is None else TensorDictSequential(policy, noise),
        frames_per_batch=config.frames_per_batch,
        init_random_frames=0 if config.init else config.learning_starts,
    )
    keys = stored_keys(loss, env)
    buffer, keys = buffer_with_dataset(config, env, loss.in_keys, keys) if config.dataset else (_buffer(config), keys)
    learn = _Learner(config, loss, keys, buffer, actor_every, betas)
    parts: dict[str, Any] = {"policy": policy, "loss": loss, "collector": collector, "buffer": buffer, "learner": learn}
    evaluator = Evaluator(run.make_env, policy)
    with collector, run.training(evaluator=evaluator, parts=parts, metrics=METRICS, phases=("collect", "update")):
        while run.going:
            with run.timed("collect"):
                batch = collector.collect()
                learn.store(batch)
            run.record_episodes(batch)
            with run.timed("update"):
                figures = learn(run.frames + batch.numel())
            run.end_iteration(batch.numel(), figures)
        return run.finish()


def _buffer(config: OffPolicyConfig) -> ReplayBuffer:
    buffer = transitions_buffer(config)
    if config.n_step > 1:
        buffer.append_transform(_flat, invert=True)  # after the other one, which needs the order of the steps
        buffer.append_transform(MultiStepTransform(config.n_step, config.gamma))
    return buffer


def _flat(batch: TensorDictBase) -> TensorDictBase:
    return batch.reshape(-1)


class _Learner:
    """Gradient steps on what the replay buffer gives."""

    def __init__(
        self,
        config: OffPolicyConfig,
        loss: Any,
        keys: Sequence[NestedKey],
        buffer: ReplayBuffer,
        actor_every: int,
        betas: tuple[float, float],
    ) -> None:
        self._config, self._buffer, self._every = config, buffer, actor_every
        self._actor = loss.actor_network
        self._critic_loss: Any = compile_with_warmup(loss.critic_loss) if config.compile else loss.critic_loss
        self._actor_loss: Any = compile_with_warmup(loss.actor_loss) if config.compile else loss.actor_loss
        float_outputs(config, loss)
        self._keys = keys
        self._informed = isinstance(buffer, TensorDictReplayBuffer)
        critics = {id(one) for one in loss.critic_parameters()}
        self._critics = [one for one in loss.parameters() if id(one) in critics]
        self._others = [one for one in loss.parameters() if id(one) not in critics]
        self._optimizers = [adam(group, config.learning_rate, eps=1e-8) for group in (self._critics, self._others)]
        for optimizer in self._optimizers:
            optimizer.param_groups[0]["betas"] = betas
        self._target = SoftUpdate(loss, tau=config.target_tau) if _has_targets(loss) else None
        self._count = 0

    def store(self, batch: TensorDictBase) -> None:
        """Put the transitions of a batch into the replay buffer."""
        stored = batch.select(*self._keys)
        self._buffer.extend(stored if self._config.n_step > 1 else stored.reshape(-1))

    def __call__(self, frames: int) -> Callable[[], dict[str, float]]:
        """Take the gradient steps that follow a batch; returns what gives their mean figures."""
        config = self._config
        if frames < config.learning_starts or len(self._buffer) < config.minibatch_size:
            return dict
        seen: list[dict[str, Tensor]] = []
        for _ in range(round(config.updates_per_step * config.frames_per_batch)):
            batch = self._buffer.sample()
            self._count += 1
            both = self._count % self._every == 0
            with mixed_precision(config):
                out = self._losses(batch, both=both)
            losses = [value for name, value in out.items() if name.startswith("loss")]
            torch.stack(losses).sum().backward()
            for optimizer, group in zip(
                self._optimizers[: 2 if both else 1], (self._critics, self._others), strict=False
            ):
                if config.max_grad_norm:
                    clip_gradients(group, config.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
            if both and self._target is not None:
                self._target.step()
            if self._informed and batch.get("priority_weight", None) is not None:
                self._buffer.update_priority(batch.get("index"), batch.get("td_error"))
            seen.append({name: value.detach() for name, value in out.items()})
        return lambda: self._figures(seen)

    def _losses(self, batch: TensorDictBase, *, both: bool) -> dict[str, Tensor]:
        """The losses of the critics, and those of the actor, which is in training mode for these alone."""
        out = dict(self._critic_loss(batch).items())
        if both:
            mode = self._actor.training
            self._actor.train()
            out.update(self._actor_loss(batch).items())
            self._actor.train(mode)
        return out

    def _figures(self, seen: list[dict[str, Tensor]]) -> dict[str, float]:
        names = {
            "loss_critic": ("loss_qvalue", "loss_value"),
            "loss_actor": ("loss_actor",),
            "q_value": ("pred_value",),
            "alpha": ("alpha",),
            "entropy": ("entropy",),
        }
        found: dict[str, float] = {}
        for name, keys in names.items():
            values = [out[key] for out in seen for key in keys if key in out]
            if values:
                found[name] = float(torch.stack(values).mean())
        return found

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizers."""
        return {"count": self._count, "optimizers": [one.state_dict() for one in self._optimizers]}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""
        self._count = state["count"]
        for optimizer, part in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)


def _has_targets(loss: nn.Module) -> bool:
    return any(name.rpartition(".")[2].startswith("target_") for name, _ in loss.named_modules())
