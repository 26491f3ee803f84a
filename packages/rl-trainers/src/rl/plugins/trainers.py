"""Components of rl-trainers, as data."""

from collections.abc import Iterator

from rl.core.component import Command, Component
from rl.core.hookspecs import hookimpl

_RECIPES = {
    "ppo": ("ppo", "Proximal policy optimization: on-policy, discrete or continuous actions."),
    "a2c": ("a2c", "Advantage actor-critic: on-policy, discrete or continuous actions."),
    "reinforce": ("reinforce", "REINFORCE with an optional baseline: on-policy, discrete or continuous actions."),
    "impala": ("impala", "V-trace actor-critic: batches of an older policy, discrete or continuous actions."),
    "ppo-rnd": ("ppo_rnd", "PPO with random network distillation: exploration where rewards are rare."),
    "dqn": ("dqn", "Deep Q-learning: off-policy, discrete actions."),
    "c51": ("dqn", "Distributional deep Q-learning with fixed atoms: off-policy, discrete actions."),
    "qrdqn": ("dqn", "Quantile regression deep Q-learning: off-policy, discrete actions."),
    "rainbow": ("dqn", "Rainbow, six improvements of deep Q-learning: off-policy, discrete actions."),
    "sac": ("sac", "Soft actor-critic: off-policy, bounded continuous actions."),
    "discrete-sac": ("sac", "Soft actor-critic: off-policy, discrete actions."),
    "crossq": ("sac", "CrossQ, soft actor-critic without target networks: off-policy, bounded continuous actions."),
    "tqc": ("sac", "Truncated quantile critics: off-policy, bounded continuous actions."),
    "redq": ("sac", "Randomized ensembled double Q-learning: off-policy, bounded continuous actions."),
    "td3": ("td3", "Twin delayed deep deterministic policy gradient: off-policy, bounded continuous actions."),
    "ddpg": ("td3", "Deep deterministic policy gradient: off-policy, bounded continuous actions."),
    "mbpo": ("mbpo", "Soft actor-critic on rollouts in a learned ensemble: vectors, bounded continuous actions."),
    "cem-mpc": ("cem_mpc", "Plans in a learned ensemble by the cross-entropy method: vectors, bounded actions."),
    "dreamer-v3": ("dreamer", "DreamerV3, actor-critic in the imagination of a world model: vectors or an image."),
    "dreamer": ("dreamer", "Dreamer, gradients through a world model: bounded continuous actions."),
    "tdmpc2": ("tdmpc2", "TD-MPC2, planning in a latent space: bounded continuous actions."),
    "mappo": ("mappo", "Proximal policy optimization of groups of agents, with centralized critics."),
    "ippo": ("mappo", "Proximal policy optimization of independent agents."),
    "qmix": ("qmix", "Q-learning of a team of agents with a monotonic mixer: discrete actions."),
    "vdn": ("qmix", "Q-learning of a team of agents whose values are added: discrete actions."),
    "iql-ma": ("qmix", "Independent Q-learning of several agents: discrete actions."),
    "maddpg": ("maddpg", "Deterministic policy gradient of groups of agents: bounded continuous actions."),
    "bc": ("bc", "Behaviour cloning from a data set."),
    "td3-bc": ("td3_bc", "TD3 with behaviour cloning from a data set: bounded continuous actions."),
    "iql": ("iql", "Implicit Q-learning from a data set: one choice or bounded continuous actions."),
    "cql": ("cql", "Conservative Q-learning from a data set: one choice or bounded continuous actions."),
    "dt": ("dt", "Decision transformer from a data set: bounded continuous actions."),
    "gail": ("gail", "Imitation of a data set in the environment, with PPO: one choice or bounded continuous actions."),
    "diffusion-bc": ("diffusion_bc", "Diffusion policy from a data set: bounded continuous actions."),
    "act": ("act", "Action chunks of a transformer, from a data set: bounded continuous actions."),
}
"""Page and summary of each algorithm, by its name."""

_LOGGERS = {
    "csv": ("loggers:CSVLogger", "metrics.csv in the run folder.", None),
    "tensorboard": ("loggers:TensorBoardLogger", "TensorBoard events in the run folder.", None),
    "wandb": ("tracking:WandbLogger", "Weights & Biases.", "wandb"),
    "mlflow": ("tracking:MLflowLogger", "MLflow, in mlflow.db beside the run folder or on a server.", "mlflow"),
    "trackio": ("tracking:TrackioLogger", "Trackio, on this machine.", "trackio"),
}
"""Target, summary and extra of each logger, by its name."""


@hookimpl
def rl_components() -> Iterator[Component]:
    """Recipes and loggers."""
    for name, (page, summary) in _RECIPES.items():
        target = f"rl.trainers.algorithms.{page}:{name.replace('-', '_').upper()}"
        yield Component(kind="recipe", name=name, target=target, summary=summary)
    for name, (target, summary, extra) in _LOGGERS.items():
        yield Component(kind="logger", name=name, target=f"rl.trainers.{target}", summary=summary, extra=extra)


@hookimpl
def rl_commands() -> Iterator[Command]:
    """``rl train``, ``rl eval``, ``rl runs``, ``rl plot``, ``rl compare`` and others."""
    yield Command(name="train", target="rl.trainers.cli:train", summary="Train an agent.")
    yield Command(name="eval", target="rl.trainers.cli:evaluate", summary="Evaluate a trained agent.")
    yield Command(name="play", target="rl.trainers.cli:play", summary="Watch a trained agent, or play yourself.")
    yield Command(name="hub", target="rl.trainers.cli:hub", summary="Share a run: push, pull, card.")
    yield Command(name="plot", target="rl.trainers.cli:plot", summary="Draw learning curves of runs.")
    yield Command(name="runs", target="rl.trainers.cli:runs", summary="List, describe and delete runs.")
    yield Command(name="tune", target="rl.trainers.cli:tune", summary="Search for settings of a recipe.")
    yield Command(name="export", target="rl.trainers.cli:export", summary="Write a policy as ONNX or torch.export.")
    yield Command(name="compare", target="rl.trainers.cli:compare", summary="Compare two groups of runs.")
    yield Command(name="new", target="rl.trainers.cli:new", summary="`rl new recipe FILE`: copy a recipe to change it.")
    yield Command(name="presets", target="rl.trainers.cli:presets", summary="List settings for environments.")
    yield Command(name="benchmark", target="rl.trainers.cli:benchmark", summary="Train a list of cases; write a table.")
    yield Command(name="completion", target="rl.trainers.cli:completion", summary="Print a script for Tab in a shell.")
    yield Command(name="dataset", target="rl.trainers.cli:dataset", summary="Record or describe a data set.")
