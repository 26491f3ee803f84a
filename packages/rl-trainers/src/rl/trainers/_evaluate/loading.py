"""A trained policy, from its run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from rl.core.errors import CheckpointError, SpecError
from rl.core.interfaces import Env
from rl.trainers._build.device import check_device, torch_threads
from rl.trainers._build.envs import env_options, make_env
from rl.trainers._build.preprocessing import set_statistics
from rl.trainers._config.config import RunConfig
from rl.trainers._config.named import find
from rl.trainers._config.recipe import Recipe
from rl.trainers._config.trust import check_trusted
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._rng import preserved_rng, seeds_of
from rl.trainers._storage.checkpoint import load_checkpoint
from rl.trainers._storage.folder import RunFolder

__all__ = ["TrainedRun", "evaluate", "load_config", "load_policy", "load_run"]


@dataclass(frozen=True)
class TrainedRun:
    """What a run folder holds, ready for use.

    Args:
        recipe: what was run.
        config: its settings.
        policy: with the weights of the checkpoint, on ``config.device``.
        frames: frames that the policy was trained for.
        checkpoint: where the weights come from, ``best`` or ``last``.
        statistics: of normalized observations, from the same checkpoint.
    """

    recipe: Recipe
    config: RunConfig
    policy: Any
    frames: int
    checkpoint: Literal["best", "last"]
    statistics: Sequence[Any] = ()

    def make_env(self, num_envs: int, seed: int, **options: Any) -> Env:
        """The environment that the policy was trained on, as evaluations use it.

        Observations are normalized with the statistics of the checkpoint, which do not change; rewards are those of the
        environment.
        """
        env = _evaluation_env(self.config, num_envs, seed, **options)
        set_statistics(env, self.statistics)
        return env


def _evaluation_env(config: RunConfig, num_envs: int, seed: int, **options: Any) -> Env:
    return make_env(
        config.env, num_envs, seed=seed, device=config.device, evaluation=True, **env_options(config), **options
    )


def load_config(run: str | Path, trust: str | Sequence[str] = ()) -> tuple[Recipe, RunConfig]:
    """Recipe and settings of a run folder.

    Args:
        run: the run folder.
        trust: modules that the run may name besides installed components, see `check_trusted`.

    Raises:
        CheckpointError: if there is no run in it, or its config does not fit this version.
        RLError: if it names a module that is not trusted.
    """
    folder = RunFolder.open(run)
    values = folder.read_config()
    check_trusted(values, trust, folder.config)
    recipe: Recipe = find("recipe", str(values.pop("recipe")))
    settings: dict[str, Any] = {str(k): tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return recipe, recipe.config(**settings)
    except SpecError as error:
        raise CheckpointError(f"{folder.config} is damaged: {error}; put back what it held") from error
    except TypeError as error:
        raise CheckpointError(
            f"{folder.config} does not fit the recipe {recipe.name!r} of this version ({error}); use the version"
            " in its summary.json"
        ) from error


def load_run(
    run: str | Path,
    checkpoint: Literal["best", "last"] = "best",
    device: str | None = None,
    *,
    trust: str | Sequence[str] = (),
) -> TrainedRun:
    """Build the policy of a run and load its weights.

    Args:
        run: the run folder.
        checkpoint: ``best`` or ``last``; a run that was stopped before its first evaluation has only the last one, and
            the result's ``checkpoint`` names it.
        device: instead of the one that it was trained on.
        trust: modules that the run may name, as in ``("my_env",)`` for a run on ``my_env:Maze``. A run folder is data:
            of what it names only installed components and these modules are imported.

    Raises:
        CheckpointError: if there is no such checkpoint, or it is damaged.
        RLError: if the run names a module that is not trusted.
        BackendError: if there is no such device here.
    """
    recipe, config = load_config(run, trust)
    config = replace(config, device=device) if device else config
    check_device(config.device)
    folder = RunFolder(run)
    if checkpoint == "best" and not folder.best.is_file():
        checkpoint = "last"
    path = folder.best if checkpoint == "best" else folder.last
    state = load_checkpoint(path)
    with preserved_rng():
        env = _evaluation_env(config, 1, 0)
        policy = recipe.load_policy()(config, env)
    try:
        policy.load_state_dict(state["policy"])
        source = state if "frames" in state else state["run"]
        frames, statistics = source["frames"], source.get("statistics", [])
        set_statistics(env, statistics)
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not fit the policy of {recipe.name!r} on {config.env!r} ({error}); was config.yaml"
            " changed, or the environment?"
        ) from error
    env.close()
    return TrainedRun(recipe, config, policy, frames, checkpoint, statistics)


def load_policy(
    run: str | Path,
    checkpoint: Literal["best", "last"] = "best",
    device: str | None = None,
    *,
    trust: str | Sequence[str] = (),
) -> Any:
    """The trained policy of a run folder: reads observations from a TensorDict, writes actions.

    It reads the observations of ``load_run(run).make_env(...)``, normalized and stacked as in training.

    Args:
        run: the run folder.
        checkpoint: ``best`` or ``last``.
        device: instead of the one that it was trained on.
        trust: modules that the run may name, as for `load_run`.

    Raises:
        CheckpointError: if there is no such checkpoint, or it is damaged.
        RLError: if the run names a module that is not trusted.

    Example:
        >>> import tempfile
        >>> from rl.trainers import PPOConfig, train_ppo
        >>> config = PPOConfig(total_frames=128, num_envs=2, frames_per_batch=128, minibatch_size=64, epochs=1,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train_ppo(config, out=f"{folder}/run", display="none").folder
        ...     load_policy(run).out_keys[-2:]
        ['action', 'action_log_prob']
    """
    return load_run(run, checkpoint, device, trust=trust).policy


def evaluate(
    run: str | Path | TrainedRun,
    *,
    episodes: int = 20,
    seed: int | None = None,
    deterministic: bool = True,
    trust: str | Sequence[str] = (),
) -> Tensor:
    """Returns ``[episodes]`` of a run's best policy on fresh episodes.

    Args:
        run: the run folder, or what `load_run` made of it.
        episodes: number of episodes.
        seed: of the environments; one that training has not used if None.
        deterministic: take the deterministic action (exploration off); else sample actions as in training.
        trust: modules that the run may name, as for `load_run`.

    Raises:
        CheckpointError: if there is no run in the folder, or its checkpoint is damaged.
        RLError: if the run names a module that is not trusted.

    Example:
        >>> import tempfile
        >>> from rl.trainers import PPOConfig, train_ppo
        >>> config = PPOConfig(total_frames=128, num_envs=2, frames_per_batch=128, minibatch_size=64, epochs=1,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train_ppo(config, out=f"{folder}/run", display="none").folder
        ...     evaluate(run, episodes=3).shape
        torch.Size([3])
    """
    trained = run if isinstance(run, TrainedRun) else load_run(run, trust=trust)
    if seed is None:
        seed = seeds_of(trained.config.seed).later_evaluation
    with torch_threads(trained.config.threads), preserved_rng():
        evaluator = Evaluator(trained.make_env, trained.policy, deterministic=deterministic)
        returns = evaluator.run(episodes, seed=seed)
        evaluator.close()
    return returns
