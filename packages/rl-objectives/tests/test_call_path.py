"""Length of the path from a batch to a loss: Python functions of ours that one call passes."""

import sys
from collections import Counter

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical

from rl.objectives import GAE, ClipPPOLoss, SoftUpdate, TD3Loss


def passed(*calls):
    """Functions of rl-core and rl-objectives that calls pass in steady state, by number of calls.

    Comprehensions and generator expressions are not counted: some versions of Python inline them.
    """
    for _ in range(3):
        for call in calls:
            call()
    found = Counter()

    def profile(frame, event, _):
        name = frame.f_code.co_qualname
        if event == "call" and not name.endswith(("comp>", "<genexpr>")):
            module = frame.f_globals.get("__name__", "")
            found[module, name] += module.startswith(("rl.core.", "rl.objectives."))

    sys.setprofile(profile)
    try:
        for call in calls:
            call()
    finally:
        sys.setprofile(None)
    return +found


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, outputs))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(5, 1)

    def forward(self, observation, action):
        return self.layers(torch.cat([observation, action], -1))


def outcome(*size):
    flag = torch.zeros(*size, 1, dtype=torch.bool)
    reward, observation = torch.randn(*size, 1), torch.randn(*size, 3)
    flags = {"done": flag, "terminated": flag, "truncated": flag}
    return TensorDict(observation=observation, reward=reward, **flags, batch_size=size)


def test_td3_update():
    actor = TensorDictModule(mlp(3, 2), ["observation"], ["action"])
    critic = TensorDictModule(Critic(), ["observation", "action"], ["state_action_value"])
    loss = TD3Loss(actor, critic, bounds=(-1.0, 1.0))
    updater = SoftUpdate(loss, tau=0.005)
    batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=outcome(8), batch_size=[8])
    found = passed(lambda: loss.critic_loss(batch), lambda: loss.actor_loss(batch), updater.step)
    assert len(found) <= 45, found
    assert found.total() <= 110, found


@pytest.mark.parametrize(("name", "functions", "calls"), [("gae", 45, 60), ("ppo", 38, 55)])
def test_ppo_update(name, functions, calls):
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    actor = ProbabilisticTensorDictSequential(TensorDictModule(mlp(3, 2), ["observation"], ["logits"]), head)
    critic = TensorDictModule(mlp(3, 1), ["observation"], ["state_value"])
    batch = actor(TensorDict(observation=torch.randn(4, 6, 3), batch_size=[4, 6])).detach()
    batch["next"], batch["collector", "traj_ids"] = outcome(4, 6), torch.arange(4).unsqueeze(-1).expand(4, 6)
    gae, loss = GAE(value_network=critic), ClipPPOLoss(actor, critic)
    rows = gae(batch).reshape(-1)
    found = passed(lambda: gae(batch)) if name == "gae" else passed(lambda: loss(rows))
    assert len(found) <= functions, found
    assert found.total() <= calls, found
