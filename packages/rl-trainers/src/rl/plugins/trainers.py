"""Components of rl-trainers, as data."""

from collections.abc import Iterator

from rl.core.component import Command, Component
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_components() -> Iterator[Component]:
    """Recipes and loggers."""
    yield Component(
        kind="recipe",
        name="ppo",
        target="rl.trainers.recipes.ppo._config:PPO",
        summary="Proximal policy optimization: on-policy, discrete or continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="dqn",
        target="rl.trainers.recipes.dqn._config:DQN",
        summary="Deep Q-learning: off-policy, discrete actions.",
    )
    yield Component(
        kind="logger",
        name="csv",
        target="rl.trainers.loggers._loggers:CSVLogger",
        summary="metrics.csv in the run folder.",
    )
    yield Component(
        kind="logger",
        name="tensorboard",
        target="rl.trainers.loggers._loggers:TensorBoardLogger",
        summary="TensorBoard events in the run folder.",
    )


@hookimpl
def rl_commands() -> Iterator[Command]:
    """``rl train``, ``rl eval``, ``rl plot``, ``rl presets`` and ``rl benchmark``."""
    yield Command(name="train", target="rl.trainers.cli:train", summary="Train an agent.")
    yield Command(name="eval", target="rl.trainers.cli:evaluate", summary="Evaluate a trained agent.")
    yield Command(name="plot", target="rl.trainers.cli:plot", summary="Draw a run's learning curve again.")
    yield Command(name="presets", target="rl.trainers.cli:presets", summary="List settings for environments.")
    yield Command(name="benchmark", target="rl.trainers.cli:benchmark", summary="Train a list of cases; make a table.")
