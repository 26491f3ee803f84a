"""The loop of algorithms with a world model: collect with a latent state, store sequences, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import DONE, IS_INIT, NEXT, REWARD, TERMINATED, NestedKey, as_tuple
from rl.replay import LazyTensorStorage, ReplayBuffer, RoundRobinWriter, SliceSampler
from rl.trainers._checks import check_no_clash
from rl.trainers._device import preserved_rng
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.evaluation import Evaluator
from rl.trainers.families import WorldModelConfig
from rl.trainers.groups import described_inputs
from rl.trainers.loops.updater import Updater
from rl.trainers.networks import observations_of
from rl.trainers.recurrent import NEVER_DONE
from rl.trainers.run import Run
from rl.trainers.world_models import draw_imagination

__all__ = ["WorldModelUpdater", "train"]


def train(
    algorithm: Algorithm,
    config: WorldModelConfig,
    *,
    policy: Callable[[Any, Env], Any],
    loss: Callable[[Any, Env, Any], Any],
    **options: Any,
) -> TrainResult:
    """Train a world model, and the policy that acts with it.

    Args:
        algorithm: The algorithm.
        config: Settings.
        policy: The policy that is trained and evaluated, for settings and environment.
        loss: The losses, for settings, environment and policy: a module of sampled steps, see
            `rl.trainers.dreamers.DreamerV3Losses`.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = Run(algorithm, config, **options)
    env = run.make_env(config.num_envs)
    actor = policy(config, env)
    run.note(described_inputs(config, env))
    updates, ratio = config.replay_rates
    run.note(f"updates_per_step {updates:g}: a train_ratio of {ratio:g} replayed steps for each step")
    losses = loss(config, env, actor)
    check_no_clash(algorithm.name, env, [actor])
    collector = run.make_collector(
        env,
        actor,
        frames_per_batch=config.frames_per_batch,
        init_random_frames=config.learning_starts if losses.random_start else 0,
    )
    keys = stored_keys(env, actor, losses)
    buffer = sequences_buffer(config, losses)
    update = WorldModelUpdater(config, losses, buffer)
    parts = {"policy": actor, "loss": losses, "collector": collector, "buffer": buffer, "learner": update}
    evaluator = _DrawingEvaluator(run, actor, update)
    with (
        collector,
        run.training(evaluator=evaluator, parts=parts, metrics=update.metrics, phases=("collect", "update")),
    ):
        while run.going:
            update.anneal(run.progress)
            with run.timed("collect"):
                batch = collector.collect()
                rows = batch.select(*keys)
                for key in losses.latents:  # one-hot states are exact in it
                    rows.set(key, rows.get(key).to(torch.bfloat16))
                buffer.extend(rows.set(NEVER_DONE, torch.zeros_like(batch.get((NEXT, DONE)))))
            run.record_episodes(batch)
            with run.timed("update"):
                metrics = update(run.frames + batch.numel(), batch.numel())
            run.end_iteration(batch.numel(), metrics)
        return run.finish()


#: sequences of a picture, and steps of each whose images the model sees
DRAWN, SEEN = 4, 5


class _DrawingEvaluator(Evaluator):
    """Evaluator that also writes what the model imagines, into the folder ``imagination`` of the run."""

    def __init__(self, run: Run, policy: Any, update: WorldModelUpdater) -> None:
        super().__init__(run.make_env, policy)
        self._run, self._update, self._drawn = run, update, -1

    def run(self, episodes: int, *, seed: int, watch: Callable[[TensorDictBase], object] | None = None) -> Tensor:
        """Play episodes, as `Evaluator.run` does; then draw the newest batch of sequences, once for these frames."""
        returns = super().run(episodes, seed=seed, watch=watch)
        if self._run.frames == self._drawn:  # the final evaluation may be that of an older policy
            return returns
        self._drawn = self._run.frames
        rows, imagine = self._update.newest, getattr(self._update.loss, "imagined_images", None)
        with preserved_rng():
            found = None if rows is None or imagine is None else imagine(rows[:DRAWN], SEEN)
        if found is not None and self._run.folder is not None:
            path = self._run.folder.path / "imagination" / f"{self._run.frames}.png"
            real, imagined = found
            draw_imagination(path, real, imagined, SEEN)
        return returns


def stored_keys(env: Env, policy: Any, losses: Any) -> list[NestedKey]:
    """Keys of a batch that the replay buffer keeps."""
    observed = [*observations_of(env)]
    after = [(NEXT, *as_tuple(key)) for key in (*observed, REWARD, DONE, TERMINATED)]
    return [*observed, policy.actions.key, *losses.latents, IS_INIT, *after]


def sequences_buffer(config: WorldModelConfig, losses: Any) -> ReplayBuffer:
    """Create a buffer of sequences ``[batch_size, batch_length + context]``, in which each observation is stored once.

    Sequences that begin with a latent state continue over the ends of episodes, so that every step is sampled with the
    same probability; others are of one episode. With `losses.newest_first`, sequences that were collected since the
    last sample come first, each once.
    """
    length = config.batch_length + losses.context
    size = config.buffer_size - config.buffer_size % config.frames_per_batch  # full batches
    return ReplayBuffer(
        storage=LazyTensorStorage(size, device=config.device, ndim=2, compact=True),
        sampler=SliceSampler(
            slice_len=length,
            end_key=NEVER_DONE if losses.latents else None,
            strict_length=bool(losses.latents),
            pad_output=True,
            truncated_key=None,
            init_key=None,
            newest_first=losses.newest_first,
        ),
        writer=RoundRobinWriter(track_generations=True),
        batch_size=config.batch_size * length,
    )


class WorldModelUpdater(Updater):
    """Gradient steps on sequences of the replay buffer.

    Args:
        config: Settings.
        losses: Losses of sampled steps, with `optimizers` and `moved`.
        buffer: The replay buffer.

    Attributes:
        newest: Batch of the last gradient step; None before the first.
    """

    def __init__(self, config: WorldModelConfig, losses: Any, buffer: ReplayBuffer) -> None:
        super().__init__(config, losses, losses.optimizers(config), losses.outputs)
        self.metrics = (*self.metrics, *self.rate)
        self._buffer, self._losses = buffer, self.compiled(losses)
        self._least = config.num_envs * (config.batch_length + losses.context)
        self._rate, self._due = config.replay_rates[0], 0.0
        self._random_start = losses.random_start
        self.newest: TensorDictBase | None = None

    def __call__(self, frames: int, new: int) -> Callable[[], dict[str, float]]:
        """Take the gradient steps that new frames are worth; returns what computes their mean metrics.

        Frames before the first update count only if their actions were random; those before a resume do not.

        Args:
            frames: Number of frames that were collected so far.
            new: Number of those that are new.
        """
        if frames < self.config.learning_starts or len(self._buffer) < self._least:
            return dict
        worth = frames if self._random_start and not self.count else new
        self._due += self._rate * worth
        steps = int(self._due)
        self._due -= steps
        seen = [self._step() for _ in range(steps)]
        return lambda: {**self.means(seen), **self.rate}

    def _step(self) -> dict[str, Tensor]:
        rows, info = self._buffer.sample(return_info=True)
        self.newest = rows
        out = self.forward(self._losses, rows)
        self.step(out)
        self.loss.moved()
        if self.loss.latents:
            self._refresh(info)
        return {name: value.detach() for name, value in out.items()}

    def _refresh(self, info: dict[Any, Tensor]) -> None:
        """Store the states that the model has inferred now, for sequences that begin there later."""
        newest = self.loss.newest
        before: Tensor = newest.get("before")
        sequence, place = before.nonzero(as_tuple=True)
        row = before[sequence, place]
        self._buffer.update_if_present(
            index=info["index"][sequence, row],
            generation=info["index_generation"][sequence, row],
            patch={key: newest.get(key)[sequence, place].to(torch.bfloat16) for key in self.loss.latents},
        )

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizers, and the fraction of a gradient step that is left."""
        return {**super().state_dict(), "due": self._due}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""
        super().load_state_dict(state)
        self._due = state["due"]
