"""Recurrent Q-learning on windows of a replay buffer, against the network stepped by hand."""

import pytest
import torch
from tensordict.nn import TensorDictSequential
from torch import nn

from rl.collectors import Collector
from rl.envs import GymEnv
from rl.modules import GRUModule, QValueActor
from rl.objectives import DQNLoss
from rl.replay import LazyTensorStorage, Sequence, TensorDictReplayBuffer


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("boundary", ["pad", "stop", "include_reset"])
def test_a_recurrent_loss_warms_its_state_up_and_learns_from_the_learning_part(boundary, flat):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1", num_envs=3, categorical_action_encoding=True)
    env.set_seed(0)
    memory = GRUModule(4, 8, in_key="observation", out_key="features")
    head = QValueActor(nn.Linear(8, 2), in_keys=["features"], spec=env.action_spec)
    policy = TensorDictSequential(memory, head)
    unit = Sequence(length=4, burn_in=2, bootstrap=1, episode_boundary=boundary)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(300, ndim=2), sample_unit=unit, batch_size=64)
    buffer.extend(Collector(env, policy, frames_per_batch=300).collect())
    env.close()
    memory.load_state_dict({name: value + 0.1 for name, value in memory.state_dict().items()})  # states are outdated
    sample = buffer.sample()
    windows = sample.reshape(64, 7)
    assert not windows["validity_mask"].all()

    loss = DQNLoss(policy, action_space="categorical", gamma=0.9, delay_value=False)
    found = loss(sample if flat else windows)["loss"]

    squares = []
    with torch.no_grad():
        for window in windows:
            state = before = None
            for row in window[window["validity_mask"]]:
                start = before is None or bool(row["collector", "traj_ids"] != before)
                state, before = row["recurrent_state", "h"] if start else state, row["collector", "traj_ids"]
                out, state = memory.network(row["observation"][None], state)
                following, _ = memory.network(row["next", "observation"][None], state)
                target = row["next", "reward"] + 0.9 * ~row["next", "terminated"] * head.module[0](following).max()
                if row["learning_mask"]:
                    squares.append((head.module[0](out)[0, row["action"]] - target).square())
    torch.testing.assert_close(found, torch.stack(squares).mean())
