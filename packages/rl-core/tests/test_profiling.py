"""Named ranges of traces, and `timeit`."""

import time

import pytest
from torch.profiler import ProfilerActivity, profile

# `_Switch` is set back to what the environment variable says, for which there is no public call
from rl.core.profiling import _Switch, profiled, profiling_enabled, set_profiling_enabled, timeit


@pytest.fixture(autouse=True)
def _restore():
    timeit.erase()
    yield
    _Switch.enabled = None
    timeit.erase()


def names():
    with profile(activities=[ProfilerActivity.CPU]) as trace, profiled("mine"):
        pass
    return {event.name for event in trace.events()}


def test_ranges_are_recorded_while_they_are_enabled(monkeypatch):
    assert "mine" not in names()
    set_profiling_enabled()
    assert "mine" in names()
    set_profiling_enabled(False)
    assert "mine" not in names()
    _Switch.enabled = None
    monkeypatch.setenv("RL_PROFILING", "1")
    assert profiling_enabled()


def test_times_add_up_by_name(capsys):
    @timeit("outer")
    def outer(again):
        time.sleep(0.01)
        with timeit("inner"):
            time.sleep(0.02)
        return again and outer(again=False)

    assert outer(again=True) is False
    sums, means = timeit.todict(percall=False, prefix="time"), timeit.todict()
    assert timeit.count("outer") == timeit.count("inner") == 2
    assert sums["time/inner"] == pytest.approx(2 * means["inner"])
    assert 0.04 <= sums["time/inner"] < sums["time/outer"]
    timeit.print()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["outer", "inner"]
    with pytest.raises(RuntimeError), timeit("failed"):
        raise RuntimeError
    assert timeit.count("failed") == 1


def test_printevery_prints_some_of_the_tables(capsys):
    running = timeit("loop").start()
    assert running.elapsed() >= 0
    running.stop()
    for _ in range(10):
        timeit.printevery(num_prints=2, total_count=10)
    assert capsys.readouterr().out.count("loop") == 2
