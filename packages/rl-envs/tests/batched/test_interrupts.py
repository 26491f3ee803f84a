"""Ctrl-C at each line of a step, a reset, a send and a receive: what comes after it is right, or is refused."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import RLError
from rl.core.specs import Composite, Unbounded
from rl.envs import AsyncEnvPool, EnvBase, ParallelEnv, PendulumEnv, SerialEnv
from rl.testing import interrupt_at

OURS = ("/core/workers/_", "/envs/batched/_")


class Count(EnvBase):
    """Counts its own steps, and says what the root said."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(1), told=Unbounded(1))
        self.action_spec = Unbounded(1)

    def _reset(self, tensordict):
        self.count = 0.0
        return self._out()

    def _step(self, tensordict):
        self.count += 1.0
        return self._out().update({"told": tensordict["action"], "reward": torch.zeros(1)})

    def _out(self):
        return TensorDict(observation=torch.tensor([self.count]), told=torch.zeros(1))

    def _set_seed(self, seed):
        pass


class CountMore(Count):
    """Has an entry that the others do not have."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(1), told=Unbounded(1), more=Unbounded(2))

    def _out(self):
        return super()._out().set("more", torch.zeros(2))


def act(root, value):
    return root.set("action", torch.full((*root.batch_size, 1), float(value)))


def check_episode(env):
    """A new episode counts its steps, in all environments, and each step has its own action."""
    root = env.reset()
    assert not root["observation"].any()
    for step in range(1, 4):
        stepped, root = env.step_and_maybe_reset(act(root, 10 * step))
        assert stepped["next", "observation"].unique().tolist() == [step]
        assert stepped["next", "told"].unique().tolist() == [10 * step]


MAKERS = {
    "shared": lambda: ParallelEnv(3, Count, processes=2, timeout=20),
    "messages": lambda: ParallelEnv(3, Count, processes=2, timeout=20, shared_memory=False),
    "different": lambda: ParallelEnv(3, [Count, CountMore, Count], processes=2, timeout=20),
    "pool": lambda: AsyncEnvPool([Count] * 2, timeout=20),
    "pool, messages": lambda: AsyncEnvPool([Count] * 2, timeout=20, shared_memory=False),
    "threads": lambda: AsyncEnvPool([Count] * 2, timeout=20, backend="threading"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_interrupted_step_is_refused_until_a_reset(kind):
    env = MAKERS[kind]()
    root, line, refused = act(env.reset(), 1), 0, 0
    while interrupt_at(lambda: env.step(root.clone()), line := line + 1, OURS):
        try:
            again = env.step(root.clone())
        except RLError:
            refused += 1
        else:
            assert len(again["next", "observation"].unique()) == 1  # all environments are at the same step
        check_episode(env)
        env.reset()
    assert refused > 30
    env.close()


@pytest.mark.parametrize("kind", MAKERS)
def test_an_interrupted_reset_is_done_again(kind):
    env = MAKERS[kind]()
    line = 0
    while interrupt_at(env.reset, line := line + 1, OURS):
        check_episode(env)
    assert line > 30
    env.close()


@pytest.mark.parametrize("kind", ["shared", "messages", "different"])
def test_partial_resets_after_an_interrupt_are_refused_unless_they_reset_all(kind):
    env = MAKERS[kind]()
    root, line, refused = act(env.reset(), 1), 30, False
    while not refused:  # until the interrupt comes after the commands were sent
        assert interrupt_at(lambda: env.step(root.clone()), line := line + 1, OURS)
        try:
            env.step(root.clone())
        except RLError:
            refused = True
        else:
            env.reset()
    mask = torch.ones(3, 1, dtype=torch.bool)
    with pytest.raises(RLError, match="environment 1 was interrupted or failed"):
        env.reset(root.clone().set("_reset", mask.clone().index_fill_(0, torch.tensor([1]), 0)))
    assert not env.reset(root.clone().set("_reset", mask))["observation"].any()
    assert (env.step(root.clone())["next", "observation"] == 1).all()
    env.close()


@pytest.mark.parametrize("kind", ["pool", "pool, messages", "threads"])
def test_a_pool_continues_after_an_interrupt_or_refuses_rows_until_they_are_reset(kind):
    pool = MAKERS[kind]()
    count, refused, line, reached = [0, 0], 0, 0, True
    root = pool.reset()

    def send_and_receive():
        pool.async_step_and_maybe_reset_send(act(root.clone(), line))
        pool.async_step_and_maybe_reset_recv(2)

    while reached:
        reached = interrupt_at(send_and_receive, line := line + 1, OURS)
        got = []
        while True:  # what was sent comes back, each row once
            try:
                got.append(pool.async_step_and_maybe_reset_recv(1)[0])
            except RLError:  # it was called for 0
                break
        for row in torch.cat(got).unbind(0) if got else []:
            assert row["next", "told"].item() == line
            count[int(row["env_index"])] += 1
            assert row["next", "observation"].item() == count[int(row["env_index"])]
        seen = {int(index) for part in got for index in part["env_index"]}
        for index in {0, 1} - seen:
            try:
                pool.async_step_send(act(root[index : index + 1].clone(), 0))
                count[index] = int(pool.async_step_recv(1)["next", "observation"])
            except RLError:
                refused += 1
        pool.async_reset_send(env_index=[0, 1])
        assert not pool.async_reset_recv(2)["observation"].any()
        count = [0, 0]
    assert line > 100
    assert refused > 0
    check_episode(pool)
    pool.close()


def test_a_step_in_two_parts_is_received_after_an_interrupt_or_refused():
    env, serial = ParallelEnv(2, PendulumEnv, processes=2, timeout=20), SerialEnv(2, PendulumEnv)
    root = env.rand_action(env.reset())
    wanted = serial.step(root.clone())["next", "th"]
    line = 0
    while interrupt_at(lambda: env.async_step_send(root), line := line + 1, OURS):
        try:
            found = env.async_step_recv()
        except RLError:
            pass
        else:
            assert torch.equal(found["th"], wanted)
        assert torch.equal(env.step(env.reset().update(root))["next", "th"], wanted)
    assert line > 20
    env.async_step_recv()
    env.close()
