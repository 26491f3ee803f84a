"""`as_env`: environments that know rl-core alone, in transforms, batches and rollouts."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.core.mdp import StepMDP
from rl.core.specs import Categorical, Composite, Unbounded
from rl.envs import EnvAdapter, EnvBase, PendulumEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv, as_env
from rl.testing import CountingEnv, check_env


class Line:
    """Walks along a line and never ends; it holds its place itself and has no leaf form. Its buffers are reused."""

    def __init__(self, batch_size=()):
        b = self.batch_size = torch.Size(batch_size)
        self.observation_spec = Composite(observation=Unbounded((*b, 1)), shape=b)
        self.full_action_spec = Composite(action=Categorical(2, shape=b), shape=b)
        self.full_reward_spec = Composite(reward=Unbounded((*b, 1)), shape=b)
        self.full_done_spec = Composite(done=Categorical(2, shape=(*b, 1), dtype=torch.bool), shape=b)
        self.place, self.speed, self.closed = torch.zeros(*b, 1), 1.0, 0

    def _no(self):
        return torch.zeros(*self.batch_size, 1, dtype=torch.bool)

    def reset(self, tensordict=None):
        if tensordict is None or tensordict.get("_reset", None) is None:
            self.place = torch.zeros(*self.batch_size, 1)
            return TensorDict(observation=self.place.clone(), done=self._no(), batch_size=self.batch_size)
        mask = tensordict["_reset"]
        self.place = torch.where(mask, 0.0, self.place)
        fresh = {"observation": torch.where(mask, 0.0, tensordict["observation"]), "done": tensordict["done"] & ~mask}
        return tensordict.exclude("_reset").update(fresh)

    def step(self, tensordict):
        self.place += self.speed * (2.0 * tensordict["action"].unsqueeze(-1) - 1)
        outcome = {"observation": self.place, "reward": self.place, "done": self._no()}
        return tensordict.set("next", TensorDict(outcome, batch_size=self.batch_size))

    def step_and_maybe_reset(self, tensordict):
        root = StepMDP.from_env(self)(self.step(tensordict)).clone()
        return tensordict, self.reset(root.set("_reset", root["done"])) if root["done"].any() else root

    def set_seed(self, seed):
        return seed + 1

    def close(self):
        self.closed += 1


MAKERS = [
    pytest.param(Line, id="no-batch"),
    pytest.param(lambda: Line([3]), id="batch"),
    pytest.param(CountingEnv, id="leaf-form"),
    pytest.param(lambda: CountingEnv([3, 5], (2,)), id="leaf-form-batch"),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_adapter_keeps_the_protocol(make):
    check_env(lambda: as_env(make()), steps=30)


@pytest.mark.parametrize("make", MAKERS)
def test_transforms_and_batches_take_what_knows_the_protocol_alone(make):
    check_env(
        lambda: SerialEnv(2, lambda: TransformedEnv(make(), StepCounter(max_steps=4)).append_transform(RewardSum())),
        steps=30,
    )


def walk(td):
    return td.set("action", torch.ones(td.batch_size, dtype=torch.int64))


def test_a_walk_along_the_line_by_hand():
    env = SerialEnv(2, lambda: TransformedEnv(Line(), StepCounter(max_steps=3)))
    data = env.rollout(5, walk, break_when_any_done=False)
    assert data["next", "observation"][..., 0].tolist() == [[1, 2, 3, 1, 2]] * 2
    assert data["observation"][..., 0].tolist() == [[0, 1, 2, 0, 1]] * 2
    assert data["next", "truncated"][..., 0].tolist() == [[False, False, True, False, False]] * 2
    assert not data["next", "terminated"].any()


def test_elements_that_are_not_reset_keep_their_entries():
    env = as_env(Line([2]))
    root = env.step_mdp(env.step(walk(env.reset())))
    fresh = env.reset(root.set("_reset", torch.tensor([[True], [False]])))
    assert fresh["observation"].flatten().tolist() == [0, 1]
    assert env.step(walk(fresh))["next", "observation"].flatten().tolist() == [1, 2]


@pytest.mark.parametrize("leaf_form", [True, False])
def test_flags_that_the_environment_leaves_out_are_filled_in(leaf_form):
    class OnlyTerminated(CountingEnv):
        def __init__(self):
            super().__init__(length=2)
            self.full_done_spec = Composite(terminated=Categorical(2, (1,), dtype=torch.bool))

        def reset_leaves(self, current=None, mask=None):
            return {k: v for k, v in super().reset_leaves(current, mask).items() if k not in ("done", "truncated")}

        def step_leaves(self, root):
            return {k: v for k, v in super().step_leaves(root).items() if k not in ("done", "truncated")}

    env = as_env(OnlyTerminated())
    if leaf_form:
        leaf = env.lowered()
        root = leaf.reset_leaves()
        assert not root["done"].item()
        for _ in range(2):
            root = leaf.step_leaves({**root, "action": torch.tensor(1)})
        assert root["done"].item()
        assert root["terminated"].item()
    else:
        assert env.rollout(9)["next", "done"].flatten().tolist() == [False, True]


def test_what_lacks_members_is_refused_with_their_names():
    class Half:
        batch_size = torch.Size([])

        def reset(self):
            pass

    for wrap in (as_env, TransformedEnv, lambda env: SerialEnv(1, lambda: env)):
        with pytest.raises(
            ArgumentError,
            match=r"^Half is no environment: it lacks observation_spec, full_action_spec, .*step, .*close\.",
        ):
            wrap(Half())
    with pytest.raises(ArgumentError, match="got the class Line: pass Line"):
        as_env(Line)


def test_specs_without_the_batch_are_refused():
    env = Line([3])
    env.observation_spec = Composite(observation=Unbounded(1))
    with pytest.raises(
        SpecError, match=r"Line\.observation_spec must be a Composite of shape \(3,\).*got one of shape \(\)"
    ):
        as_env(env)


def test_the_environment_shows_through():
    line = Line()
    env = as_env(line)
    assert as_env(env) is env
    assert isinstance(env, EnvBase)
    assert isinstance(env, EnvAdapter)
    assert TransformedEnv(line, StepCounter()).speed == 1.0
    assert env.set_seed(3) == 4
    with pytest.raises(SpecError, match=r"Line\.step was given 'action'"):
        env.step(env.reset().set("action", torch.tensor(2)))
    with pytest.raises(
        AttributeError, match=r"TransformedEnv has no attribute 'nothing', nor has its environment Line"
    ):
        TransformedEnv(line, StepCounter()).nothing  # noqa: B018  reading it is the test
    with env:
        pass
    assert line.closed == 1


def test_the_state_is_that_of_the_environment():
    class Stateful(Line):
        def state_dict(self):
            return {"place": self.place.clone()}

        def load_state_dict(self, state):
            self.place = state["place"].clone()

    env, other = as_env(Stateful()), as_env(Stateful())
    env.rollout(3, walk)
    assert other.load_state_dict(env.state_dict())
    assert other.base_env.place.item() == 3
    with pytest.warns(UserWarning, match="not restored exactly"):
        assert not as_env(Line()).load_state_dict(as_env(Line()).state_dict())


def test_an_environment_of_ours_is_left_as_it_is():
    env = PendulumEnv()
    assert TransformedEnv(env, StepCounter()).base_env is env
