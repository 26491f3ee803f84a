"""`rollout` gives the same on tensors by key and on TensorDicts."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl.core.errors import RLError, SpecError
from rl.core.specs import Unbounded
from rl.envs import CartPoleEnv, GymEnv, PendulumEnv, RewardSum, StepCounter, TensorDictPrimer


class NotLowered:
    """A policy that is called with TensorDicts."""

    def __init__(self, policy):
        self.policy = policy

    def __call__(self, td):
        return self.policy(td)


def push(observation):
    return (observation[..., 2] > 0).long()


def make(kind):
    if kind == "gym":
        env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    elif kind == "gyms":
        env = GymEnv("CartPole-v1", num_envs=3, categorical_action_encoding=True)
    else:
        env = CartPoleEnv([2, 2], categorical_action_encoding=True).append_transform(StepCounter(max_steps=7))
    env = env.append_transform(RewardSum())
    env.set_seed(3)
    return env


@pytest.mark.parametrize("kind", ["gym", "gyms", "native"])
@pytest.mark.parametrize("go_on", [False, True])
def test_both_forms_agree(kind, go_on):
    policy = TensorDictModule(push, ["observation"], ["action"])
    options = {"break_when_any_done": not go_on, "set_truncated": True}
    fast = make(kind).rollout(60, policy, **options)
    slow = make(kind).rollout(60, NotLowered(policy), **options)
    assert fast.names == slow.names
    assert (fast == slow).all()
    assert set(fast.keys(True, True)) == set(slow.keys(True, True))


def test_a_state_under_next_is_carried_and_reset():
    class Memory(torch.nn.Module):
        def forward(self, observation, memory):
            return push(observation), memory + 1

    policy = TensorDictSequential(TensorDictModule(Memory(), ["observation", "memory"], ["action", ("next", "memory")]))
    env = make("gyms").append_transform(TensorDictPrimer({"memory": Unbounded(1)}))
    data = env.rollout(30, policy, break_when_any_done=False)
    count = torch.zeros(3, 1)
    for t in range(30):
        assert (data["memory"][:, t] == count).all()
        assert (data["next", "memory"][:, t] == count + 1).all()
        count = torch.where(data["next", "done"][:, t], 0, count + 1)


def test_other_entries_of_the_start_stay():
    start = PendulumEnv().reset().set("goal", torch.tensor([7.0]))
    policy = TensorDictModule(lambda x: x[..., :1], ["observation"], ["action"])
    data = PendulumEnv().rollout(3, policy, auto_reset=False, tensordict=start)
    assert data["goal"].tolist() == [[7.0]] * 3
    assert (data["observation"][0] == start["observation"]).all()


def test_random_actions_cover_the_choices_and_follow_the_seed():
    env = GymEnv("CartPole-v1", num_envs=2)
    torch.manual_seed(1)
    one = env.rollout(400, break_when_any_done=False)["action"]
    torch.manual_seed(1)
    two = env.rollout(400, break_when_any_done=False)["action"]
    assert (one == two).all()
    assert (one.sum(-1) == 1).all()
    assert 0.4 < one[..., 0].float().mean() < 0.6


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("form", ["list", "generator", "tuple", "entries"])
def test_actions_of_single_steps(form, batch):
    actions = torch.rand(*batch, 4, 1)
    expected = PendulumEnv(batch, seed=0).rollout(9, actions=actions)
    steps = list(actions.unbind(len(batch)))
    if form == "entries":
        steps = [TensorDict(action=one, batch_size=batch) for one in steps]
    given = {"generator": (one for one in steps), "tuple": tuple(steps)}.get(form, steps)
    assert (PendulumEnv(batch, seed=0).rollout(9, actions=given) == expected).all()


def test_no_more_actions_are_read_than_steps():
    endless = (torch.ones(1) for _ in iter(int, 1))
    assert len(PendulumEnv().rollout(3, actions=endless)) == 3


@pytest.mark.parametrize("actions", [[], 3, [1.0, 2.0]], ids=str)
def test_actions_of_another_kind_are_refused(actions):
    with pytest.raises(RLError, match=r"rollout\(actions=...\) takes a tensor or TensorDict with all steps"):
        PendulumEnv().rollout(3, actions=actions)
    with pytest.raises(RLError, match="actions of single steps differ"):
        PendulumEnv().rollout(3, actions=[torch.ones(1), torch.ones(2)])


def test_a_plain_network_is_told_how_to_become_a_policy():
    with pytest.raises(SpecError, match=r"the policy Linear failed on a TensorDict .*wrap a plain network"):
        PendulumEnv().rollout(3, torch.nn.Linear(3, 1))
