"""Evaluations while training, and policies of finished runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.collectors import Collector
from rl.core.arguments import constructor_setting
from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, REWARD, leaf_keys
from rl.trainers._agents import run_path
from rl.trainers._device import check_device, preserved_rng, seed_everything, seeds_of, torch_threads
from rl.trainers._named import check_trusted, find
from rl.trainers._preprocessing import set_statistics
from rl.trainers._storage import RunFolder, kept_path
from rl.trainers.algorithm import Algorithm
from rl.trainers.checkpoint import load_checkpoint
from rl.trainers.config import RunConfig
from rl.trainers.envs import env_options, make_env
from rl.trainers.networks import SUCCESS

if TYPE_CHECKING:
    from rl.trainers.inference import Predictor

__all__ = ["Evaluator", "TrainedRun", "evaluate", "load_config", "load_policy", "load_run"]


#: steps of an unfinished episode before an evaluation raises, and before a note reports that none has ended
MAX_STEPS, NOTE_STEPS = 100_000, 10_000


class Evaluator:
    """Plays complete episodes.

    Each parallel environment plays the same number of episodes, so that short episodes are not over-represented.

    Args:
        make: Function that returns an environment, called with the number of parallel environments and a seed;
            `Run.make_env` creates one that is meant for evaluations.
        policy: The policy; each `run` uses its current weights.
        deterministic: Whether to take the deterministic action instead of sampling as in training.

    Attributes:
        policy: Policy of the next `run`.
        deterministic: Whether the next `run` takes the deterministic action.
        note: Function that is called with a line about an evaluation that takes suspiciously long.
        statistics: Statistics with which the environments normalize observations, see
            `rl.trainers._preprocessing.statistics_of`; None if they have what they need.
        successes: Whether each episode of the last `run` ended in success, bool ``[episodes]``; None if the environment
            does not write ``is_success``, which `GymEnv` does with ``info_keys=["is_success"]``.
    """

    make: Callable[[int, int], Env] = constructor_setting("_make")
    """Function that returns an environment."""
    note: Callable[[str], object] | None = None
    statistics: Sequence[Any] | None = None
    successes: Tensor | None = None

    def __init__(
        self, make: Callable[[int, int], Env], policy: Callable[[Any], Any], *, deterministic: bool = True
    ) -> None:
        self._make, self.policy, self.deterministic = make, policy, deterministic
        self._envs: dict[int, Env] = {}
        self._backend: str | None = None

    def use_backend(self, name: str) -> None:
        """Compute the policy with a back end from now on: ``"torch"``, or a name of `rl.collectors.Collector`."""
        self._backend = None if name == "torch" else name

    def run(self, episodes: int, *, seed: int, watch: Callable[[TensorDictBase], object] | None = None) -> Tensor:
        """Play `episodes` episodes, and return their returns, ``[episodes]`` float64.

        The global generators are seeded for it, and are afterwards as before.

        Args:
            episodes: Number of episodes, played in parallel.
            seed: Seed of start states and of all randomness.
            watch: Function that is called after each step with its batch ``[episodes, 1]``; a true result ends the
                evaluation.

        Raises:
            RLError: If an episode does not end.
        """
        with preserved_rng():
            return self._play(episodes, seed, watch)

    def _play(self, episodes: int, seed: int, watch: Callable[[TensorDictBase], object] | None) -> Tensor:
        from rl.core import ExplorationType

        env = self._envs.get(episodes) or self._envs.setdefault(episodes, self._make(episodes, seed))
        if self.statistics is not None:
            set_statistics(env, self.statistics)
        env.set_seed(seed)
        seed_everything(seed)
        how = ExplorationType.DETERMINISTIC if self.deterministic else ExplorationType.RANDOM
        steps = 32 if watch is None else 1
        collector = Collector(
            env,
            self.policy,
            frames_per_batch=episodes * steps,
            total_frames=-1,
            exploration_type=how,
            policy_backend=self._backend,
        )
        returns = torch.zeros(episodes, dtype=torch.float64)
        alive = torch.ones(episodes, dtype=torch.bool)
        successes = torch.zeros(episodes, dtype=torch.bool) if SUCCESS in leaf_keys(env.observation_spec) else None
        for count, batch in enumerate(collector, start=1):
            reward = batch.get((NEXT, REWARD)).reshape(episodes, -1).to("cpu", torch.float64)
            done = batch.get((NEXT, DONE)).reshape(episodes, -1).cpu()
            before = torch.cumsum(done, dim=1) - done.long()  # [episodes, T], episodes that ended before each step
            # only the first episode of each environment counts, up to and with its last step
            first = (before == 0) & alive[:, None]
            returns += (reward * first).sum(dim=1)
            if successes is not None:
                reached = batch.get((NEXT, SUCCESS)).reshape(episodes, -1).cpu() > 0
                successes |= (reached & done & first).any(dim=1)
            alive &= ~done.any(dim=1)
            if (watch is not None and watch(batch)) or not alive.any():
                break
            if self.note is not None and count * steps >= NOTE_STEPS and alive.all():
                self.note(
                    f"note: no episode of the evaluation has ended in {NOTE_STEPS} steps; an environment that never"
                    " ends needs max_episode_steps (--max-episode-steps)"
                )
            if count * steps >= MAX_STEPS:
                raise RLError(
                    f"an episode of evaluation did not end within {MAX_STEPS} steps; set max_episode_steps"
                    " (--max-episode-steps), which truncates it"
                )
        self.successes = successes
        return returns

    def close(self) -> None:
        """Close the environments. May be called twice."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()


@dataclass(frozen=True)
class TrainedRun:
    """What a run folder holds, ready for use.

    Args:
        recipe: Recipe of the run.
        config: Settings of the run.
        policy: Policy with the weights of the checkpoint, on ``config.device``.
        frames: Frames that the policy was trained for.
        checkpoint: Origin of the weights, ``best``, ``last``, or frames.
        statistics: Statistics of normalized observations, from the same checkpoint.
    """

    recipe: Algorithm
    config: RunConfig
    policy: Any
    frames: int
    checkpoint: Literal["best", "last"] | int
    statistics: Sequence[Any] = ()

    def make_env(self, num_envs: int, seed: int, **options: Any) -> Env:
        """Return the environment that the policy was trained on, as evaluations use it.

        Observations are normalized with the statistics of the checkpoint, which do not change; rewards are those of the
        environment.
        """
        env = _evaluation_env(self.config, num_envs, seed, **options)
        set_statistics(env, self.statistics)
        return env

    @cached_property
    def predictor(self) -> Predictor:
        """What `predict` calls; `Predictor.reset` begins new episodes.

        Raises:
            RLError: If the policy reads what only its environment can compute.
        """
        from rl.trainers.inference import Predictor

        with preserved_rng():
            env = self.make_env(1, 0)
        env.close()
        return Predictor(self.policy, env)

    def predict(self, observation: Any, *, is_init: Any = None, deterministic: bool = True) -> Any:
        """Return the action for an observation, both as NumPy arrays, see `Predictor`.

        Args:
            observation: An observation as the environment gives it, or a batch of them.
            is_init: Whether each observation is the first of an episode, for recurrent policies and stacked frames.
            deterministic: Whether to take the deterministic action instead of sampling as in training.

        Raises:
            ShapeError: If an observation has another shape.
            RLError: If the policy reads what only its environment can compute.
        """
        return self.predictor(observation, is_init=is_init, deterministic=deterministic)


def _evaluation_env(config: RunConfig, num_envs: int, seed: int, **options: Any) -> Env:
    return make_env(
        config.env, num_envs, seed=seed, device=config.device, evaluation=True, **env_options(config), **options
    )


def load_config(run: str | Path, trust: str | Sequence[str] = ()) -> tuple[Algorithm, RunConfig]:
    """Recipe and settings of a run folder.

    Args:
        run: The run folder.
        trust: Modules that the run may name besides installed components, see `check_trusted`.

    Raises:
        CheckpointError: If there is no run in it, or its config does not fit this version.
        RLError: If it names a module that is not trusted.
    """
    folder = RunFolder.open(run_path(run))
    values = folder.read_config()
    check_trusted(values, trust, folder.config)
    recipe: Algorithm = find("recipe", str(values.pop("recipe")))
    settings: dict[str, Any] = {str(k): tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return recipe, recipe.config(**settings)
    except ArgumentError as error:
        raise CheckpointError(f"{folder.config} is damaged: {error}; put back what it held") from error
    except TypeError as error:
        raise CheckpointError(
            f"{folder.config} does not fit the recipe {recipe.name!r} of this version ({error}); use the version"
            " in its summary.json"
        ) from error


def load_run(
    run: str | Path,
    checkpoint: Literal["best", "last"] | int = "best",
    device: str | None = None,
    *,
    trust: str | Sequence[str] = (),
) -> TrainedRun:
    """Build the policy of a run and load its weights.

    Args:
        run: The run folder, or ``hub:NAME`` for an agent of ``rl hub list``.
        checkpoint: Checkpoint, ``best`` or ``last``; a run that was stopped before its first evaluation has only the
            last one, and the result's ``checkpoint`` names it. A number of frames for one that `keep_checkpoints` has
            kept.
        device: Device instead of the one that it was trained on.
        trust: Modules that the run may name, as in ``("my_env",)`` for a run on ``my_env:Maze``. A run folder is data:
            of what it names only installed components and these modules are imported.

    Raises:
        CheckpointError: If there is no such checkpoint, or it is damaged.
        RLError: If the run names a module that is not trusted.
        BackendError: If there is no such device here.
    """
    recipe, config = load_config(run, trust)
    if recipe.evaluate is not None:
        raise RLError(
            f"load_run: a run of {recipe.name} has no policy for an environment. Use rl eval, or evaluate(run)"
        )
    config = replace(config, device=device) if device else config
    check_device(config.device)
    folder = RunFolder(run_path(run))
    if checkpoint == "best" and not folder.best.is_file():
        checkpoint = "last"
    files = {"best": folder.best, "last": folder.last}
    path = kept_path(folder.last.parent, checkpoint) if isinstance(checkpoint, int) else files[checkpoint]
    state = load_checkpoint(path)
    with preserved_rng():
        env = _evaluation_env(config, 1, 0)
        policy = recipe.make_policy(config, env)
    try:
        policy.load_state_dict(state["policy"])
        source = state if "frames" in state else state["run"]
        frames, statistics = source["frames"], source.get("statistics", [])
        set_statistics(env, statistics)
    except (AttributeError, RuntimeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not fit the policy of {recipe.name!r} on {config.env!r} ({error}); was config.yaml"
            " changed, or the environment?"
        ) from error
    env.close()
    trained = TrainedRun(recipe, config, policy, frames, checkpoint, statistics)
    policy.predict = trained.predict
    return trained


def load_policy(
    run: str | Path,
    checkpoint: Literal["best", "last"] | int = "best",
    device: str | None = None,
    *,
    trust: str | Sequence[str] = (),
) -> Any:
    """Load the trained policy of a run folder: reads observations from a TensorDict, writes actions.

    It reads the observations of ``load_run(run).make_env(...)``, normalized and stacked as in training. Its method
    ``predict(observation)`` takes and returns NumPy arrays, see `TrainedRun.predict`: observations as the environment
    gives them, single or with a batch in front.

    Args:
        run: The run folder, or ``hub:NAME`` for an agent of ``rl hub list``.
        checkpoint: Checkpoint, ``best``, ``last``, or frames, as for `load_run`.
        device: Device instead of the one that it was trained on.
        trust: Modules that the run may name, as for `load_run`.

    Raises:
        CheckpointError: If there is no such checkpoint, or it is damaged.
        RLError: If the run names a module that is not trusted.

    Example:
        >>> import tempfile
        >>> from rl.trainers import PPOConfig, train_ppo
        >>> config = PPOConfig(total_frames=128, num_envs=2, frames_per_batch=128, minibatch_size=64, epochs=1,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train_ppo(config, out=f"{folder}/run", display="none").folder
        ...     policy = load_policy(run)
        >>> policy.out_keys[-2:]
        ['action', 'action_log_prob']
        >>> policy.predict([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        True
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
    """Play fresh episodes with a run's best policy, and return their returns ``[episodes]``.

    Args:
        run: The run folder, ``hub:NAME`` for an agent of ``rl hub list``, or what `load_run` made of it.
        episodes: Number of episodes.
        seed: Seed of the environments; one that training has not used if None.
        deterministic: Whether to take the deterministic action (exploration off) instead of sampling as in training.
        trust: Modules that the run may name, as for `load_run`.

    Raises:
        CheckpointError: If there is no run in the folder, or its checkpoint is damaged.
        RLError: If the run names a module that is not trusted.

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
    if not isinstance(run, TrainedRun):
        recipe, config = load_config(run, trust)
        if recipe.evaluate is not None:
            return recipe.evaluate(config, Path(run), episodes=episodes, seed=seed, deterministic=deterministic)
    trained = run if isinstance(run, TrainedRun) else load_run(run, trust=trust)
    return play_fresh(trained, episodes, seed=seed, deterministic=deterministic)[0]


def play_fresh(
    trained: TrainedRun, episodes: int, *, seed: int | None = None, deterministic: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Play episodes as `evaluate` does, and return their returns and successes, see `Evaluator`."""
    if seed is None:
        seed = seeds_of(trained.config.seed).later_evaluation
    with torch_threads(trained.config.threads):
        evaluator = Evaluator(trained.make_env, trained.policy, deterministic=deterministic)
        evaluator.use_backend(trained.config.policy_backend)
        returns = evaluator.run(episodes, seed=seed)
        evaluator.close()
    return returns, evaluator.successes
