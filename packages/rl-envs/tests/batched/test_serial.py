from __future__ import annotations

import gymnasium
import pytest
import torch

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Unbounded
from rl.envs import Compose, GymEnv, GymWrapper, PendulumEnv, SerialEnv, StepCounter, TensorDictPrimer, TransformedEnv
from rl.testing import check_env


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: GymEnv("CartPole-v1"), id="gym"),
        pytest.param(lambda: TransformedEnv(PendulumEnv([2]), StepCounter(3)), id="batched"),
        pytest.param(lambda: TransformedEnv(PendulumEnv(), lambda td: td), id="no-leaf-form"),
    ],
)
def test_conformance(make):
    check_env(lambda: SerialEnv(3, make))


def test_rows_are_the_environments_one_by_one(counter):
    env = SerialEnv(2, [lambda: counter([2], batch=False), lambda: counter([3], batch=False)])
    assert env.lowered() is None
    data = env.rollout(6, break_when_any_done=False)
    assert data["observation"][..., 0].tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    held = env.rollout(9, break_when_all_done=True)
    assert held["next", "observation"][..., 0].tolist() == [[1, 2, 2], [1, 2, 3]]


@pytest.mark.parametrize("kwargs", [{}, {"frame_skip": 2}, {"info_keys": ["twice"]}, {"from_pixels": True}])
def test_gym_environments_stepped_together_equal_one_of_several(counting_gym, kwargs):
    def simulator():
        return counting_gym([2, 3], nested=True, noise=True, render_mode="rgb_array")

    serial = SerialEnv(3, lambda: GymWrapper(simulator(), **kwargs))
    one = GymWrapper([simulator() for _ in range(3)], **kwargs)
    for index, env in enumerate(serial.envs):
        env.set_seed(index)
    one.set_seed(0)
    for each in (*[env.gym_env for env in serial.envs], *one.gym_env):
        each.episode = -1  # the specs of pixels and info entries were found by a reset
    left, right = serial.lowered(), one.lowered()
    a, b = left.reset_leaves(), right.reset_leaves()
    for step in range(8):
        assert {key: value.tolist() for key, value in a.items()} == {key: value.tolist() for key, value in b.items()}
        torch.manual_seed(step)
        action = one.action_spec.rand()
        a, b = left.step_leaves({**a, "action": action}), right.step_leaves({**b, "action": action})
        assert a["reward"].tolist() == b["reward"].tolist()
        if a["done"].any():
            a, b = left.reset_leaves(a, a["done"]), right.reset_leaves(b, b["done"])
        a.pop("reward", None), b.pop("reward", None)


def test_gym_environments_stepped_together_are_restored_one_by_one(counting_gym):
    def make():
        env = SerialEnv(2, lambda: GymWrapper(counting_gym([4], noise=True)))
        env.set_seed(3)
        return env

    def step(leaf, root):
        return leaf.step_leaves({**root, "action": torch.tensor([[1, 0, 0], [0, 1, 0]])})

    env, other = make(), make()
    leaf = env.lowered()
    root = step(leaf, leaf.reset_leaves())
    assert other.load_state_dict(env.state_dict())
    assert torch.equal(step(other.lowered(), root)["observation"], step(leaf, root)["observation"])


def test_gym_environments_with_other_spaces_of_equal_specs_are_stepped_one_by_one():
    class Shifted(gymnasium.ActionWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.action_space = gymnasium.spaces.Discrete(2, start=5)

        def action(self, action):
            assert action in (5, 6)
            return action - 5

    env = SerialEnv(2, [lambda: GymEnv("CartPole-v1"), lambda: GymEnv("CartPole-v1", wrappers=[Shifted])])
    leaf = env.lowered()
    assert leaf.step_leaves({**leaf.reset_leaves(), "action": env.action_spec.rand()})["reward"].eq(1).all()


def test_elements_that_ended_are_held_in_the_leaf_form():
    env = SerialEnv(2, [lambda n=n: TransformedEnv(PendulumEnv(), StepCounter(n)) for n in (5, 5)])
    td = env.rand_action(env.reset()).set("_step", torch.tensor([True, False]))
    out = env.step(td)
    assert out["next", "step_count"].flatten().tolist() == [1, 0]
    assert torch.equal(out["next", "observation"][1], out["observation"][1])


def test_environments_are_seeded_one_from_the_other():
    env = SerialEnv(2, PendulumEnv)
    env.set_seed(0)
    root = env.reset()
    single = PendulumEnv()
    second = single.set_seed(0)
    assert torch.equal(single.reset()["th"], root["th"][0])
    single.set_seed(second)
    assert torch.equal(single.reset()["th"], root["th"][1])


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(ArgumentError, match="num_workers is 3"):
        SerialEnv(3, [PendulumEnv])
    with pytest.raises(SpecError, match="batch size"):
        SerialEnv(2, [PendulumEnv, lambda: PendulumEnv([2])])


def test_closing_closes_all():
    env = SerialEnv(2, PendulumEnv)
    env.close()
    assert all(one.is_closed for one in env.envs)


@pytest.mark.parametrize("transform", [[], [lambda td: td]], ids=["leaf-form", "tensordict-form"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_partial_reset_restarts_the_entries_of_transforms_and_keeps_those_of_others(which, transform):
    h = ("recurrent_state", "h")
    primer = TensorDictPrimer({h: Unbounded((2,))}, default_value=7.0)
    env = SerialEnv(3, lambda: TransformedEnv(PendulumEnv(), Compose(primer.clone(), *transform)))
    leaves = env.lowered()
    assert (leaves is None) == bool(transform)
    root = env.reset()
    assert (root[h] == 7).all()
    mask = torch.arange(3).unsqueeze(-1) == which
    expected = torch.where(mask, 7.0, 1.0).expand(3, 2)
    root[h] = torch.ones(3, 2)
    if leaves is not None:
        current = dict(root.items(include_nested=True, leaves_only=True))
        assert torch.equal(leaves.reset_leaves(current, mask)[h], expected)
        none = leaves.reset_leaves(current, torch.zeros_like(mask))
        assert torch.equal(none["observation"], root["observation"])
    assert torch.equal(env.reset(root.set("_reset", mask))[h], expected)


@pytest.mark.parametrize("transform", [[], [lambda td: td]], ids=["leaf-form", "tensordict-form"])
def test_nothing_moves_where_all_environments_are_held(transform):
    env = SerialEnv(2, lambda: TransformedEnv(PendulumEnv(), Compose(StepCounter(), *transform)))
    td = env.rand_action(env.reset()).set("_step", torch.tensor([False, False]))
    assert torch.equal(env.step(td)["next", "observation"], td["observation"])


@pytest.mark.parametrize("form", ["leaf-form", "tensordict-form"])
def test_a_late_change_of_one_environment_is_named(form):
    class Late(PendulumEnv):
        def __init__(self, at):
            super().__init__()
            self.left = at

        def _step_leaves(self, root):
            self.left -= 1
            out = super()._step_leaves(root)
            return out if self.left else {key: value for key, value in out.items() if key != "reward"}

    env = SerialEnv(3, [lambda at=at: Late(at) for at in (9, 3, 9)])
    message = r"Late\._step \(environment 1\) does not agree.*\n.*'reward': expected float32 \[1\], got nothing"
    with pytest.raises(SpecError, match=message):
        env.rollout(5) if form == "tensordict-form" else _leaf_steps(env, 5)


def _leaf_steps(env, steps):
    leaf = env.lowered()
    root = leaf.reset_leaves()
    for _ in range(steps):
        root = leaf.step_leaves({**root, "action": torch.zeros(3, 1)})


def test_rendering_is_that_of_the_first_environment():
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1", render_mode="rgb_array"))
    env.reset()
    assert env.render().shape == (400, 600, 3)
