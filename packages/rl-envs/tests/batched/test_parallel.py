"""ParallelEnv: the same data as SerialEnv, from other processes."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError, WorkerError
from rl.core.specs import Categorical, Composite, Unbounded
from rl.envs import (
    AsyncEnvPool,
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from rl.testing import check_env


def cartpole():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())


class Walk(EnvBase):
    """Reads its observation from the root entries."""

    def __init__(self, limit=3.0):
        super().__init__()
        self.limit = limit
        self.observation_spec = Composite(observation=Unbounded(1))
        self.action_spec = Unbounded(1)

    def _reset(self, tensordict):
        return TensorDict(observation=torch.zeros(1))

    def _step(self, tensordict):
        place = tensordict["observation"] + tensordict["action"]
        return TensorDict(observation=place, reward=-place.abs(), terminated=place.abs() > self.limit)

    def _set_seed(self, seed):
        pass

    def scaled(self, factor):
        return self.limit * factor


class Pair(EnvBase):
    """Two agents with rewards and flags of their own."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(agents=Composite(place=Unbounded((2, 1)), shape=()))
        self.action_spec = Composite(agents=Composite(action=Unbounded((2, 1)), shape=()))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=()))
        flag = Categorical(2, shape=(2, 1), dtype=torch.bool)
        self.done_spec = Composite(agents=Composite(done=flag, terminated=flag.clone(), shape=()))

    def _reset(self, tensordict):
        return TensorDict(agents=TensorDict(place=torch.zeros(2, 1)))

    def _step(self, tensordict):
        place = tensordict["agents", "place"] + tensordict["agents", "action"].abs()
        return TensorDict(agents=TensorDict(place=place, reward=-place, terminated=place > 4))

    def _set_seed(self, seed):
        pass


BACKENDS = {
    "one process": lambda makers: makers[0](),
    "serial": lambda makers: SerialEnv(2, makers),
    "parallel": lambda makers: ParallelEnv(2, makers, processes=2),
    "parallel, two in a process": lambda makers: ParallelEnv(2, makers, processes=1),
    "messages": lambda makers: ParallelEnv(2, makers, processes=2, shared_memory=False),
    "pool": AsyncEnvPool,
    "threads": lambda makers: AsyncEnvPool(makers, backend="threading"),
}

MAKERS = {
    "gym": cartpole,
    "state": PendulumEnv,
    "batched": lambda: PendulumEnv([2]),
    "root": Walk,
    "groups": Pair,
}


@pytest.fixture(params=MAKERS)
def both(request):
    make = MAKERS[request.param]
    serial, parallel = SerialEnv(3, make), ParallelEnv(3, make, processes=2)
    yield serial, parallel
    parallel.close()


def test_conformance():
    made = []

    def make():
        made.append(ParallelEnv(3, cartpole, processes=2))
        return made[-1]

    check_env(make)
    for env in made:
        env.close()


def test_rollouts_equal_those_of_a_serial_environment(both):
    found = []
    for env in both:
        assert env.set_seed(3) == both[0].set_seed(3)
        both[0].set_seed(3)
        torch.manual_seed(0)
        found.append(env.rollout(60, break_when_any_done=False))
    serial, parallel = found
    assert serial.batch_size == parallel.batch_size
    assert set(serial.keys(True, True)) == set(parallel.keys(True, True))
    for key in serial.keys(True, True):
        assert torch.equal(serial[key], parallel[key]), key
    assert (both[0].lowered() is None) == (both[1].lowered() is None)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_partial_resets_held_steps_and_views_leave_the_others_alone(shared_memory):
    env = ParallelEnv(4, PendulumEnv, processes=2, shared_memory=shared_memory)
    root = env.reset()
    mask = torch.tensor([False, False, True, False]).unsqueeze(-1)
    fresh = env.reset(root.clone().set("_reset", mask))
    same = (fresh["th"] == root["th"]).flatten().tolist()
    assert same == [True, True, False, True]
    held = env.rand_action(fresh.clone()).set("_step", torch.tensor([True, False, False, False]))
    out = env.step(held)
    assert torch.equal(out["next", "observation"][1:], fresh["observation"][1:])
    assert not torch.equal(out["next", "observation"][0], fresh["observation"][0])
    view = env[1:3]
    assert (view.batch_size, env[3].batch_size) == (torch.Size([2]), torch.Size([]))
    assert view.rollout(5).batch_size == torch.Size([2, 5])
    check_env(lambda: SerialEnv(3, PendulumEnv)[[0, 2]])
    with pytest.raises(ArgumentError, match="has no environment; there are 4"):
        env[7:]
    env.close()


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_attributes_and_methods_of_the_environments(kind):
    env = kind(3, Walk, create_env_kwargs=[{"limit": 1.0}, {"limit": 2.0}, {"limit": 3.0}])
    outer = TransformedEnv(env, StepCounter())
    assert env.limit == outer.limit == [1.0, 2.0, 3.0]
    assert env.scaled(10) == outer.scaled(factor=10) == [10.0, 20.0, 30.0]
    with pytest.raises(AttributeError, match=f"neither {kind.__name__} nor Walk.* has an attribute 'absent'"):
        _ = env.absent
    assert not hasattr(outer, "absent")
    env.close()


def test_an_environment_with_processes_cannot_be_copied():
    env = ParallelEnv(2, Walk, processes=1)
    with pytest.raises(RLError, match="cannot be copied or pickled"):
        env.__getstate__()
    env.close()


def test_a_saved_state_is_continued_exactly():
    env = ParallelEnv(3, cartpole, processes=2)
    env.set_seed(0)
    root = env.rollout(7, break_when_any_done=False)[:, -1]
    root = env.step_mdp(root)
    state = env.state_dict()
    actions = env.rand_action(env.reset()).select("action")
    first = env.load_state_dict(state), env.step(root.clone().update(actions))["next"]
    other = ParallelEnv(3, cartpole, processes=3)
    again = other.load_state_dict(state), other.step(root.clone().update(actions))["next"]
    assert (first[0], again[0]) == (True, True)
    assert torch.equal(first[1]["observation"], again[1]["observation"])
    assert torch.equal(first[1]["step_count"], again[1]["step_count"])
    env.close()
    other.close()


def test_a_step_in_two_parts():
    env = ParallelEnv(2, PendulumEnv, processes=2)
    root = env.rand_action(env.reset())
    env.async_step_send(root)
    with pytest.raises(RLError, match="call async_step_recv first"):
        env.reset()
    sent = env.async_step_recv()
    assert torch.equal(sent["th"], SerialEnv(2, PendulumEnv).step(root.exclude("next"))["next", "th"])
    with pytest.raises(RLError, match="send a step first"):
        env.async_step_recv()
    env.close()


class Words(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "start", {}

    def step(self, action):
        return f"word {action}", 1.0, False, False, {}


def test_entries_that_are_no_tensors_are_sent_as_messages():
    def make():
        return GymWrapper(Words())

    with pytest.raises(ArgumentError, match=r"'observation' is no tensor.*shared_memory=False"):
        ParallelEnv(2, make)
    env = ParallelEnv(2, make, shared_memory=False)
    td = env.rand_action(env.reset())
    assert list(td["observation"]) == ["start", "start"]
    assert all(word.startswith("word") for word in env.step(td)["next", "observation"])
    env.close()


def test_faults_of_environments_and_workers_are_named():
    class Broken(Walk):
        def _step(self, tensordict):
            raise ValueError("the motor is hot")

    env = ParallelEnv(2, [Walk, Broken], processes=2)
    with pytest.raises(WorkerError, match="ParallelEnv: worker 1 raised ValueError: the motor is hot"):
        env.rollout(2)
    env.close()
    with pytest.raises(WorkerError, match="worker 0 raised ZeroDivisionError"):
        ParallelEnv(2, lambda: 1 / 0)
    env = ParallelEnv(2, Walk, processes=2)
    (first, _) = env._workers._workers
    os.kill(first.process.pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerError, match="worker 0 has ended"):
        env.rollout(2)
    assert time.monotonic() - start < 2
    env.close()
    env.close()
    with pytest.raises(RLError, match="closed"):
        env.reset()


class Slow(PendulumEnv):
    def _step_leaves(self, root):
        time.sleep(0.5)
        return super()._step_leaves(root)


@pytest.mark.parametrize("backend", ["parallel", "messages", "pool", "threads"])
def test_a_call_while_another_thread_steps_is_refused(backend):
    env = BACKENDS[backend]([Slow, Slow])
    with ThreadPoolExecutor(1) as other:
        root = env.rand_action(env.reset())
        running = other.submit(env.step, root.clone())
        time.sleep(0.1)
        for call in (env.reset, lambda: env.step(root.clone()), lambda: env.batch_locked and env.absent):
            with pytest.raises(RLError, match="is in use by another thread: give each thread"):
                call()
        assert running.result()["next", "reward"].shape == (2, 1)
        env.reset()
        other.submit(env.reset).result()  # one after the other
    env.close()


def test_an_exception_without_a_text_is_reported():
    class Mute(ValueError):
        def __str__(self):
            raise TypeError("no text")

    class Broken(Walk):
        def _step(self, tensordict):
            raise Mute

    for backend in ("parallel", "threads"):
        env = BACKENDS[backend]([Broken, Walk])
        with pytest.raises(WorkerError, match=r"worker 0 raised Mute: \(its str\(\) raised TypeError\)"):
            env.rollout(2)
        env.close()


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os._exit(1), r"exit code 1; what it printed may say why"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"signal SIGKILL; the system kills processes where memory runs out",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "signal SIGTERM"),
    ],
)
def test_the_end_of_a_worker_is_described_by_its_cause(end, said):
    class Ends(Walk):
        def _step(self, tensordict):
            end()

    env = ParallelEnv(2, [Walk, Ends], processes=2)
    with pytest.raises(WorkerError, match=rf"worker 1 has ended \({said}\)\. Close this object and create a new one"):
        env.rollout(2)
    env.close()


@pytest.mark.parametrize("backend", ["serial", "parallel", "messages", "pool"])
def test_all_environments_have_a_static_seed(backend):
    env = BACKENDS[backend]([lambda: TransformedEnv(PendulumEnv(), StepCounter())] * 2)
    assert env.set_seed(3, static_seed=True) == 3
    first, second = env.reset()["th"].tolist()
    assert first == second
    assert env.set_seed(3) != 3
    first, second = env.reset()["th"].tolist()
    assert first != second
    env.close()


class Seeded(Walk):
    """Has the signature of before."""

    seeds: tuple[int, ...] = ()

    def set_seed(self, seed):
        self.seeds += (seed,)
        return seed + 1


def test_an_environment_whose_set_seed_has_no_static_seed_is_seeded_in_a_batch():
    envs = [Seeded(), Seeded()]
    env = SerialEnv(2, [lambda: TransformedEnv(envs[0], Compose()), lambda: envs[1]])
    assert env.set_seed(3) == 5
    assert [one.seeds for one in envs] == [(3,), (4,)]


def test_spawned_workers():
    env = ParallelEnv(2, PendulumEnv, mp_start_method="spawn", processes=1, create_env_kwargs={"batch_size": [2]})
    assert env.rollout(3).batch_size == torch.Size([2, 2, 3])
    env.close()


def test_transforms_around_and_inside():
    inside = ParallelEnv(2, cartpole, processes=2)
    env = TransformedEnv(inside, Compose(StepCounter(max_steps=4, step_count_key="outer")))
    data = env.rollout(9, break_when_any_done=False)
    assert data["next", "outer"].max() == 4
    env.close()
    assert inside.is_closed


@pytest.mark.parametrize("shared_memory", [True, False])
def test_after_an_error_of_one_environment_no_result_is_that_of_an_earlier_call(shared_memory):
    class Moody(PendulumEnv):
        number = 0

        def say(self, bad):
            if self.number == bad:
                raise ValueError("no")
            return (bad, self.number)

        def _step_leaves(self, root):
            if self.number == 1 and (root["action"] > 1).any():
                raise ValueError("too much")
            return super()._step_leaves(root)

    def maker(number):
        def make():
            env = Moody()
            env.number = number
            return env

        return make

    env = ParallelEnv(3, [maker(i) for i in range(3)], processes=3, shared_memory=shared_memory)
    with pytest.raises(WorkerError, match="worker 1 raised ValueError: no"):
        env.say(1)
    assert env.say(7) == [(7, 0), (7, 1), (7, 2)]
    root = env.reset()
    root["action"] = torch.full((3, 1), 2.0)
    with pytest.raises(WorkerError, match="too much"):
        env.step(root.clone())
    root = env.reset()
    serial = SerialEnv(3, PendulumEnv)
    serial_root = serial.reset(root.clone(), set_state=True)
    root["action"] = serial_root["action"] = torch.zeros(3, 1)
    found, expected = env.step(root)["next", "observation"], serial.step(serial_root)["next", "observation"]
    assert torch.equal(found, expected)
    env.close()


def step_until_one_is_done(env, early):
    """Roots of a CartPole of which environment `early` was just reset, and the other stepped."""
    env.set_seed(0)
    root = env.reset()
    while True:
        action = torch.zeros(2, 2, dtype=torch.int64)
        action[early, 0] = 1
        action[1 - early, int(root["step_count"][1 - early]) % 2] = 1
        stepped, root = env.step_and_maybe_reset(root.set("action", action))
        if bool(stepped["next", "done"].any()):
            assert stepped["next", "done"].flatten().tolist() == [early == 0, early == 1]
            return root


@pytest.mark.parametrize("kind", [ParallelEnv, AsyncEnvPool])
@pytest.mark.parametrize("early", [0, 1])
def test_a_state_is_saved_where_one_worker_has_stepped_and_another_was_reset(kind, early):
    made = [
        ParallelEnv(2, cartpole, processes=2) if kind is ParallelEnv else AsyncEnvPool([cartpole] * 2) for _ in "ab"
    ]
    root = step_until_one_is_done(made[0], early)
    assert made[1].load_state_dict(made[0].state_dict())
    found = []
    for env in made:
        torch.manual_seed(0)
        found.append(env.rollout(60, tensordict=root.clone(), auto_reset=False, break_when_any_done=False))
        env.close()
    for key in ("observation", "step_count", ("next", "observation"), ("next", "done")):
        assert torch.equal(found[0][key], found[1][key]), key


class Writes(EnvBase):
    """Writes its state entry in a step, in a reset if `always`."""

    def __init__(self, always):
        super().__init__()
        self.always = always
        self.observation_spec = Composite(observation=Unbounded(1))
        self.state_spec = Composite(place=Unbounded(1))
        self.action_spec = Unbounded(1)

    def _reset(self, tensordict):
        state = {"place": torch.zeros(1)} if self.always else {}
        return TensorDict(observation=torch.zeros(1), **state)

    def _step(self, tensordict):
        return TensorDict(
            observation=torch.ones(1),
            place=torch.ones(1),
            reward=torch.zeros(1),
            terminated=torch.zeros(1, dtype=torch.bool),
        )

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize("first", [True, False])
def test_environments_of_which_only_one_writes_an_entry_are_refused(first):
    makers = [lambda: Writes(first), lambda: Writes(not first)]
    lacks = "lacks 'place'" if first else "also has 'place'"
    with pytest.raises(ContractError, match=f"SerialEnv: .*reset of environment 1 wrote {lacks}"):
        SerialEnv(2, makers).reset()
    env = ParallelEnv(2, makers, processes=2)
    with pytest.raises(ContractError, match=f"ParallelEnv: .*reset of environment 1 wrote {lacks}"):
        env.reset()
    env.close()


class Late(gymnasium.Env):
    """Returns something else than its first observations at step `when`."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, late, when=3):
        self.late, self.when, self.steps = late, when, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return self.late if self.steps == self.when else np.ones(3, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("backend", list(BACKENDS)[1:])
def test_bounds_of_a_batch_contain_those_of_its_environments(backend):
    env = BACKENDS[backend]([lambda n=n: TransformedEnv(PendulumEnv(), StepCounter(n)) for n in (3, 5)])
    assert env.observation_spec["step_count"].space.high.flatten().tolist() == [5, 5]
    data = env.rollout(6, break_when_any_done=False)
    assert data["next", "step_count"].squeeze(-1).tolist() == [[1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 5, 1]]
    env.check_env_specs()
    env.close()


@pytest.mark.parametrize("late", [np.array([7.0], np.float32), np.zeros((1, 3), np.float32), None])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_late_observation_of_another_shape_is_refused(backend, late):
    env = BACKENDS[backend]([lambda: GymWrapper(Late(late))] * 2)
    with pytest.raises((SpecError, ShapeError, WorkerError), match="observation"):
        env.rollout(5, break_when_any_done=False)
    env.close()


@pytest.mark.parametrize("action", [torch.zeros(1, 1), torch.zeros(2, 1, dtype=torch.float64), torch.zeros(3, 1)])
def test_a_late_action_of_another_form_is_refused_before_it_is_written(action):
    env = ParallelEnv(2, Walk, processes=2)
    root = env.rollout(2)[:, -1]["next"].clone().set("action", torch.ones(2, 1))
    form = {"action": action} if action.shape[0] == 2 else None
    wrong = TensorDict(form or {}, batch_size=[2]) if form else {"action": action}
    with pytest.raises((SpecError, ShapeError), match="action"):
        env._send_step(wrong)
    assert env.step(root)["next", "observation"].shape == (2, 1)
    pool = AsyncEnvPool([Walk] * 2)
    pool.async_step_send(pool.rand_action(pool.reset()))
    rows = pool.async_step_recv(2)
    if form:
        with pytest.raises((SpecError, ShapeError), match="action"):
            pool.async_step_send(rows.select("env_index").set("action", action))
    env.close()
    pool.close()
