"""Collectors with worker processes: the data of single ones, weights, and what happens when workers are lost."""

import gc
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.collectors import (
    Collector,
    Interruptor,
    MultiAsyncCollector,
    MultiCollector,
    MultiProcessedWeightUpdater,
    MultiSyncCollector,
    MultiSyncDataCollector,
    VanillaWeightUpdater,
    WeightUpdaterBase,
)
from rl.core.errors import ArgumentError, CheckpointError, RLError, SpecError, WorkerError, WorkerTimeoutError
from rl.testing import CountingEnv

KINDS = [MultiSyncCollector, MultiAsyncCollector]


class Constant(torch.nn.Module):
    """An action, and every weight, so that a mixture of two updates is seen."""

    def __init__(self, size=1000):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, observation):
        spread = torch.stack([self.weight.min(), self.weight.max(), self.scale])
        batch = observation.shape[:-1]
        return torch.zeros(batch, dtype=torch.int64), spread.expand(*batch, 3)


def policy():
    return TensorDictModule(Constant(), in_keys=["observation"], out_keys=["action", "weights"])


def set_weights(module, value):
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.fill_(value)


class Noisy(CountingEnv):
    """Counts with noise of its seed."""

    generator = torch.Generator()

    def lowered(self):
        return None

    def set_seed(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        return seed + 1

    def step(self, tensordict):
        stepped = super().step(tensordict)
        stepped["next", "reward"] = torch.randn(1, generator=self.generator)
        return stepped


class Dawdling(CountingEnv):
    """Takes a tenth of a second for each step after the first sixty."""

    taken = 0

    def lowered(self):
        return None

    def step(self, tensordict):
        self.taken += 1
        time.sleep(0.1 if self.taken > 60 else 0)
        return super().step(tensordict)


def equal(one, other):
    for key in other.keys(True, True):
        if key != ("collector", "traj_ids"):
            assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_synchronous_batch_holds_what_single_collectors_collect(method):
    act = policy()
    singles = [Collector(Noisy, act, frames_per_batch=5) for _ in range(3)]
    seed = 7
    for single in singles:
        seed = single.set_seed(seed)
    settings = {"frames_per_batch": 15, "total_frames": 45, "mp_start_method": method}
    with MultiSyncCollector([Noisy] * 3, act, **settings) as multi:
        assert multi.set_seed(7) == seed
        seen = []
        for batch in multi:
            expected = torch.stack([single.collect() for single in singles])
            equal(batch, expected)
            assert batch.batch_size == (3, 5)
            assert batch.names[-1] == "time"
            seen.append(batch["collector", "traj_ids"])
        assert (len(seen), multi.collected_frames, len(multi)) == (3, 45, 3)
    by_worker = [set(torch.cat(seen, 1)[i].tolist()) for i in range(3)]
    assert not by_worker[0] & by_worker[1] | by_worker[1] & by_worker[2] | by_worker[0] & by_worker[2]


@pytest.mark.parametrize(
    ("cat", "batch", "size"), [(0, [], (8,)), (-1, [2], (2, 8)), (0, [2], (4, 4)), ("stack", [2], (2, 2, 4))]
)
def test_results_are_stacked_or_concatenated(cat, batch, size):
    makers = [partial(CountingEnv, batch_size=batch)] * 2
    frames = 8 * (batch[0] if batch else 1)
    with MultiSyncCollector(makers, frames_per_batch=frames, cat_results=cat) as multi:
        assert multi.collect().batch_size == size


@pytest.mark.parametrize("kind", KINDS)
def test_each_batch_has_the_version_of_all_its_weights(kind):
    act, updater = policy(), VanillaWeightUpdater()

    def version_of_next():
        batch = multi.collect()
        versions = batch["policy_version"].unsqueeze(-1).expand(*batch.shape, 3)
        assert torch.equal(batch["weights"], versions.float())  # the weights equal the version
        return int(versions.unique())

    with kind([CountingEnv] * 2, act, frames_per_batch=8, weight_updater=updater) as multi:
        for version in range(1, 30):
            seen = version_of_next()
            assert seen == version - 1 or kind is MultiAsyncCollector
            set_weights(act, version)
            updater.update_weights()
        assert multi.policy_version == 29
        if kind is MultiAsyncCollector:  # a late worker is any number of updates behind, by two batches at most
            for _ in range(2 * 2):
                version_of_next()
        assert version_of_next() == 29


def test_weights_are_checked_before_they_are_sent():
    act = policy()
    wrong = {"module.weight": torch.zeros(3), "module.scale": torch.zeros(())}
    message = r"weights do not fit.*module\.weight has shape \(3,\) instead of \(1000,\)"
    with MultiSyncCollector([CountingEnv] * 2, act, frames_per_batch=8, update_at_each_batch=True) as multi:
        with pytest.raises(ArgumentError, match=message):
            multi.update_policy_weights_(wrong)
        set_weights(act, 4)
        assert (multi.collect()["weights"] == 4).all()
    with (
        MultiSyncCollector([CountingEnv], frames_per_batch=8) as multi,
        pytest.raises(ArgumentError, match="no weights"),
    ):
        multi.update_policy_weights_()
    with pytest.raises(RLError, match="this WeightUpdaterBase has no collector"):
        WeightUpdaterBase().update_weights()


def test_policies_can_be_made_in_the_workers():
    with MultiSyncCollector([CountingEnv] * 2, policy_factory=policy, frames_per_batch=8) as multi:
        new = policy()
        set_weights(new, 3)
        multi.update_policy_weights_(new)
        assert (multi.collect()["weights"] == 3).all()


def test_asynchronous_batches_come_from_all_workers_and_frames_are_exact():
    with MultiAsyncCollector([CountingEnv] * 3, frames_per_batch=6, total_frames=90) as multi:
        owners = [int(batch["collector", "traj_ids"][0]) % 3 for batch in multi]
        assert (len(owners), multi.collected_frames) == (15, 90)
        assert set(owners) == {0, 1, 2}
        multi.reset()
        ids = multi.collect()["collector", "traj_ids"]
        assert multi.collect()["observation"].flatten()[0] == 0
        assert len(set(ids.tolist())) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_in_a_worker_is_raised_here(kind):
    class Broken(CountingEnv):
        steps = 0

        def step(self, tensordict):
            self.steps += 1
            if self.steps > 20:
                raise ValueError("the motor is hot")
            return super().step(tensordict)

        def lowered(self):
            return None

    message = rf"{kind.__name__}: worker 1 raised ValueError: the motor is hot[^$]*in step"
    multi = kind([CountingEnv, Broken], frames_per_batch=8, total_frames=8 * 50)
    with multi, pytest.raises(WorkerError, match=message):
        list(multi)
    with pytest.raises(WorkerError, match="worker 0 raised ZeroDivisionError"):
        kind([lambda: 1 / 0], frames_per_batch=8)


class Sometimes(CountingEnv):
    """Raises at steps 21 to 23 of all."""

    taken = 0

    def lowered(self):
        return None

    def step(self, tensordict):
        self.taken += 1
        if 21 <= self.taken <= 23:
            raise ValueError("the motor is hot")
        return super().step(tensordict)


@pytest.mark.parametrize("kind", KINDS)
def test_collection_goes_on_after_exceptions_and_loses_no_batch_of_another_worker(kind):
    settings = {"frames_per_batch": 12, "cat_results": 0} if kind is MultiSyncCollector else {"frames_per_batch": 6}
    batches, errors = [], 0
    with kind([CountingEnv, Sometimes], **settings) as multi:
        while errors < 3 or len(batches) < 30:
            try:
                batches.append(multi.collect())
            except WorkerError:
                errors += 1
    whole = torch.cat(batches)
    one, other = (whole["observation"][whole["collector", "traj_ids"] % 2 == i].flatten() for i in (0, 1))
    assert one.tolist() == [t % 3 for t in range(len(one))]
    assert len(other) >= 18 + 6


def test_what_was_collected_before_a_worker_was_killed_is_yielded_first():
    with MultiAsyncCollector([CountingEnv] * 2, frames_per_batch=6) as multi:
        multi.collect()
        while multi._workers.busy:
            multi._receive(0)
        assert multi.stats  # drops no batch
        os.kill(multi._workers._workers[1].process.pid, signal.SIGKILL)
        multi._workers._workers[1].process.join()
        owners = []
        with pytest.raises(WorkerError, match="worker 1 has ended"):
            owners.extend(int(batch["collector", "traj_ids"][0]) % 2 for batch in multi)
        with pytest.raises(WorkerError, match="worker 1 has ended"):
            multi.collect()
        assert owners.count(1) == 2
        assert owners.count(0) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_killed_in_its_first_batch_is_replaced(kind, tmp_path):
    class Dies(CountingEnv):
        def step_leaves(self, root):
            if not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step_leaves(root)

    with kind([CountingEnv, Dies], frames_per_batch=8, restart=True) as multi:
        with pytest.warns(UserWarning, match="It was replaced"):
            multi.collect()
        assert collect_until(multi, lambda batch: (batch["collector", "traj_ids"] % 2 == 1).any())


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_worker_is_an_error(kind):
    with kind([CountingEnv] * 2, frames_per_batch=8) as multi:
        multi.collect()
        os.kill(multi._workers._workers[1].process.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"worker 1 has ended \(signal SIGKILL; "):
            collect_until(multi, lambda batch: False)
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_worker_is_replaced_where_that_was_asked_for(kind):
    with kind([CountingEnv] * 2, frames_per_batch=8, restart=True) as multi:
        multi.collect()
        os.kill(multi._workers._workers[1].process.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="It was replaced"):
            count = collect_until(multi, lambda batch: (batch["collector", "traj_ids"] > 1 << 40).any())
        assert multi.collected_frames == 8 * (1 + count)


def collect_until(multi, condition):
    """Collect until a batch fulfils the condition, at most a minute; the number of batches."""
    limit = time.monotonic() + 60
    for count, batch in enumerate(multi, start=1):
        assert time.monotonic() < limit
        if condition(batch):
            return count
    return 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_hangs_is_an_error(kind):
    class Slow(CountingEnv):
        taken = 0

        def lowered(self):
            return None

        def step(self, tensordict):
            self.taken += 1
            time.sleep(60 if self.taken > 10 else 0)
            return super().step(tensordict)

    multi = kind([CountingEnv, Slow], frames_per_batch=8, timeout=2, shutdown_timeout=0.2)
    with pytest.raises(WorkerTimeoutError, match=r"no answer of worker 1 within 2 s"):
        collect_until(multi, lambda batch: False)
    multi.shutdown()
    multi.shutdown()
    with pytest.raises(RLError, match="shut down"):
        multi.collect()


def test_a_replay_buffer_and_other_uses_of_a_batch():
    class Buffer:
        def __init__(self):
            self.got = []

        def extend(self, batch):
            self.got.append(batch.clone())

    buffer = Buffer()
    with MultiAsyncCollector([CountingEnv] * 2, frames_per_batch=6, total_frames=36, replay_buffer=buffer) as multi:
        assert list(multi) == [None] * 6
    assert sum(batch.numel() for batch in buffer.got) == 36
    settings = {"split_trajs": True, "postproc": lambda batch: batch["collector", "mask"]}
    with MultiSyncCollector([CountingEnv] * 2, frames_per_batch=12, **settings) as multi:
        assert multi.collect().shape == (4, 3)


def test_late_workers_end_their_batches_early():
    settings = {"frames_per_batch": 120, "preemptive_threshold": 0.5}
    with MultiSyncCollector([CountingEnv, Dawdling], policy(), **settings) as multi:
        batches = [multi.collect() for _ in range(3)]
        assert multi.collected_frames == sum(batch.numel() for batch in batches)
    assert len(batches[0]) == 120
    for batch in batches[1:]:
        assert 60 < len(batch) < 120  # all of the first worker, a part of the second
    whole = torch.cat(batches)
    for worker in (0, 1):
        steps = whole[whole["collector", "traj_ids"] % 2 == worker]
        assert steps["observation"].flatten().tolist() == [t % 3 for t in range(len(steps))]  # none is missing


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_is_left_open(kind):
    settings = {"preemptive_threshold": 0.5} if kind is MultiSyncCollector else {}
    kind([CountingEnv], frames_per_batch=4).shutdown()
    before = len(os.listdir("/dev/fd"))
    kind([CountingEnv], frames_per_batch=4, **settings).shutdown()
    assert len(os.listdir("/dev/fd")) == before


def test_settings_of_a_collector_reach_the_workers_or_are_refused():
    steps = []
    settings = {"max_frames_per_traj": 2, "post_collect_hook": lambda _: steps.append(1), "track_policy_version": True}
    with MultiSyncCollector([CountingEnv] * 2, policy(), frames_per_batch=8, **settings) as multi:
        assert multi.collect()["observation"][0].flatten().tolist() == [0, 1, 0, 1]
        with pytest.raises(RLError, match="its workers collect in other processes"):
            multi.start()
    assert not steps  # the hook runs in the worker
    for refused in ({"return_same_td": True}, {"interruptor": Interruptor()}):
        with pytest.raises(ArgumentError, match=f"has no {next(iter(refused))}: "):
            MultiAsyncCollector([CountingEnv], frames_per_batch=8, **refused)
    with pytest.raises(ArgumentError, match=r"preemptive_threshold must be at most 1 and above 0, got 2"):
        MultiSyncCollector([CountingEnv], frames_per_batch=8, preemptive_threshold=2)


def test_a_saved_state_is_continued():
    with MultiSyncCollector([CountingEnv] * 2, policy(), frames_per_batch=8) as multi:
        multi.collect()
        state = multi.state_dict()
        expected = multi.collect()
        multi.load_state_dict(state)
        assert multi.collected_frames == 8
        equal(multi.collect(), expected)
    other = MultiSyncCollector([CountingEnv], frames_per_batch=8)
    with other, pytest.raises(CheckpointError, match="has 1 workers"):
        other.load_state_dict(state)


def test_arguments():
    made = MultiCollector([CountingEnv] * 2, sync=False, frames_per_batch=4)
    assert isinstance(made, MultiAsyncCollector)
    made.shutdown()
    with pytest.warns(DeprecationWarning, match="use MultiSyncCollector"):
        MultiSyncDataCollector(CountingEnv, num_workers=1, frames_per_batch=4).shutdown()
    with pytest.warns(UserWarning, match="total_frames=10 is no multiple") as found:
        MultiSyncCollector(env_fns=[CountingEnv], frames_per_batch=4, total_frames=10).shutdown()
    assert found[0].filename == __file__
    for settings, message in (
        ({}, "takes a list of functions"),
        ({"env_fns": [CountingEnv()]}, "takes functions that create environments"),
        ({"create_env_fn": CountingEnv}, "say num_workers="),
        ({"env_fns": [CountingEnv], "num_workers_per_collector": 2}, r"SerialEnv\(n, make\)"),
        ({"env_fns": [CountingEnv], "cat_results": 1}, "'stack', 0 or -1"),
        ({"env_fns": [CountingEnv], "policy": policy(), "policy_factory": policy}, "got both"),
        ({"env_fns": [CountingEnv] * 2, "policy_factory": [policy]}, "policy_factory has 1 entries"),
    ):
        with pytest.raises(ArgumentError, match=message):
            MultiSyncCollector(frames_per_batch=4, **settings)
    with pytest.raises(ArgumentError, match="MultiAsyncCollector got an unexpected keyword argument 'cat_results'"):
        MultiAsyncCollector([CountingEnv], frames_per_batch=4, cat_results=0)
    with pytest.raises(ArgumentError, match="num_sub_threads=2: use num_threads="):
        MultiSyncCollector([CountingEnv], frames_per_batch=4, num_sub_threads=2)
    with pytest.raises(ArgumentError, match="did you mean 'max_frames_per_traj'"):
        MultiSyncCollector([CountingEnv], frames_per_batch=4, max_frame_per_traj=0)
    assert issubclass(MultiProcessedWeightUpdater, WeightUpdaterBase)


def test_policies_and_environments_that_do_not_fit_are_named_with_their_worker():
    message = (
        r"workers 0 and 1 differ.*batch size \(4,\) and \(2, 2\); \('next', 'observation'\): torch.float32 \[4, 1\] and"
    )
    with MultiSyncCollector([CountingEnv, partial(CountingEnv, batch_size=[2])], frames_per_batch=8) as multi:
        with pytest.raises(SpecError, match=message):
            multi.collect()
        assert "CountingEnv" in multi.explain()
    larger = lambda: TensorDictModule(Constant(7), in_keys=["observation"], out_keys=["action", "weights"])
    with pytest.raises(ArgumentError, match=r"worker 1.*weight has shape \(7,\) instead of \(1000,\)"):
        MultiSyncCollector([CountingEnv] * 2, policy_factory=[policy, larger], frames_per_batch=8)
    locked = policy()
    locked.lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"what worker 0 is .* cannot be pickled \(cannot pickle '_thread.lock'"):
        MultiSyncCollector([CountingEnv], locked, frames_per_batch=8, mp_start_method="spawn")


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_are_killed_at_the_same_time_are_replaced(kind):
    with kind([CountingEnv] * 3, policy(), frames_per_batch=12, restart=True) as multi:
        for call in (multi.collect, multi.state_dict):
            multi.collect()
            for worker in multi._workers._workers[1:]:
                os.kill(worker.process.pid, signal.SIGKILL)
                worker.process.join()
            with pytest.warns(UserWarning, match="It was replaced"):
                _ = [call() for _ in range(6)]
        for count in range(20):  # at first those that were complete
            lives = set((multi.collect()["collector", "traj_ids"] >> 40).flatten().tolist())
            assert lives <= {0, 2} or (kind is MultiAsyncCollector and count < 6)


def replace_worker(multi):
    """Kill worker 1, and collect until batches are those of its replacement; the last rows of worker 1."""
    multi._workers._workers[1].process.kill()
    multi._workers._workers[1].process.join()
    found = []

    def replaced(batch):
        rows = batch.reshape(-1)
        found.append(rows[rows["collector", "traj_ids"] % 2 == 1])
        return (batch["collector", "traj_ids"] >= 1 << 40).any()

    with pytest.warns(UserWarning, match="It was replaced"):
        assert collect_until(multi, replaced)
    return found[-1]


def mark(batch):
    batch.set("seen", torch.ones(batch.batch_size))


def hide_observation(batch):
    del batch["observation"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replaced_worker_has_what_was_assigned_to_the_one_before(kind, tmp_path):
    with kind([CountingEnv] * 2, policy(), frames_per_batch=8, restart=True) as multi:
        multi.post_collect_hook = mark
        new = policy()
        set_weights(new, 4)
        multi.update_policy_weights_(new, worker_ids=1)
        multi.enable_profile(workers=[1], num_rollouts=3, warmup_rollouts=2, save_path=tmp_path / "trace.json")
        multi.collect()
        rows = replace_worker(multi)
        assert (rows["seen"] == 1).all()
        assert (rows["weights"] == 4).all()
        assert (rows["policy_version"] == 1).all()
        assert not (tmp_path / "trace.json").exists()
        assert collect_until(multi, lambda _: (tmp_path / "trace.json").exists())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hook", "message"), [(mark, "has 'seen'"), (hide_observation, "lacks 'observation'")])
def test_entries_that_a_hook_adds_or_removes_between_batches_are_refused(kind, hook, message):
    with kind([CountingEnv] * 2, frames_per_batch=8) as multi:
        multi.collect()
        multi.post_collect_hook = hook
        with pytest.raises(WorkerError, match=f"a later batch {message}"):
            _ = [multi.collect() for _ in range(6)]


def test_a_storage_with_more_dimensions_than_a_batch_is_refused_with_the_remedy():
    class Buffer:
        class storage:
            ndim = 2

        def extend(self, batch):
            self.size = batch.batch_size

    buffer = Buffer()
    with pytest.raises(ArgumentError, match=r'ndim=2, and a batch 1 dimension.*cat_results="stack"'):
        MultiSyncCollector([CountingEnv] * 2, frames_per_batch=8, replay_buffer=buffer)
    for settings in ({"cat_results": "stack"}, {"create_env_kwargs": {"batch_size": [2]}}):
        with MultiSyncCollector([CountingEnv] * 2, frames_per_batch=8, replay_buffer=buffer, **settings) as multi:
            multi.collect()
        assert len(buffer.size) >= 2


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
@pytest.mark.parametrize("kind", KINDS)
def test_a_collector_that_is_dropped_without_shutdown_leaves_no_memory(kind):
    def memory():
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return {os.stat(link).st_ino for link in links if os.path.islink(link) and "memfd:rl" in os.readlink(link)}

    before = memory()
    collector = kind([CountingEnv] * 2, policy(), frames_per_batch=8)
    collector.collect()
    new = memory() - before
    assert len(new) == 2
    del collector
    gc.collect()
    assert not memory() & new
