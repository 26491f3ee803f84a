"""Environments in workers, and one policy for those that wait."""

import threading
import time

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.collectors import AsyncBatchedCollector, Collector
from rl.core.errors import ArgumentError, MissingExtraError, WorkerError
from rl.core.registry import Registry

envs = pytest.importorskip("rl.envs")


class Episodes(envs.LeafEnvBase):
    """Episodes of `length` steps that count them; a step waits for the `gate`, and step `fails` raises."""

    def __init__(self, length=3, gate=None, fails=-1, number=0):
        super().__init__()
        from rl.core.specs import Categorical, Composite, Unbounded

        self.observation_spec = Composite(observation=Unbounded(2))
        self.action_spec = Categorical(2)
        self.length, self.gate, self.fails, self.number, self.total = length, gate, fails, number, 0

    def _out(self, over):
        flag = torch.tensor([over])
        return {
            "observation": torch.tensor([float(self.number), float(self.count)]),
            "done": flag,
            "terminated": flag.clone(),
        }

    def _reset_leaves(self, mask):
        self.count = 0
        return self._out(over=False)

    def _step_leaves(self, root):
        self.count += 1
        self.total += 1
        if self.total == self.fails:
            raise ValueError("it broke")
        if self.gate is not None:
            assert self.gate.wait(60)
        return {**self._out(over=self.count >= self.length), "reward": torch.tensor([float(self.count)])}


def makers(*settings):
    return [lambda number=number, one=one: Episodes(number=number, **one) for number, one in enumerate(settings)]


def policy():
    return TensorDictModule(lambda x: (x[..., 1] % 2).long(), ["observation"], ["action"])


def check_order(batch):
    """Steps of an environment are in the order of time, and each trajectory is one."""
    for env in batch["env_index"].unique():
        rows = batch[batch["env_index"] == env]
        assert (rows["observation"][:, 0] == env).all()
        assert torch.equal(rows["next", "observation"][:, 1], rows["observation"][:, 1] + 1)
        ids, over = rows["collector", "traj_ids"], rows["next", "done"][:, 0]
        assert torch.equal(ids[1:] != ids[:-1], over[:-1])
        assert torch.equal(rows["action"], (rows["observation"][:, 1] % 2).long())


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_every_batch_has_the_steps_of_each_environment_in_order(backend):
    collector = AsyncBatchedCollector(
        makers({}, {"length": 5}, {"length": 2}),
        policy(),
        frames_per_batch=10,
        total_frames=40,
        env_backend=backend,
    )
    batches = list(collector)
    collector.shutdown()
    collector.shutdown()
    assert [batch.shape for batch in batches] == [(10,)] * 4
    for batch in batches:
        check_order(batch)
    every = torch.cat(batches)
    check_order(every[every["env_index"].argsort(stable=True)])
    owners = {}
    for env, number in zip(every["env_index"].tolist(), every["collector", "traj_ids"].tolist(), strict=True):
        assert owners.setdefault(number, env) == env  # no id is shared


def test_a_slow_environment_does_not_hold_up_the_others():
    gate = threading.Event()
    collector = AsyncBatchedCollector(
        makers({}, {"gate": gate}), policy(), frames_per_batch=40, env_backend="threading"
    )
    assert (collector.collect()["env_index"] == 0).all()
    gate.set()
    collector.shutdown()


def test_the_policy_sees_as_many_rows_as_allowed():
    seen = []

    def act(data):
        seen.append(data.shape[0])
        return data.set("action", torch.zeros(data.shape, dtype=torch.int64))

    collector = AsyncBatchedCollector(
        makers(*[{}] * 4), act, frames_per_batch=40, env_backend="threading", min_batch_size=2, max_batch_size=3
    )
    collector.collect()
    collector.shutdown()
    assert set(seen[2:]) <= {2, 3}  # the first four come in parts of 3 and 1
    assert seen[:2] == [3, 1]


def test_the_recurrent_state_follows_each_environment():
    modules = pytest.importorskip("rl.modules")
    torch.manual_seed(0)
    cell = modules.GRUModule(input_size=2, hidden_size=4, in_key="observation", out_key="embed")
    net = TensorDictSequential(
        cell,
        TensorDictModule(nn.Linear(4, 2), ["embed"], ["logits"]),
        TensorDictModule(lambda x: x.argmax(-1), ["logits"], ["action"]),
    )
    collector = AsyncBatchedCollector(
        makers({}, {"length": 5}), net, frames_per_batch=30, env_backend="threading", min_batch_size=2
    )
    batch = collector.collect()
    collector.shutdown()
    for number, length in ((0, 3), (1, 5)):
        rows = batch[batch["env_index"] == number]
        alone = Collector(makers({}, {"length": 5})[number](), net, frames_per_batch=len(rows)).collect()
        torch.testing.assert_close(rows["logits"], alone["logits"])
        assert torch.equal(rows["is_init"], alone["is_init"])
        assert rows["is_init"].sum() == -(-len(rows) // length)


def test_completed_trajectories_come_one_by_one():
    collector = AsyncBatchedCollector(
        makers({}, {"length": 5}),
        policy(),
        frames_per_batch=4,
        total_frames=24,
        yield_completed_trajectories=True,
        env_backend="threading",
    )
    for trajectory in collector:
        assert len(trajectory) in (3, 5)
        assert trajectory["next", "done"].nonzero()[:, 0].tolist() == [len(trajectory) - 1]
        check_order(trajectory)
    assert collector.collected_frames >= 24
    collector.shutdown()


def test_versions_stamp_the_steps():
    net = TensorDictSequential(TensorDictModule(nn.Linear(2, 1), ["observation"], ["value"]), policy())
    collector = AsyncBatchedCollector(makers({}, {}), net, frames_per_batch=6, env_backend="threading")
    assert (collector.collect()["policy_version"] == 0).all()
    collector.update_policy_weights_(net.state_dict())
    versions = collector.collect()["policy_version"]
    assert (versions == 0).sum() <= 3  # those that were sent before the update
    assert (versions == 1).any()
    collector.shutdown()


def test_a_failing_environment_is_named_and_begins_again():
    collector = AsyncBatchedCollector(
        makers({}, {"fails": 4}), policy(), frames_per_batch=20, env_backend="threading", min_batch_size=2
    )
    with pytest.raises(WorkerError, match="it broke") as caught:
        collector.collect()
    assert caught.value.worker == 1
    batch = collector.collect()  # with the steps from before
    rows = batch[batch["env_index"] == 1]
    assert rows["observation"][:4, 1].tolist() == [0, 1, 2, 0]
    ids = rows["collector", "traj_ids"]
    assert len({*ids[:3].tolist()}) == 1
    assert ids[3] != ids[2]
    collector.shutdown()


def test_it_fills_a_buffer_in_the_background():
    class Buffer(list):
        def extend(self, batch):
            self.append(batch)

    buffer = Buffer()
    collector = AsyncBatchedCollector(
        makers({}, {}), frames_per_batch=10, total_frames=50, replay_buffer=buffer, env_backend="threading"
    )
    collector.start()
    deadline = time.monotonic() + 20
    while collector.is_running() and time.monotonic() < deadline:
        with collector.pause():
            collector.update_policy_weights_()
    collector.shutdown()
    assert [len(batch) for batch in buffer] == [10] * 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"min_batch_size": 3}, "min_batch_size=3, and there are 2 environments"),
        ({"create_env_fn": Episodes}, "takes a list of functions"),
        ({"max_batch_size": 1, "min_batch_size": 2}, "max_batch_size must be at least 2"),
        ({"server_timeout": 0.1}, "use min_batch_size"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    given = {"create_env_fn": makers({}, {}), "frames_per_batch": 4, "env_backend": "threading", **arguments}
    with pytest.raises((ArgumentError, TypeError), match=words):
        AsyncBatchedCollector(**given)


def test_without_rl_envs_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("rl.core.registry.default", Registry)
    with pytest.raises(MissingExtraError, match="pip install rl-envs"):
        AsyncBatchedCollector(makers({}), frames_per_batch=4)


def test_environments_with_a_batch_have_time_last():
    collector = AsyncBatchedCollector(
        [lambda: envs.PendulumEnv(batch_size=(2,))] * 2, frames_per_batch=12, env_backend="threading"
    )
    batch = collector.collect()
    collector.shutdown()
    assert batch.shape == (2, 6)
    assert isinstance(batch, TensorDict)
    assert batch.names == [None, "time"]


class Late(Episodes):
    """Returns one number where it returned two."""

    def _step_leaves(self, root):
        outcome = super()._step_leaves(root)
        return {**outcome, "observation": outcome["observation"][:1]} if self.total == 4 else outcome


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_a_late_observation_of_another_shape_is_refused(backend):
    collector = AsyncBatchedCollector([Late] * 2, policy(), frames_per_batch=20, env_backend=backend)
    with pytest.raises(WorkerError, match=r"Late.step: 'observation' is float32 \[1, 1\], expected float32 \[1, 2\]"):
        collector.collect()
    collector.shutdown()
