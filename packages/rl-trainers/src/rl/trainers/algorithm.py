"""`Algorithm`: what a page of `rl.trainers.algorithms` puts together for ``rl train``. Imports no torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rl.core.errors import ArgumentError
from rl.core.registry import components, default, load
from rl.trainers._named import modules_of
from rl.trainers._presets import Preset, read_presets
from rl.trainers.config import RunConfig, with_new_names

__all__ = ["Algorithm", "Recipe", "TrainResult"]

LOOPS = ("on_policy", "off_policy", "q_learning", "offline", "model_based", "world_model")
"""The loops of `rl.trainers.loops`."""

LOOPS_OF_LEARNERS = ("on_policy", "off_policy", "q_learning")
"""Those that several learners can run together."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Args:
        folder: The run folder.
        train_frames: Frames trained for, those before a resume included.
        train_seconds: Wall time of the training loop, its evaluations included.
        eval_return_mean: Mean return of the best policy on fresh episodes; not a number if interrupted.
        eval_return_std: Standard deviation of these returns.
        interrupted: Whether the run was stopped before `total_frames` and can be resumed.
    """

    folder: Path
    train_frames: int
    train_seconds: float
    eval_return_mean: float = math.nan
    eval_return_std: float = math.nan
    interrupted: bool = False

    @property
    def policy(self) -> Any:
        """The best policy, see `load_policy`; ``result.policy.predict(observation)`` takes and returns NumPy arrays."""
        return self._load().policy

    def evaluate(self, *, episodes: int = 20, seed: int | None = None, deterministic: bool = True) -> Any:
        """Play fresh episodes with the best policy, and return their returns ``[episodes]``.

        Args:
            episodes: Number of episodes.
            seed: Seed of the environments; one that training has not used if None.
            deterministic: Whether to take the deterministic action instead of sampling as in training.
        """
        # by name, as the loops: these modules import this one
        return import_module("rl.trainers.evaluation").evaluate(
            self._load(), episodes=episodes, seed=seed, deterministic=deterministic
        )

    def plot(self) -> Any:
        """Return the learning curve as a `matplotlib.figure.Figure`, which a notebook shows.

        Raises:
            CheckpointError: If the run has no metrics, as without the logger ``csv``.
        """
        return import_module("rl.trainers._report").learning_curve(self.folder / "metrics.csv", str(self.folder))

    def _load(self) -> Any:
        settings = import_module("rl.trainers._storage").RunFolder(self.folder).read_config()
        trust = modules_of(settings)  # this process has trained it, with the code that it names
        return import_module("rl.trainers.evaluation").load_run(self.folder, trust=trust)


class Algorithm:
    """A training algorithm: its settings, the loop that runs it, and the functions that build its parts.

    A plugin offers one as a component of kind ``recipe``. A file with one is a page: ``rl train ./my_page.py``.

    Args:
        config: Frozen dataclass on top of `RunConfig`, each field documented in its docstring; its `recipe` is the
            name of the algorithm.
        loop: Name in `LOOPS`, whose module in `rl.trainers.loops` documents the parts; or a function of one's own,
            called as ``loop(algorithm, config, policy=, **parts, out=, resume=, display=, should_stop=)``.
        policy: Function of the untrained policy, called as ``policy(config, env)``.
        presets: Settings for environments in ``"package:file"``, or ``"package:file:section"``; empty without.
        evaluate: Function that plays episodes with the policy of a run folder, called as
            ``evaluate(config, folder, episodes=, seed=, deterministic=)``, and returns their returns ``[episodes]``;
            None for policies of environments.
        parts: Arguments of the loop, such as ``loss``.

    Raises:
        ArgumentError: If there is no such loop.

    Attributes:
        name: The argument of ``rl train``.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> from rl.trainers.algorithms.ppo import PPO
        >>> PPO.name, PPO.config is PPOConfig
        ('ppo', True)
    """

    def __init__(
        self,
        config: type[RunConfig],
        *,
        loop: str | Callable[..., Any],
        policy: Callable[[Any, Any], Any],
        presets: str = "",
        evaluate: Callable[..., Any] | None = None,
        **parts: Any,
    ) -> None:
        if isinstance(loop, str) and loop not in LOOPS:
            raise ArgumentError(
                f"Algorithm: there is no loop {loop!r}; name one of {', '.join(LOOPS)}, or pass a function"
            )
        self.name, self.config, self.evaluate = config.recipe, config, evaluate
        self._loop, self._policy, self._presets, self._parts = loop, policy, presets, parts

    def __repr__(self) -> str:
        return f"Algorithm({self.name!r})"

    @property
    def reference(self) -> str:
        """What names it in a command or a file.

        Its name, ``distribution:name`` if several plugins offer that name, ``module:attribute`` if none offers it.

        Example:
            >>> from rl.trainers.algorithms.ppo import PPO
            >>> PPO.reference
            'ppo'
        """
        offered = [component for component in components("recipe") if component.name == self.name]
        if len(offered) == 1 and load("recipe", self.name) is self:
            return self.name
        for owner in default().plugins if offered else ():
            name = f"{owner.distribution}:{self.name}"
            if any(one in owner.components for one in offered) and load("recipe", name) is self:
                return name
        for module in dict.fromkeys((self.config.__module__, *self._modules())):
            for attribute, value in vars(sys.modules.get(module, object)).items():
                if value is self:
                    return f"{module}:{attribute}"
        return self.name

    def _modules(self) -> list[str]:
        """Modules in which it may be, besides that of its settings."""
        return [part.__module__ for part in (self._policy, self._loop) if hasattr(part, "__module__")]

    def train(
        self,
        config: Any,
        *,
        out: str | Path | None = None,
        resume: str | Path | None = None,
        display: Literal["auto", "rich", "plain", "none"] = "auto",
        should_stop: Callable[[int], bool] | None = None,
        callbacks: Sequence[Any] = (),
    ) -> TrainResult:
        """Train.

        Args:
            config: Settings.
            out: The run folder, which must not exist; the next free one under ``runs/`` if None.
            resume: The folder of an earlier run, which continues from its last checkpoint.
            display: Mode of the display: ``rich``, ``plain``, ``none``, or ``auto`` for what fits the standard output.
            should_stop: Function that is called with the frames so far after each iteration; true ends the run as
                Ctrl-C does.
            callbacks: What is called during the run, see `rl.trainers.Callback`; a loop of one's own gets them only if
                there are any.

        Raises:
            UnknownComponentError: If there is no such environment.
            SpecError: If the actions or observations of the environment do not fit, or a data set does not.
            RLError: If the run folder exists, or a loss is not finite.
            CheckpointError: If there is nothing to resume.

        Example:
            >>> import tempfile
            >>> from rl.trainers import PPOConfig, train_ppo
            >>> config = PPOConfig(total_frames=256, num_envs=2, frames_per_batch=128, minibatch_size=64,
            ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     train_ppo(config, out=f"{folder}/run", display="none").train_frames
            256
        """
        options: dict[str, Any] = {"out": out, "resume": resume, "display": display, "should_stop": should_stop}
        options |= {"callbacks": tuple(callbacks)} if callbacks else {}
        learners = getattr(config, "learners", 1)
        if isinstance(self._loop, str):
            import_module("rl.trainers._learners").number_in_torchrun(config)  # raises if it is of torchrun, and alone
        if learners == 1:
            return self._run(config, **options)
        if self._loop not in LOOPS_OF_LEARNERS:
            raise ArgumentError(f"{self.name} has one learner: leave --learners out, got {learners}")
        return import_module("rl.trainers._learners").train(self._run, config, options)

    def _run(self, config: Any, **options: Any) -> TrainResult:
        """Train in this process."""
        loop = self._loop
        run = import_module(f"rl.trainers.loops.{loop}").train if isinstance(loop, str) else loop
        # from the start: a QR decomposition, which initial weights are of, depends on the number of threads as well
        with import_module("rl.trainers._device").torch_threads(config.threads):
            return run(self, config, policy=self._policy, **self._parts, **options)

    def make_policy(self, config: Any, env: Any) -> Any:
        """Return the untrained policy for an environment.

        Raises:
            SpecError: If actions or observations of the environment do not fit.
        """
        return self._policy(config, env)

    def load_presets(self) -> dict[str, Preset]:
        """Return the presets, by name of the environment.

        Example:
            >>> from rl.trainers.algorithms.ppo import PPO, PPOConfig
            >>> PPOConfig(env="Pendulum-v1", **PPO.load_presets()["Pendulum-v1"].settings).gamma
            0.9
        """
        presets = read_presets(self._presets) if self._presets else {}
        return {name: replace(one, settings=with_new_names(self.config, one.settings)) for name, one in presets.items()}


class Recipe(Algorithm):
    """An algorithm by names of functions: the form of older versions, kept for one series.

    Args:
        name: The argument of ``rl train``.
        config: Settings, see `Algorithm`.
        train: Name ``"module:function"``; called as ``train(config, out=, resume=, display=, should_stop=)``.
        policy: Name ``"module:function"``; called as ``policy(config, env)``.
        presets: Presets, see `Algorithm`.
    """

    def __init__(self, name: str, config: type[RunConfig], train: str, policy: str, presets: str = "") -> None:
        def loop(algorithm: Algorithm, config: RunConfig, *, policy: Any, **options: Any) -> Any:
            del algorithm, policy
            return _load(train)(config, **options)

        def make_policy(config: RunConfig, env: Any) -> Any:
            return _load(policy)(config, env)

        super().__init__(config, loop=loop, policy=make_policy, presets=presets)
        self.name = name
        self._targets = [train, policy]

    def _modules(self) -> list[str]:
        return [target.partition(":")[0] for target in self._targets]


def _load(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
