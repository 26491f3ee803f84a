"""Components of rl-envs, as data."""

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
    yield Component("env", "acrobot", "rl.envs:AcrobotEnv", summary="Two-link pendulum in torch, batched.")
    yield Component("env", "bandit", "rl.envs:BanditEnv", summary="Multi-armed bandit in torch, batched.")
    yield Component("env", "cartpole", "rl.envs:CartPoleEnv", summary="Pole balancing in torch, batched.")
    yield Component("env", "grid-world", "rl.envs:GridWorldEnv", summary="Maze of cells in torch, batched.")
    yield Component("env", "mountain-car", "rl.envs:MountainCarEnv", summary="Mountain car in torch, batched.")
    yield Component("env", "tic-tac-toe", "rl.envs:TicTacToeEnv", summary="Game of two players in torch, batched.")
    yield Component("transform", "init-tracker", "rl.envs:InitTracker", summary="Marks the first step of an episode.")
    yield Component("transform", "reward-sum", "rl.envs:RewardSum", summary="Sums the rewards of an episode.")
    yield Component(
        "transform", "step-counter", "rl.envs:StepCounter", summary="Counts the steps of an episode and can end it."
    )
    yield Component(
        "transform", "tensordict-primer", "rl.envs:TensorDictPrimer", summary="Initial entries of every episode."
    )
