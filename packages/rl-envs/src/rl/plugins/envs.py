"""What rl-envs offers, as data."""

from collections.abc import Iterator

from rl.core.component import Component
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_components() -> Iterator[Component]:
    """Environments and transforms."""
    yield Component("env", "gym", "rl.envs:GymEnv", summary="Any Gymnasium environment, by its id.", extra="gym")
    yield Component(
        "env", "pendulum", "rl.envs:PendulumEnv", summary="Pendulum swing-up in torch, batched, differentiable."
    )
    yield Component("transform", "init-tracker", "rl.envs:InitTracker", summary="Marks the first step of an episode.")
    yield Component("transform", "reward-sum", "rl.envs:RewardSum", summary="Adds up the rewards of an episode.")
    yield Component(
        "transform", "step-counter", "rl.envs:StepCounter", summary="Counts the steps of an episode and can end it."
    )
    yield Component(
        "transform", "tensordict-primer", "rl.envs:TensorDictPrimer", summary="Entries that every episode begins with."
    )
