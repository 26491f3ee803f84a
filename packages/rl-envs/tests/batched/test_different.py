"""Batches of environments whose specs differ: lazy stacks, equal to the environments one by one."""

from __future__ import annotations

import os
import pickle
import signal

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack

from rl.core.env_specs import check_env_specs, stack_faults
from rl.core.errors import CheckpointError, RLError, SpecError, WorkerError
from rl.core.specs import Bounded, Categorical, Composite, Stacked, Unbounded
from rl.envs import (
    ActionMask,
    AsyncEnvPool,
    CartPoleEnv,
    EnvBase,
    GymWrapper,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env,
)


class Walk(EnvBase):
    """A walk of `size` places at once that ends after `length` steps; without ``truncated``."""

    def __init__(self, size, length=3, batch=()):
        super().__init__(batch_size=batch)
        self.size, self.length, self.start = size, length, 0
        self.observation_spec = Composite(place=Unbounded(size), count=Unbounded(1))
        self.action_spec = Composite(step=Bounded(-1, 1, shape=(size,)), gripper=Categorical(2 + size, shape=()))
        self.reward_spec = Unbounded(size)

    def _reset(self, tensordict):
        self.start += 1
        where = torch.full((*self.batch_size, self.size), float(self.start))
        return TensorDict(place=where, count=torch.zeros(*self.batch_size, 1), batch_size=self.batch_size)

    def _step(self, tensordict):
        place, count = tensordict["place"] + tensordict["step"], tensordict["count"] + 1
        ended = count >= self.length
        return TensorDict(place=place, count=count, reward=-place, terminated=ended, batch_size=self.batch_size)

    def _set_seed(self, seed):
        self.start = seed % 100

    def scaled(self, factor):
        return self.size * factor


@pytest.fixture
def makers(counting_gym):
    return [CartPoleEnv, PendulumEnv, lambda: Walk(2), lambda: GymWrapper(counting_gym([4, 2])), lambda: Walk(3, 5)]


BATCHES = {
    "serial": lambda makers: SerialEnv(len(makers), makers),
    "parallel": lambda makers: ParallelEnv(len(makers), makers, processes=2),
    "messages": lambda makers: ParallelEnv(len(makers), makers, processes=len(makers), shared_memory=False),
}


@pytest.fixture(params=BATCHES)
def batch(request):
    made = []

    def make(makers):
        made.append(BATCHES[request.param](makers))
        return made[-1]

    yield make
    for env in made:
        env.close()


def entries(tensordict):
    """Return the entries of a TensorDict that is no lazy stack, by key."""
    return dict(tensordict.items(include_nested=True, leaves_only=True))


def assert_equal(stacked, parts):
    assert len(stacked) == len(parts)
    for one, part in zip(stacked.unbind(0), parts, strict=True):
        got, expected = entries(one), entries(part)
        assert got.keys() == expected.keys()
        for key, leaf in expected.items():
            assert leaf.dtype == got[key].dtype
            assert torch.equal(leaf, got[key]), key


def loop(makers, seed, steps, until=lambda over: False):
    """Run random steps of environments one by one, in the order of a batch; done ones are reset."""
    envs, rows = [make() for make in makers], [[] for _ in makers]
    for env in envs:
        seed = env.set_seed(seed)
    torch.manual_seed(0)
    roots = [env.reset() for env in envs]
    for _ in range(steps):
        acted = [env.rand_action(root) for env, root in zip(envs, roots, strict=True)]
        pairs = [env.step_and_maybe_reset(td) for env, td in zip(envs, acted, strict=True)]
        roots = [root for _, root in pairs]
        for row, (stepped, _) in zip(rows, pairs, strict=True):
            row.append(stepped)
        if until([bool(stepped["next", "done"].all()) for stepped, _ in pairs]):
            break
    return [torch.stack(row) for row in rows]


def test_a_rollout_equals_the_environments_one_by_one(batch, makers):
    env = batch(makers)
    env.set_seed(7)
    torch.manual_seed(0)
    data = env.rollout(12, break_when_any_done=False)
    assert data.batch_size == (5, 12)
    assert data[0].names == ["time"]
    assert_equal(data, loop(makers, 7, 12))
    assert data["next", "done"].shape == (5, 12, 1)  # an entry that all have in one shape is read as one tensor
    assert data[1]["observation"].shape == (12, 3)
    assert "th" in data[1].keys()
    assert "th" not in data.keys()


def test_a_rollout_ends_at_the_first_end_of_an_episode(batch, makers):
    env = batch(makers)
    env.set_seed(7)
    torch.manual_seed(0)
    assert_equal(env.rollout(12), loop(makers, 7, 12, until=any))


def test_elements_that_ended_are_held_until_the_last_one(batch):
    data = batch([lambda: Walk(2, 2), lambda: Walk(3, 4)]).rollout(9, break_when_all_done=True)
    assert data["count"][..., 0].tolist() == [[0, 1, 2, 2], [0, 1, 2, 3]]
    assert data["next", "count"][..., 0].tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]
    assert data[0]["next", "reward"][2:].tolist() == [[0, 0], [0, 0]]


def test_a_lazy_stack_of_steps_has_the_same_entries(batch, makers):
    env = batch(makers)
    env.set_seed(7)
    torch.manual_seed(0)
    data = env.rollout(4, break_when_any_done=False, return_contiguous=False)
    expected = loop(makers, 7, 4)
    assert torch.equal(data[2].contiguous()["next", "place"], expected[2]["next", "place"])


def test_elements_of_batched_environments_are_reset_by_themselves(batch):
    env = batch([lambda: Walk(2, 3, (2,)), lambda: Walk(3, 3, (2,))])
    root = env.reset()
    for _ in range(2):
        root = env.step_mdp(env.rand_step(root))
    mask = torch.tensor([[[False], [True]], [[False], [False]]])
    before = root.clone()
    fresh = env.reset(root.set("_reset", mask))
    assert "_reset" not in fresh.keys()
    assert fresh["count"][..., 0].tolist() == [[2, 0], [2, 2]]
    assert fresh[0]["place"][1].tolist() == [2, 2]  # its second episode
    assert torch.equal(fresh[0]["place"][0], before[0]["place"][0])
    assert torch.equal(fresh[1]["place"], before[1]["place"])
    nothing = env.reset(fresh.clone().set("_reset", torch.zeros_like(mask)))
    assert_equal(nothing, fresh.unbind(0))


def test_specs_are_stacks_and_keys_are_those_of_all(batch):
    env = batch([CartPoleEnv, PendulumEnv])
    assert isinstance(env.observation_spec, Stacked)
    assert env.observation_spec["observation"].shape == (2, -1)
    assert env.observation_spec[1] == PendulumEnv().observation_spec
    assert isinstance(env.reward_spec, Unbounded)
    assert env.reward_spec.shape == (2, 1)
    assert env.done_keys == ["done", "terminated"]
    assert env.action_keys == ["action"]
    assert env.action_spec.is_in(env.action_spec.rand())
    assert env.full_action_spec.is_in(env.rand_action())
    assert env.lowered() is None
    assert set(stack_faults(env)) == {"observation", "state", "th", "thdot", "action"}
    faults = stack_faults(batch([PendulumEnv, PendulumEnv, lambda: TransformedEnv(PendulumEnv(), StepCounter())]))
    assert faults == {"step_count": "environment 0 has nothing, environment 2 has int64 [1]"}
    bounded = batch([PendulumEnv, lambda: PendulumEnv(max_torque=1.0)])
    assert bounded.action_spec.shape == (2, 1)
    assert bounded.rollout(50)["action"].abs().amax((1, 2)).gt(torch.tensor([1.0, 0.0])).all()
    assert not stack_faults(bounded)
    fake = env.fake_tensordict()
    assert fake[1]["next", "th"].shape == ()
    with pytest.raises(SpecError, match="is a stack of the specs of its environments: assign theirs"):
        env.reward_spec = Unbounded(1)


def test_attributes_are_read_called_and_assigned(batch):
    env = batch([lambda: Walk(2), lambda: Walk(3), lambda: Walk(4)])
    assert env.size == [2, 3, 4]
    assert env.scaled(10) == [20, 30, 40]
    env.length = 1
    assert env.length == [1, 1, 1]
    assert env.rollout(5).batch_size == (3, 1)
    with pytest.raises(AttributeError, match="absent"):
        env.absent  # noqa: B018  # raises
    mixed = batch([lambda: Walk(2), PendulumEnv])
    with pytest.raises(AttributeError, match=r"PendulumEnv.* has an attribute 'scaled'"):
        mixed.scaled(1)


def test_views_leave_the_other_environments_as_they_are(batch, makers):
    env = batch(makers)
    env.set_seed(7)
    root = env.reset()
    one = env[2]
    assert one.batch_size == ()
    assert one.rollout(9, break_when_any_done=False)["next", "count"].flatten().tolist() == [1, 2, 3] * 3
    assert env[-1].observation_spec == Walk(3).observation_spec
    some = env[[4, 0]].rollout(3)
    assert some[0]["count"].flatten().tolist() == [0, 1, 2]
    assert some[1]["observation"].shape == (3, 4)
    alone = PendulumEnv()
    alone.set_seed(_seed_of(1, makers, 7))
    start = alone.reset()
    assert torch.equal(start["observation"], root[1]["observation"])
    acted = alone.rand_action(start.clone())
    assert torch.equal(env[1].step(acted.clone())["next", "observation"], alone.step(acted)["next", "observation"])
    with pytest.raises(Exception, match="5"):
        env[5]


def _seed_of(number, makers, seed):
    for make in makers[:number]:
        seed = make().set_seed(seed)
    return seed


def test_a_view_seeds_its_own_environment(batch):
    env = batch([CartPoleEnv, PendulumEnv])
    following = env[1].set_seed(3)
    alone = PendulumEnv()
    assert following == alone.set_seed(3)
    assert torch.equal(env.reset()[1]["observation"], alone.reset()["observation"])


def test_a_policy_writes_into_the_parts_of_a_lazy_stack(batch):
    env = batch([lambda: Walk(2), lambda: Walk(3)])

    def policy(td):
        for part in td.unbind(0):
            part["step"], part["gripper"] = part["place"].clamp(-1, 1), torch.tensor(1)
            part["seen"] = part["next", "seen"] = part["count"].clone()
        return td

    data = env.rollout(3, policy)
    assert data[1]["step"].shape == (3, 3)
    assert torch.equal(data["next", "seen"], data["count"])  # what a policy wrote under next is kept

    def of_its_own(td):
        return lazy_stack(
            [TensorDict(step=part["place"].clamp(-1, 1), gripper=torch.tensor(1)) for part in td.unbind(0)]
        )

    again = env.rollout(3, of_its_own)
    assert again[0]["step"].shape == (3, 2)


def test_given_actions_are_played(batch):
    env = batch([lambda: Walk(2), lambda: Walk(3)])
    data = env.rollout(3)
    again = env.rollout(9, actions=data.select("step", "gripper"))
    assert again.batch_size == (2, 3)
    assert torch.equal(again[1]["step"], data[1]["step"])
    steps = env.rollout(2, actions=[step.select("step", "gripper") for step in data.unbind(1)])
    assert torch.equal(steps[1]["step"], data[1]["step"][:2])


def test_random_actions_are_legal(batch):
    class Narrow(EnvBase):
        def __init__(self, classes):
            super().__init__()
            self.classes, self.legal = classes, 0
            self.observation_spec = Composite(action_mask=Categorical(2, shape=(classes,), dtype=torch.bool))
            self.action_spec = Categorical(classes, shape=())

        def _look(self):
            return TensorDict(action_mask=torch.arange(self.classes) == self.legal)

        def _reset(self, tensordict):
            self.legal = self.classes - 1
            return self._look()

        def _step(self, tensordict):
            right = tensordict["action"] == self.legal
            self.legal = (self.legal + 1) % self.classes
            return self._look().update({"reward": right.float().reshape(1)})

        def _set_seed(self, seed):
            pass

    env = batch([lambda n=n: TransformedEnv(Narrow(n), ActionMask()) for n in (4, 6)])
    assert env.rollout(12)["next", "reward"].eq(1).all()
    assert env[1].rollout(12)["next", "reward"].eq(1).all()


def test_a_state_continues_exactly(batch, makers):
    first, second = batch(makers[:2]), batch(makers[:2])
    first.set_seed(3)
    root = first.rollout(3)[:, -1]
    state = first.state_dict()
    assert second.load_state_dict(state)
    root = first.rand_action(first.step_mdp(root))
    assert_equal(second.step(root.clone()), first.step(root).unbind(0))
    with pytest.raises(CheckpointError, match="2"):
        second.load_state_dict({"restorable": True, "envs": []})


def test_it_agrees_with_its_specs(batch, makers, capsys):
    env = batch(makers[:3])
    env.check_env_specs(seed=0)
    check_env_specs(env)
    check_env(env, steps=30)
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.endswith("30 random steps")] == [
        f"{type(env).__name__}[{number}], batch [], 30 random steps" for number in range(3)
    ]


def test_a_fault_of_one_environment_is_named(batch):
    class Wide(Walk):
        def _reset(self, tensordict):
            return super()._reset(tensordict).set("place", torch.zeros(7))

    env = batch([lambda: Walk(2), lambda: Wide(3)])
    with pytest.raises(
        (SpecError, WorkerError), match=r"Wide\._reset does not agree(.|\n)*'place': expected float32 \[3\]"
    ):
        env.reset()
    env = batch([lambda: Walk(2), lambda: Walk(3)])
    td = env.rand_action(env.reset())
    td[1]["step"].fill_(9.0)
    with pytest.raises((SpecError, WorkerError), match=r"'step' that is not in its spec: .*\[3\]"):
        env.step(td)


def test_what_no_tensor_can_hold_is_named(batch):
    env = batch([CartPoleEnv, PendulumEnv])
    with pytest.raises(
        SpecError, match=r"rand_action was given a TensorDict(.|\n)*'action': environment 0 has int64 \[2\]"
    ):
        env.rand_action(TensorDict(batch_size=[2]))
    with pytest.raises(SpecError, match=r"observation specs of environments 0 and 1 differ(.|\n)*'th': environment 0"):
        TransformedEnv(env, StepCounter())
    with pytest.raises(SpecError, match=r"step was given a TensorDict of batch size \(3,\)"):
        env.step(TensorDict(batch_size=[3]))
    with pytest.raises(SpecError, match="batch size"):
        batch([CartPoleEnv, lambda: PendulumEnv([2])])
    with pytest.raises(SpecError, match="observation specs of environments 0 and 1 differ"):
        AsyncEnvPool([CartPoleEnv, PendulumEnv], backend="threading")


def test_entries_that_tensors_can_hold_may_come_without_a_lazy_stack(batch):
    env = batch([PendulumEnv, lambda: PendulumEnv(max_torque=1.0)])
    root = env.reset().contiguous()
    assert not isinstance(root, LazyStackedTensorDict)
    stepped = env.step(env.rand_action(root))
    assert stepped is root
    assert stepped["next", "observation"].shape == (2, 3)
    following = env.maybe_reset(env.step_mdp(stepped).contiguous())
    assert following["observation"].shape == (2, 3)
    marked = following.set("_reset", torch.tensor([[True], [False]]))
    fresh = env.reset(marked)
    assert fresh is marked
    assert "_reset" not in fresh.keys()
    assert torch.equal(fresh["observation"][1], stepped["next", "observation"][1])


def test_alike_environments_in_different_workers_are_one_dense_batch_still(makers):
    with ParallelEnv(2, [PendulumEnv, PendulumEnv], processes=2) as env:
        assert env.lowered() is not None
        assert not isinstance(env.reset(), LazyStackedTensorDict)


def test_a_worker_that_ended_or_failed_is_named():
    class Broken(Walk):
        def _step(self, tensordict):
            raise ValueError("the motor is hot")

    env = ParallelEnv(2, [lambda: Walk(2), lambda: Broken(3)], processes=2)
    root = env.rand_action(env.reset())
    with pytest.raises(WorkerError, match="worker 1 raised ValueError: the motor is hot"):
        env.step(root)
    with pytest.raises(RLError, match=r"environment 0, 1 was interrupted or failed.*Call reset\(\) first"):
        env.step(root)
    assert env.reset()["count"].tolist() == [[0], [0]]
    (first, _) = env._workers._workers  # no public name: a test ends a worker
    os.kill(first.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="worker 0 has ended"):
        env.rollout(2)
    env.close()
    env.close()
    with pytest.raises(RLError, match="closed"):
        env.reset()


def test_pickles_are_those_of_the_environments():
    env = SerialEnv(2, [CartPoleEnv, PendulumEnv])
    env.set_seed(3)
    other = pickle.loads(pickle.dumps(env))
    assert_equal(other.reset(), env.reset().unbind(0))
    view = pickle.loads(pickle.dumps(env[1]))
    assert view.rollout(3)["observation"].shape == (3, 3)
    with ParallelEnv(2, [CartPoleEnv, PendulumEnv]) as parallel, pytest.raises(RLError, match="cannot be copied"):
        pickle.dumps(parallel)


def test_closing_closes_all():
    env = SerialEnv(2, [CartPoleEnv, PendulumEnv])
    env.close()
    assert all(one.is_closed for one in env.envs)
    with pytest.raises(RLError, match="closed"):
        env.step(env.fake_tensordict())
