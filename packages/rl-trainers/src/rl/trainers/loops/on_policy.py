"""The loop of on-policy algorithms: collect, estimate advantages, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from tensordict.nn import TensorDictSequential

from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.trainers import _learners as learners
from rl.trainers._checks import check_no_clash
from rl.trainers.actors import on_policy_critic
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.evaluation import Evaluator
from rl.trainers.families import OnPolicyConfig
from rl.trainers.groups import described_inputs
from rl.trainers.loops.updater import BatchUpdater, MinibatchUpdater
from rl.trainers.run import new_run

__all__ = ["BatchUpdater", "MinibatchUpdater", "train"]


def train(
    algorithm: Algorithm,
    config: OnPolicyConfig,
    *,
    policy: Callable[[Any, Env], Any],
    updater: Callable[[Any, Env, Any, Any], BatchUpdater],
    critic: Callable[[Any, Env], Any] = on_policy_critic,
    **options: Any,
) -> TrainResult:
    """Train an actor and a critic on batches that the actor collects.

    Args:
        algorithm: The algorithm.
        config: Settings.
        policy: The actor, for settings and environment.
        updater: Gradient steps on a batch, for settings, environment, actor and critic; it has the loss.
        critic: The critic, for settings and environment.
        options: Arguments ``out``, ``resume``, ``display`` and ``should_stop`` of `Run`.
    """
    run = new_run(algorithm, config, **options)
    config = cast("OnPolicyConfig", run.share)
    env = run.make_env(config.num_envs)
    actor, values = policy(config, env), critic(config, env)
    name = algorithm.name
    run.note(described_inputs(config, env))
    update = updater(config, env, actor, values)
    recurrent = config.policy != "mlp"  # the critic then has a recurrent state as well
    acting = TensorDictSequential(actor, values) if recurrent else actor
    check_no_clash(name, env, [actor, values, *update.pipeline, *update.parts.values()], update.adds)
    check_pipeline(env, acting, *update.pipeline)
    collector = run.make_collector(env, acting, frames_per_batch=config.frames_per_batch)
    parts = {"policy": actor, "critic": values, **update.parts, "collector": collector}
    phases = ("collect", "update") if update.estimate is None else ("collect", "estimate", "update")
    evaluator = Evaluator(run.make_env, actor)
    with collector, run.training(evaluator=evaluator, parts=parts, metrics=update.metrics, phases=phases):
        while run.going:
            update.anneal(run.progress)
            with run.timed("collect"):
                batch = collector.collect()
            run.record_episodes(batch)
            if update.estimate is not None:
                with run.timed("estimate"), torch.no_grad():
                    batch = update.estimate(batch)
            with run.timed("update"):
                metrics = update(batch)
            run.end_iteration(batch.numel() * learners.count(), metrics)
        return run.finish()
