"""`RayCollector` on a local cluster with two actors; `-m slow` runs it where Ray is installed."""

import os
import signal
import time
import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.collectors import Collector, RayCollector, RayWeightUpdater
from rl.core.errors import ArgumentError, MissingExtraError, RLError, SpecError, WorkerError, WorkerTimeoutError
from rl.testing import CountingEnv


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-collectors\[ray\]"'):
        RayCollector([CountingEnv] * 2, frames_per_batch=4)


def test_arguments_are_checked_before_ray_starts():
    for wrong, words in (
        ({"cat_results": 1}, "'stack', 0 or -1"),
        ({"remote_configs": [{}]}, "has 2 actors, and remote_configs has 1"),
        ({"policy": lambda td: td, "policy_factory": lambda: None}, "got both"),
        ({"return_same_td": True}, "no return_same_td"),
    ):
        with pytest.raises(ArgumentError, match=words):
            RayCollector([CountingEnv] * 2, frames_per_batch=4, **wrong)


def make_policy():
    value = TensorDictModule(nn.Linear(1, 1), ["observation"], ["value"])
    act = TensorDictModule(lambda x: torch.zeros(x.shape[:-1], dtype=torch.int64), ["observation"], ["action"])
    return TensorDictSequential(value, act)


class Failing(CountingEnv):
    """Raises in its fifth step; hangs there with `hangs`."""

    hangs = False
    taken = 0

    def step_leaves(self, root):
        self.taken += 1
        if self.taken == 5:
            if self.hangs:
                time.sleep(60)
            raise ValueError("it broke")
        return super().step_leaves(root)


class Hanging(Failing):
    """Hangs in its fifth step."""

    hangs = True


class Named(CountingEnv):
    """Knows its process."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        return {**out, "observation": torch.full_like(out["observation"], os.getpid())}


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False)
    yield ray
    ray.shutdown()


pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.slow
def test_synchronous_data_is_that_of_single_collectors(ray):
    policy = make_policy()
    with RayCollector(
        [CountingEnv] * 2, policy, frames_per_batch=8, total_frames=32, sync=True, ray_init_config={}
    ) as collector:
        batches = list(collector)
        assert collector.collected_frames == 32
        assert len(collector) == 4
    single = Collector(CountingEnv(), policy, frames_per_batch=4)
    for batch in batches:
        expected = single.collect()
        assert batch.shape == (2, 4)
        assert batch.names == [None, "time"]
        for row in batch:
            for key in ("observation", "action", "value", ("next", "reward"), ("next", "done")):
                assert torch.equal(row[key], expected[key])
    ids = torch.cat([batch["collector", "traj_ids"] for batch in batches], -1)
    assert not {*ids[0].tolist()} & {*ids[1].tolist()}
    assert ray.is_initialized()  # it was there before
    collector.shutdown()
    with pytest.raises(RLError, match="was shut down"):
        collector.collect()


@pytest.mark.slow
def test_asynchronous_batches_count_frames_exactly_and_carry_whole_versions(ray):
    policy = make_policy()
    updater = RayWeightUpdater()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(0.0)
    seen = []
    with RayCollector(
        [CountingEnv] * 2, policy, frames_per_batch=6, total_frames=60, weight_updater=updater
    ) as collector:
        for version, batch in enumerate(collector, start=1):
            assert batch.shape == (6,)
            stamps = batch["policy_version"].unique().tolist()
            assert len(stamps) == 1
            seen.append(stamps[0])
            expected = stamps[0] * (batch["observation"] + 1)  # weight and bias equal the version
            assert torch.equal(batch["value"], expected)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.fill_(float(version))
            updater.update_weights()
        assert collector.collected_frames == 60
        assert collector.policy_version == 10
        assert max(seen) > 0
        with pytest.raises(ArgumentError, match="do not fit the policy of the actors"):
            collector.update_policy_weights_(nn.Linear(2, 2))
        with pytest.raises(ArgumentError, match="has shape"):
            collector.update_policy_weights_({n: torch.zeros(3, 3) for n in policy.state_dict()})


def until(done, collector, seconds=30):
    """Collect until a condition holds; the other actor goes on until Ray has noticed that one has ended."""
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit
        yield collector.collect()


@pytest.mark.slow
@pytest.mark.parametrize("sync", [True, False])
def test_a_killed_actor_is_an_error(ray, sync):
    with RayCollector([Named] * 2, frames_per_batch=8, sync=sync) as collector:
        pid = int(collector.collect()["next", "observation"].flatten()[0])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"actor \d has ended") as caught:
            list(until(lambda: False, collector))
        assert caught.value.ended


def mark(batch):
    batch.set("seen", torch.ones(batch.batch_size))


@pytest.mark.slow
@pytest.mark.parametrize("sync", [True, False])
def test_a_killed_actor_is_replaced(ray, sync):
    policy = make_policy()
    with RayCollector([Named] * 2, policy, frames_per_batch=8, sync=sync, restart=True) as collector:
        collector.post_collect_hook = mark
        collector.update_policy_weights_()
        first = collector.collect()
        os.kill(int(first["next", "observation"].flatten()[0]), signal.SIGKILL)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = list(until(lambda: caught, collector))
        assert "It was replaced" in str(caught[-1].message)
        replaced = []  # trajectories of the new actor have ids that no other has
        for batch in until(lambda: replaced, collector):
            batches.append(batch)
            ids = batch["collector", "traj_ids"]
            replaced.extend(ids[ids >= 1 << 40].tolist())
            assert (batch["seen"] == 1).all()
            assert batch["policy_version"].unique().tolist() == [1]
        assert collector.collected_frames == sum(batch.numel() for batch in (first, *batches))


@pytest.mark.slow
def test_errors_name_actor_and_cause(ray):
    with RayCollector([CountingEnv, Failing], frames_per_batch=16, sync=True) as collector:
        with pytest.raises(WorkerError, match="it broke") as caught:
            collector.collect()
        assert caught.value.worker == 1
        assert not caught.value.ended
    with (
        RayCollector([Hanging], frames_per_batch=8, timeout=10, shutdown_timeout=1) as collector,
        pytest.raises(WorkerTimeoutError, match="within 10 s"),
    ):
        collector.collect()
    with (
        RayCollector([CountingEnv, lambda: CountingEnv(batch_size=(2,))], frames_per_batch=8) as collector,
        pytest.raises(SpecError, match="other keys, shapes or dtypes"),
    ):
        list(until(lambda: False, collector))

    def broken():
        raise ValueError("no such simulator")

    with pytest.raises(WorkerError, match="no such simulator"):
        RayCollector([broken], frames_per_batch=8)
    policy = make_policy()
    policy.lock = __import__("threading").Lock()
    with pytest.raises(ArgumentError, match="cannot be sent to an actor"):
        RayCollector([CountingEnv], policy, frames_per_batch=8)


class Guess(nn.Module):
    """Acts at random."""

    def forward(self, observation):
        return torch.randint(2, observation.shape[:-1])


@pytest.mark.slow
def test_random_actions_repeat_with_the_seed_and_differ_between_actors(ray):
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        policy = TensorDictModule(Guess(), ["observation"], ["action"])
        with RayCollector([CountingEnv] * 2, policy, frames_per_batch=64, sync=True) as collector:
            found.append(collector.collect()["action"])
    assert torch.equal(*found)
    assert not torch.equal(*found[0])


@pytest.mark.slow
def test_control_and_state(ray):
    with RayCollector([CountingEnv] * 2, frames_per_batch=8, sync=True, cat_results=0) as collector:
        assert collector.collect().shape == (8,)
        state = collector.state_dict()
        after = collector.collect()
        collector.load_state_dict(state)
        again = collector.collect()
        assert torch.equal(after["observation"], again["observation"])
        assert torch.equal(after["collector", "traj_ids"], again["collector", "traj_ids"])
        collector.reset()
        assert collector.collect()["observation"].flatten()[0] == 0
        assert isinstance(collector.set_seed(0), int)
        assert [one["frames"] for one in collector.stats] == [12, 12]  # the batch that was collected again counts once


@pytest.mark.slow
def test_it_fills_a_buffer_with_several_processes_in_an_actor(ray):
    class Buffer(list):
        def extend(self, batch):
            self.append(batch)

    buffer = Buffer()
    with RayCollector(
        [CountingEnv],
        frames_per_batch=8,
        total_frames=16,
        num_workers_per_collector=2,
        replay_buffer=buffer,
        extend_buffer=False,
    ) as collector:
        assert list(collector) == [None, None]
    assert [len(batch) for batch in buffer] == [8, 8]
