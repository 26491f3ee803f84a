"""AsyncEnvPool: environments that are stepped independently, with the results of SerialEnv."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from rl.core.errors import ArgumentError, ContractError, RLError, SpecError, WorkerError, WorkerTimeoutError
from rl.core.specs import Categorical, Composite, NonTensor, Unbounded
from rl.envs import (
    AsyncEnvPool,
    EnvBase,
    GymEnv,
    PendulumEnv,
    ProcessorAsyncEnvPool,
    SerialEnv,
    StepCounter,
    ThreadingAsyncEnvPool,
    TransformedEnv,
)
from rl.testing import check_env

BACKENDS = pytest.mark.parametrize("backend", ["multiprocessing", "threading"])


class Walk(EnvBase):
    """Takes its time, and fails, as its arguments say."""

    def __init__(self, seconds=0.0, fails=False, words=False, gate=None):
        super().__init__()
        self.seconds, self.fails, self.words, self.gate = seconds, fails, words, gate
        self.observation_spec = Composite(observation=Unbounded(1), **({"word": NonTensor(())} if words else {}))
        self.action_spec = Unbounded(1)

    def _reset(self, tensordict):
        return TensorDict(observation=torch.zeros(1), **({"word": "start"} if self.words else {}))

    def _step(self, tensordict):
        time.sleep(self.seconds)
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.fails:
            raise ValueError("the motor is hot")
        place = tensordict["observation"] + tensordict["action"]
        words = {"word": f"at {place.item():.0f}"} if self.words else {}
        return TensorDict(observation=place, reward=-place.abs(), terminated=place.abs() > 2, **words)

    def _set_seed(self, seed):
        pass


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


MAKERS = {
    "gym": lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(5)),
    "batched": lambda: PendulumEnv([2]),
    "root": Walk,
    "groups": Pair,
}


@BACKENDS
def test_conformance(backend):
    made = []

    def make():
        made.append(AsyncEnvPool([MAKERS["gym"]] * 2, backend=backend))
        return made[-1]

    check_env(make)
    for env in made:
        env.close()


@BACKENDS
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_steps_equal_those_of_a_serial_environment_in_whatever_order_they_come(backend, maker, shared_memory):
    make, steps = MAKERS[maker], 20
    serial = SerialEnv(3, make)
    serial.set_seed(3)
    pool = AsyncEnvPool([make] * 3, backend=backend, shared_memory=shared_memory)
    assert pool.set_seed(3) == serial.set_seed(3)
    torch.manual_seed(0)
    actions = [serial.full_action_spec.rand() for _ in range(steps)]
    root, expected = serial.reset(), []
    for action in actions:
        stepped, root = serial.step_and_maybe_reset(root.update(action))
        expected.append(stepped)
    roots, taken = pool.reset(), [0, 0, 0]
    pool.async_step_and_maybe_reset_send(roots.update(actions[0]))
    while min(taken) < steps:
        stepped, roots = pool.async_step_and_maybe_reset_recv()
        again = []
        for row, root in zip(stepped.unbind(0), roots.unbind(0), strict=True):
            index = int(row["env_index"].flatten()[0])
            wanted = expected[taken[index]][index]
            assert set(row.keys(True, True)) == {*wanted.keys(True, True), "env_index"}
            assert (row.exclude("env_index") == wanted).all(), (index, taken[index])
            taken[index] += 1
            if taken[index] < steps:
                again.append(root.update(actions[taken[index]][index]))
        for one in reversed(again):
            pool.async_step_and_maybe_reset_send(one)
    pool.close()


@BACKENDS
def test_a_slow_environment_delays_no_other(backend):
    gate = multiprocessing.Event()
    pool = AsyncEnvPool([Walk] * 3, backend=backend, create_env_kwargs=[{}, {"gate": gate}, {}])
    pool.async_step_send(pool.rand_action(pool.reset()))
    first = pool.async_step_recv(min_get=2)
    assert first["env_index"].tolist() == [0, 2]
    for _ in range(3):
        pool.async_step_send(pool.rand_action(pool.step_mdp(first)))
        first = pool.async_step_recv(min_get=2)
        assert first["env_index"].tolist() == [0, 2]
    with pytest.raises(WorkerTimeoutError, match=r"async_step_recv: 0 of 1 environments have answered within 0\.01 s"):
        pool.async_step_recv(timeout=0.01)
    gate.set()
    assert pool.async_step_recv()["env_index"].tolist() == [1]
    pool.close()


@BACKENDS
def test_resets_of_some_environments(backend):
    pool = AsyncEnvPool([lambda: PendulumEnv([2])] * 3, backend=backend)
    root = pool.reset()
    assert root["env_index"].tolist() == [[0, 0], [1, 1], [2, 2]]
    rows = root[[2, 0]]
    mask = torch.tensor([[True, False], [False, True]]).unsqueeze(-1)
    pool.async_reset_send(rows.clone().set("_reset", mask))
    fresh = pool.async_reset_recv(min_get=2)
    assert fresh["env_index"][:, 0].tolist() == [0, 2]
    same = (fresh["th"] == root[[0, 2]]["th"]).reshape(2, 2)
    assert same.tolist() == [[True, False], [False, True]]
    pool.async_reset_send(env_index=1)
    pool.async_step_send(pool.rand_action(root.clone())[0])  # the one row of a step meets no reset
    assert pool.async_step_recv().batch_size == (1, 2)
    assert pool.async_reset_recv()["env_index"][:, 0].tolist() == [1]
    pool.async_reset_send()
    assert pool.async_reset_recv(max_get=1, min_get=1).batch_size == (1, 2)
    assert pool.async_reset_recv(min_get=2).batch_size == (2, 2)
    pool.close()


@pytest.mark.parametrize("shared_memory", [True, False])
def test_transforms_around_the_pool_and_given_states(shared_memory):
    pool = AsyncEnvPool([PendulumEnv] * 3, backend="threading", shared_memory=shared_memory)
    data = TransformedEnv(pool, StepCounter(3)).rollout(7, break_when_any_done=False)
    assert data["next", "step_count"][0].flatten().tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert data["env_index"].tolist() == [[0] * 7, [1] * 7, [2] * 7]
    again = pool.reset(data[:, 2], set_state=True)
    assert torch.equal(again["th"], data["th"][:, 2])
    pool.close()


def test_what_may_not_be_sent_or_received():
    pool = ThreadingAsyncEnvPool([Walk] * 3, stack="lazy")
    root = pool.rand_action(pool.reset())
    with pytest.raises(RLError, match="waits for 1 environments, async_step_send was called for 0"):
        pool.async_step_recv()
    pool.async_step_send(root[1])
    with pytest.raises(RLError, match="environment 1 is busy: call async_step_recv first"):
        pool.async_step_send(root[1:])
    with pytest.raises(RLError, match="environment 1 is busy"):
        pool.reset()
    assert isinstance(pool.async_step_recv(), LazyStackedTensorDict)
    with pytest.raises(ContractError, match="'env_index' says which environment"):
        pool.async_step_send(root[:2].exclude("env_index"))
    pool.async_step_send(root[:2].exclude("env_index"), env_index=[2, 0])
    assert torch.equal(pool.async_step_recv(2)["action"], root["action"][[1, 0]])
    with pytest.raises(ArgumentError, match=r"different numbers below 3, got \[1, 1\]"):
        pool.async_step_send(root[[1, 1]])
    with pytest.raises(SpecError, match="batch size"):
        pool.async_step_send(root[:2], env_index=[0])
    with pytest.raises(ContractError, match="'action'"):
        pool.async_step_send(root.exclude("action"))
    with pytest.raises(ArgumentError, match="'_step' has no meaning"):
        pool.async_step_send(root.clone().set("_step", torch.ones(3, 1, dtype=torch.bool)))
    with pytest.raises(ArgumentError, match=r"in their order, got env_index \[2, 1, 0\]"):
        pool.step(root[[2, 1, 0]])
    pool.close()
    for kwargs in ({"backend": "asyncio"}, {"stack": "thin"}):
        with pytest.raises(ArgumentError, match="must be"):
            AsyncEnvPool([Walk], **kwargs)


@BACKENDS
def test_an_environment_that_fails_is_named_and_the_others_continue(backend):
    pool = AsyncEnvPool([Walk] * 3, backend=backend, create_env_kwargs=[{}, {"fails": True}, {"seconds": 0.1}])
    root = pool.rand_action(pool.reset())
    pool.async_step_send(root)
    with pytest.raises(WorkerError, match="AsyncEnvPool: worker 1 raised ValueError: the motor is hot") as caught:
        pool.async_step_recv(3)
    assert caught.value.worker == 1
    assert pool.async_step_recv(2)["env_index"].tolist() == [0, 2]
    pool.async_reset_send(root[1:2])  # it is not busy
    assert pool.async_reset_recv()["env_index"].tolist() == [1]
    pool.close()
    with pytest.raises(SpecError, match="observation specs of environments 0 and 1 differ"):
        AsyncEnvPool([Walk, PendulumEnv], backend=backend)


def test_a_killed_process_is_named_and_close_may_be_called_twice():
    pool = ProcessorAsyncEnvPool([Walk] * 2, create_env_kwargs=[{}, {"seconds": 60}])
    pool.async_step_send(pool.rand_action(pool.reset()))
    os.kill(pool._workers._workers[1].process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"worker 1 has ended \(signal SIGKILL; "):
        pool.async_step_recv(2)
    assert pool.async_step_recv()["env_index"].tolist() == [0]
    with pytest.raises(WorkerError, match="worker 1 has ended"):
        pool.async_reset_send(env_index=1)
    pool.close()
    pool.close()
    with pytest.raises(RLError, match="closed"):
        pool.async_reset_send()


@BACKENDS
def test_entries_that_are_no_tensors(backend):
    pool = AsyncEnvPool([Walk] * 2, backend=backend, create_env_kwargs={"words": True}, shared_memory=False)
    root = pool.reset().set("action", torch.tensor([[1.0], [3.0]]))
    pool.async_step_and_maybe_reset_send(root)
    stepped, root = pool.async_step_and_maybe_reset_recv(2)
    assert list(stepped["next", "word"]) == ["at 1", "at 3"]
    assert list(root["word"]) == ["at 1", "start"]
    pool.close()
