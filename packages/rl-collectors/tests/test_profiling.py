"""Chrome traces of single batches, here and in worker processes."""

import json

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.collectors import Collector, MultiSyncCollector, ProfileConfig
from rl.core import set_profiling_enabled
from rl.core.errors import ArgumentError
from rl.testing import CountingEnv


def names(path):
    return [event["name"] for event in json.loads(path.read_text())["traceEvents"] if "name" in event]


def policy():
    return TensorDictModule(lambda x: torch.zeros(x.shape[:-1], dtype=torch.int64), ["observation"], ["action"])


def test_the_trace_has_the_batches_after_the_warm_up_and_the_stages(tmp_path):
    plain = Collector(CountingEnv(), policy(), frames_per_batch=4)
    collector = Collector(CountingEnv(), policy(), frames_per_batch=4)
    collector.enable_profile(num_rollouts=3, warmup_rollouts=1, save_path=tmp_path / "deep" / "trace_{worker_idx}.json")
    path = tmp_path / "deep" / "trace_0.json"
    for _ in range(2):
        assert torch.equal(collector.collect()["observation"], plain.collect()["observation"])
    assert not path.exists()
    for _ in range(2):
        assert torch.equal(collector.collect()["observation"], plain.collect()["observation"])
    found = names(path)
    assert found.count("collect") == 2
    assert found.count("policy") == 8
    assert found.count("env") >= 8


def test_workers_write_traces_of_their_own(tmp_path):
    seen = []
    config = ProfileConfig(workers=[1], num_rollouts=1, warmup_rollouts=0, save_path=tmp_path / "w{worker_idx}.json")
    with MultiSyncCollector([CountingEnv] * 2, policy(), frames_per_batch=8) as collector:
        collector.enable_profile(config=config)
        collector.collect()
        with pytest.raises(ArgumentError, match=r"workers \[2\]; there are 0 to 1"):
            collector.enable_profile(workers=[2])
    assert [path.name for path in tmp_path.iterdir()] == ["w1.json"]
    assert names(tmp_path / "w1.json").count("collect") == 1
    single = Collector(CountingEnv(), frames_per_batch=4)
    single.enable_profile(num_rollouts=1, warmup_rollouts=0, on_trace_ready=seen.append)
    single.collect()
    assert len(seen) == 1


def test_wrong_settings_are_refused():
    with pytest.raises(ArgumentError, match="warm-up is part of the rollouts"):
        ProfileConfig(num_rollouts=2, warmup_rollouts=2)
    with pytest.raises(ArgumentError, match=r"activities \['tpu'\]"):
        ProfileConfig(activities=["tpu"])
    with pytest.raises(ArgumentError, match="a config or settings"):
        Collector(CountingEnv(), frames_per_batch=4).enable_profile(config=ProfileConfig(), num_rollouts=2)


def test_ranges_of_a_running_collector_follow_the_switch():
    collector = Collector(CountingEnv(), policy(), frames_per_batch=4)
    counted = []
    try:
        for enabled in (False, True, False):
            set_profiling_enabled(enabled)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
                collector.collect()
            names = [event.name for event in trace.events()]
            counted.append([names.count(name) for name in ("collect", "policy", "env")])
    finally:
        set_profiling_enabled(enabled=False)
    assert counted[0] == counted[2] == [0, 0, 0]
    assert counted[1][:2] == [1, 4]
    assert counted[1][2] >= 4
