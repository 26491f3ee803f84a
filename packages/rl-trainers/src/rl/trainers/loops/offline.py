"""The loop of algorithms that learn from a data set: sample, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import leaf_keys
from rl.objectives import SoftUpdate
from rl.trainers._checks import check_dataset_named, check_no_clash, first_bad_row
from rl.trainers.actions import choices, masked_rows
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.datasets import check_entries, open_dataset, origin_of
from rl.trainers.evaluation import Evaluator
from rl.trainers.families import OfflineConfig
from rl.trainers.groups import described_inputs
from rl.trainers.loops.updater import Updater, adam
from rl.trainers.networks import action_of
from rl.trainers.run import Run

__all__ = ["train"]

#: what data sets and loops write into batches
ADDED = ("action_chunk", "action_is_pad", "episode", "index")

#: gradient steps of an iteration
STEPS = 100


def train(
    algorithm: Algorithm,
    config: OfflineConfig,
    *,
    policy: Callable[[Any, Env], Any],
    loss: Callable[[Any, Env, Any], Any],
    outputs: Mapping[str, str],
    reader: Callable[[Any, Env, Any, Any], Callable[[], TensorDictBase]] | None = None,
    before: Callable[[Any, Any, int], None] | None = None,
    **options: Any,
) -> TrainResult:
    """Train a policy on a data set.

    Args:
        algorithm: The algorithm.
        config: Settings.
        policy: The policy that is trained and evaluated, for settings and environment.
        loss: The loss, for settings, environment and policy.
        outputs: Names of the outputs of the loss that are logged, by metric; those that it does not have are left out.
        reader: Function that returns a sampler of batches, for settings, environment, data set and policy; rows of the
            data set if None.
        before: Function that is called with settings, loss and the number of completed gradient steps, before each
            hundred of them.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.

    Raises:
        ArgumentError: If no data set is given.
        ContractError: If its rows lack what the loss reads.
    """
    name = algorithm.name
    check_dataset_named(name, config.dataset)
    run = Run(algorithm, config, **options)
    env = run.make_env(1)
    actor = policy(config, env).eval()  # dropout is for gradient steps alone
    run.note(described_inputs(config, env))
    losses = loss(config, env, actor)
    check_no_clash(name, env, [actor, losses], ADDED)
    data = open_dataset(config.dataset, env, config.batch_size, config.env)
    run.note_origin(origin_of(data), config.dataset)
    read = _rows(config, data, losses, env) if reader is None else reader(config, env, data, actor)
    update = OfflineUpdater(
        config, losses, read, {name: key for name, key in outputs.items() if key in losses.out_keys}
    )
    run.find_bad = lambda: first_bad_row(data, leaf_keys(data[0]), config.dataset)
    run.note(f"{len(data)} transitions of {config.dataset}")
    evaluator = Evaluator(run.make_env, actor)
    parts: dict[str, Any] = {"policy": actor, "loss": losses, "optimizer": update.optimizers[0]}
    with run.training(evaluator=evaluator, parts=parts, metrics=update.metrics, phases=("update",)):
        while run.going:
            update.anneal(run.progress)
            steps = min(STEPS, config.total_frames - run.frames)
            if before is not None:
                before(config, losses, run.frames)
            with run.timed("update"):
                metrics = update(steps)
            run.end_iteration(steps, metrics)
        return run.finish()


def _rows(config: OfflineConfig, data: Any, loss: Any, env: Env) -> Callable[[], TensorDictBase]:
    """Return a sampler of rows of a data set, with what the loss reads."""
    check_entries(config.recipe, config.dataset, data[0], loss.in_keys)
    keys = [*loss.in_keys, ("next", "terminated")]
    sizes = choices(action_of(env)[1])
    return lambda: masked_rows(data.sample().select(*keys, strict=False), sizes)


class OfflineUpdater(Updater):
    """Gradient steps on samples of a data set.

    Args:
        config: Settings.
        loss: The loss.
        read: Function that samples a batch.
        outputs: Names of the outputs of the loss that are logged, by metric.
    """

    def __init__(
        self, config: OfflineConfig, loss: Any, read: Callable[[], TensorDictBase], outputs: Mapping[str, str]
    ) -> None:
        super().__init__(config, loss, [adam(loss.parameters(), config.learning_rate, eps=1e-8)], outputs)
        self.metrics = (*self.metrics, *self.rate)
        self._read, self._call = read, self.compiled(loss)
        targets = any(name.startswith("target_") for name, _ in loss.named_children())
        self._target = SoftUpdate(loss, tau=config.tau) if targets else None

    def __call__(self, steps: int) -> Callable[[], dict[str, float]]:
        """Take gradient steps; returns what computes their mean metrics."""
        seen: list[dict[str, Tensor]] = []
        self.loss.train()
        for _ in range(steps):
            out = dict(self.forward(self._call, self._read().to(self.config.device)).items())
            self.step(out)
            if self._target is not None:
                self._target.step()
            seen.append({name: value.detach() for name, value in out.items()})
        self.loss.eval()
        return lambda: {**self.means(seen), **self.rate}
