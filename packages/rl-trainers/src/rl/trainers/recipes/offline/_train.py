"""The loop of the recipes for data sets: sample, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import leaf_keys
from rl.objectives import SoftUpdate, compile_with_warmup
from rl.trainers._build.clashes import check_no_clash
from rl.trainers._build.dataset import open_dataset, origin_of
from rl.trainers._build.device import float_outputs, mixed_precision
from rl.trainers._build.legal_actions import masked_rows
from rl.trainers._build.networks import described_observations
from rl.trainers._build.optimizer import adam, clip_gradients
from rl.trainers._config.recipe import Recipe
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._run.finite import first_bad_row
from rl.trainers._run.run import Run, TrainResult
from rl.trainers.recipes.offline._config import OfflineConfig
from rl.trainers.recipes.offline._windows import check_entries

__all__ = ["train_offline"]

#: what data sets and loops write into batches
ADDED = ("action_chunk", "action_is_pad", "episode", "index")


def train_offline(
    recipe: Recipe,
    config: OfflineConfig,
    make_policy: Callable[[Any, Env], Any],
    make_loss: Callable[[Any, Env, Any], Any],
    outputs: dict[str, str],
    make_reader: Callable[[Any, Env, Any, Any], Callable[[], TensorDictBase]] | None = None,
    before: Callable[[Any, Any, int], None] | None = None,
    **options: Any,
) -> TrainResult:
    """Train a policy on a data set.

    Args:
        recipe: the recipe.
        config: its settings.
        make_policy: the policy that is trained and evaluated, for settings and environment.
        make_loss: the loss, for settings, environment and policy.
        outputs: names of the outputs of the loss that are logged, by metric; those that it does not have are left out.
        make_reader: gives what samples a batch, for settings, environment, data set and policy; rows of the data set
            if None.
        before: called with settings, loss and the number of completed gradient steps, before each hundred of them.
        options: ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.

    Raises:
        SpecError: if no data set is given, or its rows lack what the loss reads.
    """
    if not config.dataset:
        raise SpecError(f"{recipe.name} learns from a data set: give --dataset SOURCE:NAME, such as minari:NAME")
    run = Run(recipe, config, **options)
    env = run.make_env(1)
    policy = make_policy(config, env).eval()  # dropout is for gradient steps alone
    run.note(described_observations(env, config.observation_layout))
    loss = make_loss(config, env, policy)
    check_no_clash(recipe.name, env, [policy, loss], ADDED)
    data = open_dataset(config.dataset, env, config.minibatch_size, config.env)
    run.note_origin(origin_of(data), config.dataset)
    read = _rows(config, data, loss) if make_reader is None else make_reader(config, env, data, policy)
    outputs = {name: key for name, key in outputs.items() if key in loss.out_keys}
    learn = _Learner(config, loss, read, outputs)
    run.find_bad = lambda: first_bad_row(data, leaf_keys(data[0]), config.dataset)
    run.note(f"{len(data)} transitions of {config.dataset}")
    evaluator = Evaluator(run.make_env, policy)
    parts: dict[str, Any] = {"policy": policy, "loss": loss, "optimizer": learn.optimizer}
    with run.training(evaluator=evaluator, parts=parts, metrics=tuple(outputs), phases=("update",)):
        while run.going:
            steps = min(100, config.total_frames - run.frames)
            if before is not None:
                before(config, loss, run.frames)
            with run.timed("update"):
                figures = learn(steps)
            run.end_iteration(steps, figures)
        return run.finish()


def _rows(config: OfflineConfig, data: Any, loss: Any) -> Callable[[], TensorDictBase]:
    """Samples rows of a data set, with what the loss reads."""
    check_entries(config.recipe, config.dataset, data[0], loss.in_keys)
    keys = [*loss.in_keys, ("next", "terminated")]
    return lambda: masked_rows(data.sample().select(*keys, strict=False))


class _Learner:
    """Gradient steps on samples of a data set."""

    def __init__(
        self, config: OfflineConfig, loss: Any, read: Callable[[], TensorDictBase], outputs: dict[str, str]
    ) -> None:
        self._config, self._read, self._outputs = config, read, outputs
        self._networks = loss
        self._loss: Any = compile_with_warmup(loss) if config.compile else loss
        float_outputs(config, loss)
        self._parameters = list(loss.parameters())
        self.optimizer = adam(self._parameters, config.learning_rate, eps=1e-8)
        targets = any(name.startswith("target_") for name, _ in loss.named_children())
        self._target = SoftUpdate(loss, tau=config.target_tau) if targets else None

    def __call__(self, steps: int) -> Callable[[], dict[str, float]]:
        """Take gradient steps; returns what gives their mean figures."""
        seen: list[dict[str, Tensor]] = []
        self._networks.train()
        for _ in range(steps):
            batch = self._read().to(self._config.device)
            with mixed_precision(self._config):
                out = dict(self._loss(batch).items())
            torch.stack([value for name, value in out.items() if name.startswith("loss")]).sum().backward()
            if self._config.max_grad_norm:
                clip_gradients(self._parameters, self._config.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self._target is not None:
                self._target.step()
            seen.append({name: value.detach() for name, value in out.items()})
        self._networks.eval()
        return lambda: {
            name: float(torch.stack([out[key] for out in seen]).mean()) for name, key in self._outputs.items()
        }
