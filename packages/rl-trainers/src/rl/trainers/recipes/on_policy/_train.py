"""The loop of the on-policy recipes: collect, estimate advantages, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.objectives import LossModule, compile_with_warmup
from rl.trainers._build.clashes import check_no_clash
from rl.trainers._build.device import float_outputs, mixed_precision
from rl.trainers._build.networks import described_observations
from rl.trainers._build.optimizer import descend, set_learning_rate
from rl.trainers._config.recipe import Recipe
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._run.run import Run, TrainResult
from rl.trainers.recipes.on_policy._config import OnPolicyConfig
from rl.trainers.recipes.on_policy._networks import on_policy_networks

__all__ = ["Learner", "train_on_policy"]

C = TypeVar("C", bound=OnPolicyConfig)


class Learner:
    """Gradient steps on whole batches; base of learners that cut a batch into minibatches.

    Args:
        config: learning rate and its schedule, largest norm of the gradient, compilation.
        loss: the loss.
        optimizer: of the loss's parameters.
        weights: of the outputs of the loss that are added up.
        outputs: names of the outputs that are logged, by metric.
        estimate: writes advantages into a batch; None if the loss computes them.
        epochs: gradient steps on each batch.

    Attributes:
        adds: keys that it writes into a batch besides those of its networks.
    """

    adds: tuple[NestedKey, ...] = ()

    def __init__(
        self,
        config: OnPolicyConfig,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        *,
        weights: Mapping[str, float],
        outputs: Mapping[str, str],
        estimate: Callable[[TensorDictBase], TensorDictBase] | None = None,
        epochs: int = 1,
    ) -> None:
        self._config, self._optimizer, self._epochs = config, optimizer, epochs
        self._weights, self._outputs = weights, outputs
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._loss: Any = compile_with_warmup(loss) if config.compile else loss
        float_outputs(config, loss)
        self.estimate = estimate
        self.pipeline: list[Any] = [loss] if estimate is None else [estimate, loss]
        self.parts: dict[str, Any] = {"optimizer": optimizer}
        self.metrics = (*outputs, "gradient_norm", "learning_rate")

    def anneal(self, progress: float) -> None:
        """Set the learning rate for the share of the run that is done."""
        if self._config.anneal:
            set_learning_rate(self._optimizer, self._config.learning_rate * (1 - progress))

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what gives their mean figures."""
        seen = [self._step(self._forward(self._loss, batch), batch) for _ in range(self._epochs)]
        return lambda: self._figures(seen)

    def _forward(self, loss: Any, batch: TensorDictBase) -> TensorDictBase:
        """The outputs of the loss."""
        with mixed_precision(self._config):
            return loss(batch)

    def _step(self, out: TensorDictBase, batch: TensorDictBase) -> tuple[TensorDictBase, Tensor]:
        """One gradient step; returns the outputs of the loss and the norm of the gradient."""
        return out, descend(self._total(out, batch), self._optimizer, self._parameters, self._config.max_grad_norm)

    def _total(self, out: TensorDictBase, batch: TensorDictBase) -> Tensor:  # noqa: ARG002 - for subclasses
        """What is minimized."""
        return reduce(add, (weight * out.get(name) for name, weight in self._weights.items()))

    def _figures(self, seen: list[tuple[TensorDictBase, Tensor]]) -> dict[str, float]:
        means = {
            name: float(torch.stack([out.get(key).detach() for out, _ in seen]).mean())
            for name, key in self._outputs.items()
        }
        norm = float(torch.stack([norm for _, norm in seen]).mean())
        return {**means, "gradient_norm": norm, "learning_rate": self._optimizer.param_groups[0]["lr"]}


def train_on_policy(
    recipe: Recipe,
    config: C,
    make_learner: Callable[[C, Env, Any, Any], Learner],
    *,
    networks: Callable[[C, Env, str], tuple[Any, Any]] = on_policy_networks,
    describe: Callable[[Env, str], str] | None = None,
    **options: Any,
) -> TrainResult:
    """Train an actor and a critic on batches that the actor collects.

    Args:
        recipe: the recipe.
        config: its settings.
        make_learner: called with settings, environment, actor and critic.
        networks: makes actor and critic, from settings, environment and the name of the recipe.
        describe: states what they read, from environment and recipe; as vectors and images if None.
        options: ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = Run(recipe, config, **options)
    env = run.make_env(config.num_envs)
    actor, critic = networks(config, env, recipe.name)
    run.note(described_observations(env, config.observation_layout) if describe is None else describe(env, recipe.name))
    learn = make_learner(config, env, actor, critic)
    recurrent = config.policy != "mlp"  # the critic then has a recurrent state as well
    acting = TensorDictSequential(actor, critic) if recurrent else actor
    check_no_clash(recipe.name, env, [actor, critic, *learn.pipeline, *learn.parts.values()], learn.adds)
    check_pipeline(env, acting, *learn.pipeline)
    collector = run.make_collector(env, acting, frames_per_batch=config.frames_per_batch)
    parts = {"policy": actor, "critic": critic, **learn.parts, "collector": collector}
    phases = ("collect", "update") if learn.estimate is None else ("collect", "estimate", "update")
    evaluator = Evaluator(run.make_env, actor)
    with collector, run.training(evaluator=evaluator, parts=parts, metrics=learn.metrics, phases=phases):
        while run.going:
            learn.anneal(run.progress)
            with run.timed("collect"):
                batch = collector.collect()
            run.record_episodes(batch)
            if learn.estimate is not None:
                with run.timed("estimate"), torch.no_grad():
                    batch = learn.estimate(batch)
            with run.timed("update"):
                figures = learn(batch)
            run.end_iteration(batch.numel(), figures)
        return run.finish()
