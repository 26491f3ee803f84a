"""Slices that are padded count as the same slices without padding: from the buffer through memory to the loss."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn

from rl.modules import LSTMModule
from rl.objectives import GAE, ClipPPOLoss, DQNLoss, PPOLoss, TDLambdaEstimator
from rl.replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

MASK = ("collector", "mask")
STATES = [("recurrent_state", "h"), ("recurrent_state", "c")]


def memory():
    return LSTMModule(3, 4, in_key="observation", out_key="features")


def q_net(*, recurrent):
    body = memory() if recurrent else TensorDictModule(nn.Linear(3, 4), ["observation"], ["features"])
    return TensorDictSequential(body, TensorDictModule(nn.Linear(4, 2), ["features"], ["action_value"]))


def actor_and_critic(*, recurrent):
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    body = memory() if recurrent else TensorDictModule(nn.Linear(3, 4), ["observation"], ["features"])
    actor = ProbabilisticTensorDictSequential(body, TensorDictModule(nn.Linear(4, 2), ["features"], ["logits"]), head)
    return actor, TensorDictSequential(body, TensorDictModule(nn.Linear(4, 1), ["features"], ["state_value"]))


def samples(seed=0):
    """Slices of episodes of 2 to 9 steps, padded to 6, and the same steps, one slice behind the other."""
    torch.manual_seed(seed)
    done = torch.zeros(60, 1, dtype=torch.bool)
    done[torch.tensor([1, 4, 8, 17, 22, 24, 31, 35, 44, 47, 50, 59])] = True
    first = torch.zeros_like(done)
    first[0], first[1:] = True, done[:-1]
    data = TensorDict(observation=torch.randn(60, 3), action=torch.randint(2, (60,)), is_init=first, batch_size=[60])
    data["action_log_prob"] = -torch.rand(60)
    data["advantage"], data["value_target"], data["state_value"] = (torch.randn(60, 1) for _ in range(3))
    after = {"observation": torch.randn(60, 3), "reward": torch.randn(60, 1), "done": done}
    data["next"] = TensorDict({**after, "terminated": done & (torch.rand(60, 1) < 0.5)}, batch_size=[60])
    for key in STATES:
        data["next", *key] = torch.randn(60, 1, 4)
        data[key] = data["next", *key].roll(1, 0).masked_fill(first.unsqueeze(-1), 0)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60),
        sampler=SliceSampler(slice_len=6, strict_length=False, pad_output=True),
        batch_size=6 * 20,
        generator=torch.Generator().manual_seed(seed),
    )
    buffer.extend(data)
    padded = buffer.sample()
    assert not padded[MASK].all()
    real = padded[padded[MASK]].exclude(MASK[0])
    real.names = ["time"]
    return padded, real


def check(loss, padded, real, keys=()):
    """Same figures, same gradients, and nothing of what stands in the padding."""
    spoiled = padded.clone()
    for key in ("observation", "advantage", "value_target", ("next", "observation"), ("next", "reward"), *keys):
        spoiled[key][~spoiled[MASK]] += 1e3
    expected, gradients = None, None
    for batch in (real, padded, spoiled):
        out = loss(batch.clone())
        found = torch.autograd.grad(sum(out[key] for key in out.keys() if key.startswith("loss")), [*loss.parameters()])
        if expected is None:
            expected, gradients = out, found
            continue
        for key in expected.keys():
            torch.testing.assert_close(out[key], expected[key], atol=1e-5, rtol=1e-4)
        for one, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_padding_changes_no_dqn_loss(double, recurrent, reduction):
    check(DQNLoss(q_net(recurrent=recurrent), double_dqn=double, reduction=reduction), *samples())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss])
def test_padding_changes_no_ppo_loss(kind, recurrent, reduction):
    loss = kind(*actor_and_critic(recurrent=recurrent), normalize_advantage=True, clip_value=0.3, reduction=reduction)
    check(loss, *samples())


@pytest.mark.parametrize("loss", ["dqn", "ppo"])
def test_elements_of_padding_are_zero(loss):
    padded, real = samples()
    module = (
        DQNLoss(q_net(recurrent=True), reduction="none")
        if loss == "dqn"
        else PPOLoss(*actor_and_critic(recurrent=True), reduction="none")
    )
    name = "loss" if loss == "dqn" else "loss_objective"
    found, expected = module(padded)[name], module(real)[name]
    assert found.shape == padded.batch_size
    assert not found[~padded[MASK]].any()
    torch.testing.assert_close(found[padded[MASK]], expected)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_estimates_of_real_steps_do_not_see_padding(average, recurrent):
    padded, real = samples()
    critic = actor_and_critic(recurrent=recurrent)[1]
    estimators = [GAE(value_network=critic, average_gae=average), TDLambdaEstimator(value_network=critic)]
    for estimator in estimators:
        found, expected = estimator(padded.clone()), estimator(real.clone())
        for key in ("advantage", "value_target", "state_value"):
            torch.testing.assert_close(found[key][padded[MASK]], expected[key], atol=1e-5, rtol=1e-4)
