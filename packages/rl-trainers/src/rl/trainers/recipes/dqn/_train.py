"""The recipe ``dqn``: deep Q-learning, in the loop of `q_learning`."""

from __future__ import annotations

from functools import partial
from typing import Any

from rl.core.interfaces import Env
from rl.core.keys import ACTION_VALUE
from rl.modules import QValueActor
from rl.objectives import DQNLoss
from rl.replay import BurnInTransform, LazyTensorStorage, ReplayBuffer, SliceSampler
from rl.trainers._build.actions import single_choice
from rl.trainers._build.legal_actions import mask_key
from rl.trainers._build.memory import with_memory
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.dqn._config import DQN, DQNConfig
from rl.trainers.recipes.q_learning._networks import value_network
from rl.trainers.recipes.q_learning._train import BREAK, train_q_learning

__all__ = ["dqn_policy", "train_dqn"]


def train_dqn(config: DQNConfig, **options: Any) -> TrainResult:
    """Train with deep Q-learning.

    Args:
        config: what to train, and how.
        options: ``out``: the run folder, which must not exist, the next free one under ``runs/`` if None; ``resume``:
            the folder of an earlier run, which continues from its last checkpoint; ``display``: ``rich``, ``plain``,
            ``none``, or ``auto`` for what fits the standard output; ``should_stop``: called with the frames so far
            after each round, true ends the run as Ctrl-C does.

    Raises:
        UnknownComponentError: if there is no such environment.
        SpecError: if the environment's actions are not discrete.
        RLError: if the run folder exists, or a loss is not finite.
        CheckpointError: if there is nothing to resume.

    Example:
        >>> import tempfile
        >>> config = DQNConfig(total_frames=256, learning_starts=128, frames_per_batch=128, updates_per_step=0.02,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_dqn(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    if config.policy == "mlp":
        return train_q_learning(DQN, config, dqn_policy, q_loss, **options)
    least = config.num_envs * (config.burn_in + config.sequence_length)
    return train_q_learning(DQN, config, dqn_policy, q_loss, sequences, least=least, **options)


def dqn_policy(config: DQNConfig, env: Env) -> QValueActor:
    """The untrained greedy policy: reads observations, writes action values and ``action``.

    Raises:
        SpecError: if the environment's action is not one choice of several.
    """
    spec = single_choice(env, "dqn")
    net = partial(value_network, config, env, (int(spec.n),), (1,))
    return QValueActor(with_memory(config, env, net, [ACTION_VALUE]), spec=spec, action_mask_key=mask_key(env))


def q_loss(config: DQNConfig, policy: QValueActor) -> DQNLoss:
    """DQN loss with one-step targets, or with lambda returns for a recurrent policy, whose samples are sequences.

    Actions that were not greedy are not corrected for, as in Kapturowski et al.; Kozuno et al., "Revisiting Peng's
    Q(lambda) for modern reinforcement learning", 2021, explain why this works.
    """
    loss = DQNLoss(policy, loss_function="smooth_l1", delay_value=True, double_dqn=config.double, gamma=config.gamma)
    if config.policy != "mlp":
        loss.make_value_estimator("td-lambda", gamma=config.gamma, lmbda=config.td_lambda)
    return loss


def sequences(config: DQNConfig, policy: QValueActor) -> ReplayBuffer:
    """Replay buffer of sequences ``[slices, sequence_length]`` with burned-in states.

    Sequences continue over the ends of episodes; the state is reset where ``is_init`` is true. Every step is therefore
    sampled with the same probability, also in episodes shorter than a sequence.
    """
    length = config.burn_in + config.sequence_length
    size = config.buffer_size - config.buffer_size % config.frames_per_batch  # whole batches
    values: Any = policy[0]  # the network before the choice of the action
    return ReplayBuffer(
        storage=LazyTensorStorage(size, device=config.device, ndim=2),
        sampler=SliceSampler(slice_len=length, end_key=BREAK, pad_output=True),
        batch_size=config.minibatch_size // config.sequence_length * length,
        transform=BurnInTransform(values[:-1], config.burn_in),  # without the layers after the recurrent ones
    )
