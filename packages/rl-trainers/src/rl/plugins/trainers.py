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
        name="a2c",
        target="rl.trainers.recipes.a2c._config:A2C",
        summary="Advantage actor-critic: on-policy, discrete or continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="reinforce",
        target="rl.trainers.recipes.reinforce._config:REINFORCE",
        summary="REINFORCE with an optional baseline: on-policy, discrete or continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="impala",
        target="rl.trainers.recipes.impala._config:IMPALA",
        summary="V-trace actor-critic: batches of an older policy, discrete or continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="ppo-rnd",
        target="rl.trainers.recipes.ppo_rnd._config:PPO_RND",
        summary="PPO with random network distillation: exploration where rewards are rare.",
    )
    yield Component(
        kind="recipe",
        name="dqn",
        target="rl.trainers.recipes.dqn._config:DQN",
        summary="Deep Q-learning: off-policy, discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="c51",
        target="rl.trainers.recipes.c51._config:C51",
        summary="Distributional deep Q-learning with fixed atoms: off-policy, discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="qrdqn",
        target="rl.trainers.recipes.qrdqn._config:QRDQN",
        summary="Quantile regression deep Q-learning: off-policy, discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="rainbow",
        target="rl.trainers.recipes.rainbow._config:RAINBOW",
        summary="Rainbow, six improvements of deep Q-learning: off-policy, discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="sac",
        target="rl.trainers.recipes.sac._config:SAC",
        summary="Soft actor-critic: off-policy, bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="discrete-sac",
        target="rl.trainers.recipes.discrete_sac._config:DISCRETE_SAC",
        summary="Soft actor-critic: off-policy, discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="crossq",
        target="rl.trainers.recipes.crossq._config:CROSSQ",
        summary="CrossQ, soft actor-critic without target networks: off-policy, bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="tqc",
        target="rl.trainers.recipes.tqc._config:TQC",
        summary="Truncated quantile critics: off-policy, bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="redq",
        target="rl.trainers.recipes.redq._config:REDQ",
        summary="Randomized ensembled double Q-learning: off-policy, bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="td3",
        target="rl.trainers.recipes.td3._config:TD3",
        summary="Twin delayed deep deterministic policy gradient: off-policy, bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="ddpg",
        target="rl.trainers.recipes.ddpg._config:DDPG",
        summary="Deep deterministic policy gradient: off-policy, bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="mappo",
        target="rl.trainers.recipes.mappo._config:MAPPO",
        summary="Proximal policy optimization of groups of agents, with centralized critics.",
    )
    yield Component(
        kind="recipe",
        name="ippo",
        target="rl.trainers.recipes.ippo._config:IPPO",
        summary="Proximal policy optimization of independent agents.",
    )
    yield Component(
        kind="recipe",
        name="qmix",
        target="rl.trainers.recipes.qmix._config:QMIX",
        summary="Q-learning of a team of agents with a monotonic mixer: discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="vdn",
        target="rl.trainers.recipes.vdn._config:VDN",
        summary="Q-learning of a team of agents whose values are added: discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="iql-ma",
        target="rl.trainers.recipes.iql_ma._config:IQL_MA",
        summary="Independent Q-learning of several agents: discrete actions.",
    )
    yield Component(
        kind="recipe",
        name="maddpg",
        target="rl.trainers.recipes.maddpg._config:MADDPG",
        summary="Deterministic policy gradient of groups of agents: bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="bc",
        target="rl.trainers.recipes.bc._config:BC",
        summary="Behaviour cloning from a data set.",
    )
    yield Component(
        kind="recipe",
        name="td3-bc",
        target="rl.trainers.recipes.td3_bc._config:TD3_BC",
        summary="TD3 with behaviour cloning from a data set: bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="iql",
        target="rl.trainers.recipes.iql._config:IQL",
        summary="Implicit Q-learning from a data set: one choice or bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="cql",
        target="rl.trainers.recipes.cql._config:CQL",
        summary="Conservative Q-learning from a data set: one choice or bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="dt",
        target="rl.trainers.recipes.dt._config:DT",
        summary="Decision transformer from a data set: bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="gail",
        target="rl.trainers.recipes.gail._config:GAIL",
        summary="Imitation of a data set in the environment, with PPO: one choice or bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="diffusion-bc",
        target="rl.trainers.recipes.diffusion_bc._config:DIFFUSION_BC",
        summary="Diffusion policy from a data set: bounded continuous actions.",
    )
    yield Component(
        kind="recipe",
        name="act",
        target="rl.trainers.recipes.act._config:ACT",
        summary="Action chunks of a transformer, from a data set: bounded continuous actions.",
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
    """``rl train``, ``rl eval``, ``rl plot``, ``rl presets``, ``rl benchmark`` and ``rl dataset``."""
    yield Command(name="train", target="rl.trainers.cli:train", summary="Train an agent.")
    yield Command(name="eval", target="rl.trainers.cli:evaluate", summary="Evaluate a trained agent.")
    yield Command(name="plot", target="rl.trainers.cli:plot", summary="Draw a run's learning curve again.")
    yield Command(name="presets", target="rl.trainers.cli:presets", summary="List settings for environments.")
    yield Command(name="benchmark", target="rl.trainers.cli:benchmark", summary="Train a list of cases; make a table.")
    yield Command(name="dataset", target="rl.trainers.cli:dataset", summary="Record or describe a data set.")
