"""What a user's code does during a run, and ``train``, which starts one from Python. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl.core.errors import UnknownArgumentError
from rl.trainers.algorithm import Algorithm, TrainResult

if TYPE_CHECKING:
    from tensordict import TensorDictBase

__all__ = ["Callback", "StopAtReturn", "train"]


class Callback:
    """Base of callbacks: every method may be overridden, and does nothing here.

    `run` is a `rl.trainers.Run`. ``run.stop()`` ends it early, with its final evaluation; `run.frames`, `run.config`,
    `run.folder`, `run.parts`, `run.note` and `run.log_scalar` are there in all of them.

    A loop of one's own calls the methods where they fit, with an object that has what its callbacks use.

    Example:
        >>> class Printed(Callback):
        ...     def on_evaluation(self, run, return_mean):
        ...         print(run.frames)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train("ppo", total_frames=128, frames_per_batch=64, minibatch_size=32, eval_every=64,
        ...                    eval_episodes=1, preset="none", out=f"{folder}/run", display="none",
        ...                    callbacks=[Printed()])
        64
        128
    """

    def on_start(self, run: Any) -> None:
        """Start of the run, or of its continuation; the folder is there."""

    def on_batch(self, run: Any, batch: TensorDictBase) -> None:
        """Look at a batch ``[num_envs, T]`` that was collected, before it is learned from; it must not be changed."""

    def on_update(self, run: Any, metrics: Mapping[str, float]) -> None:
        """Look at the metrics of an iteration, such as ``loss_actor``, after its gradient steps.

        Overriding it makes every iteration wait for the device.
        """

    def on_evaluation(self, run: Any, return_mean: float) -> None:
        """Look at the mean return of an evaluation."""

    def on_end(self, run: Any) -> None:
        """End of the run, after its final evaluation; also of one that was interrupted or raised."""


class CallbackSet(Callback):
    """Calls several callbacks, in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        #: those that wait for the metrics of every iteration
        self.watching = [one for one in callbacks if type(one).on_update is not Callback.on_update]

    def on_start(self, run: Any) -> None:
        for one in self._callbacks:
            one.on_start(run)

    def on_batch(self, run: Any, batch: TensorDictBase) -> None:
        for one in self._callbacks:
            one.on_batch(run, batch)

    def on_update(self, run: Any, metrics: Mapping[str, float]) -> None:
        for one in self.watching:
            one.on_update(run, metrics)

    def on_evaluation(self, run: Any, return_mean: float) -> None:
        for one in self._callbacks:
            one.on_evaluation(run, return_mean)

    def on_end(self, run: Any) -> None:
        for one in self._callbacks:
            one.on_end(run)


class StopAtReturn(Callback):
    """Ends a run at the first evaluation whose mean return is at least a value.

    Args:
        value: Return to reach.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train("ppo", total_frames=1024, frames_per_batch=64, minibatch_size=32, eval_every=64,
        ...                    eval_episodes=1, preset="none", out=f"{folder}/run", display="none",
        ...                    callbacks=[StopAtReturn(1)])
        >>> result.train_frames, result.interrupted
        (64, False)
    """

    def __init__(self, value: float) -> None:
        self.value = float(value)

    def on_evaluation(self, run: Any, return_mean: float) -> None:
        """Stop if the return is reached."""
        if return_mean >= self.value:
            run.stop(f"the evaluation reached a mean return of {return_mean:.1f}")


def train(
    recipe: str | Algorithm = "ppo",
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    display: Literal["auto", "rich", "plain", "none"] = "auto",
    preset: str = "auto",
    callbacks: Sequence[Callback] = (),
    trust: str | Sequence[str] = (),
    **settings: Any,
) -> TrainResult:
    """Train as ``rl train`` does.

    Args:
        recipe: Name of a recipe, ``module:NAME``, a file with an `Algorithm`, or an `Algorithm`.
        out: The run folder, which must not exist; the next free one under ``runs/`` if None.
        resume: The folder of an earlier run, which continues with its settings; `settings` change what may change.
        display: Mode of the display: ``rich``, ``plain``, ``none``, or ``auto`` for what fits the standard output.
        preset: Settings for an environment by name, or a ``.yaml`` file of ``rl tune``: ``auto`` takes those of `env`
            if there are any, ``none`` none.
        callbacks: What is called during the run.
        trust: Modules that the folder of `resume`, or the file of `preset`, may name, as for `load_run`.
        settings: Settings of the recipe, as ``env="CartPole-v1"``; ``rl train RECIPE --help`` lists them.

    Returns:
        The result: ``result.policy``, ``result.evaluate()``, ``result.plot()``, ``result.folder``.

    Raises:
        UsageError: If there is no such recipe or preset.
        UnknownArgumentError: If the recipe has no such setting.
        ArgumentError: If a value is out of its range.
        RLError: As of `Algorithm.train`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train("ppo", env="CartPole-v1", total_frames=256, eval_episodes=1, final_eval_episodes=1,
        ...                    frames_per_batch=128, minibatch_size=64, out=f"{folder}/run", display="none")
        ...     result.evaluate(episodes=2).shape
        torch.Size([2])
    """
    from rl.trainers._arguments import find_preset, find_recipe, unknown
    from rl.trainers.config import old_names

    found = find_recipe(recipe) if isinstance(recipe, str) else recipe
    names = [one.name for one in fields(found.config)]
    for name in settings:
        if name not in names and name not in old_names(found.config):
            raise UnknownArgumentError(unknown(f"setting of {found.name}", name, names))
    if resume is not None:
        from rl.trainers.evaluation import load_config

        config = replace(load_config(resume, trust)[1], **settings)
    else:
        chosen = find_preset(found, preset, settings.get("env", found.config.env), trust=trust, besides=settings)
        config = found.config(**{**({} if chosen is None else chosen.settings), **settings})
    return found.train(config, out=out, resume=resume, display=display, callbacks=callbacks)
