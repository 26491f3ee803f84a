"""The collector of a recipe: in this process, or in actors of Ray."""

from __future__ import annotations

from functools import partial
from typing import Any

from tensordict import TensorDictBase

from rl.collectors import Collector, RayCollector
from rl.core.interfaces import Env
from rl.trainers._build.device import storing_device
from rl.trainers._build.envs import env_options, make_env
from rl.trainers._config.config import RunConfig

__all__ = ["make_collector"]


def make_collector(config: RunConfig, env: Env, policy: Any, seed: int, **settings: Any) -> Collector | RayCollector:
    """Return what collects ``[num_envs, T]``.

    Args:
        config: settings of the run; with `ray` as many actors as `workers`, each with its share of the environments.
        env: environment of training. With `ray` the actors make their own, and this one is closed.
        policy: that collects.
        seed: of the first environment.
        settings: arguments of the collector.

    Raises:
        MissingExtraError: if `ray` is set and Ray is not installed.
    """
    if not config.ray:
        return Collector(env, policy, storing_device=storing_device(config.device), **settings)
    env.close()
    share = config.num_envs // config.workers
    return RayCollector(
        [partial(_environments, config, share, seed + share * index) for index in range(config.workers)],
        policy,
        sync=True,
        cat_results=0,
        update_at_each_batch=True,
        ray_init_config={} if config.ray == "local" else {"address": config.ray},
        postproc=partial(_learnable, device=config.device),
        **settings,
    )


def _environments(config: RunConfig, count: int, seed: int) -> Env:
    return make_env(config.env, count, seed=seed, **env_options(config))


def _learnable(batch: TensorDictBase, device: str) -> TensorDictBase:
    return batch.exclude("policy_version").to(device)
