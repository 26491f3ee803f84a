"""The runner of `tools/check_gpu.py`: checks that fail, hang or end their process, and a section without time."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FAKE = """
import os, time
from gpu_checks.harness import Check, Goal, Skipped

def fail():
    raise AssertionError("three is not four")

def skip():
    raise Skipped("no such thing here")

def checks(context):
    assert context.dry and context.device.type == "cpu"
    return [
        Check("fine", lambda: {"us": 12.5}, goals=(Goal("us", most=10),)),
        Check("wrong", fail),
        Check("absent", skip),
        Check("hangs", lambda: time.sleep(60), seconds=0.2),
        Check("ends the process", lambda: os._exit(7)),
        Check("last", lambda: None),
    ]
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    path = Path(__file__).parents[1] / "tools" / "check_gpu.py"
    spec = importlib.util.spec_from_file_location("check_gpu", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_gpu", module)  # dataclasses look their module up
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    folder = tmp_path / "gpu_checks"
    folder.mkdir()
    (folder / "fake.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return module


def test_a_section_goes_on_after_checks_that_hang_or_end_their_process(runner, tmp_path, capsys):
    report = runner.Report(tmp_path / "out", {"device": "none"})
    runner.supervise("fake", report, 120, dry=True, jobs=1)
    outcomes = {result.name: result.status for result in report.results}
    assert outcomes == {
        "fine": "ok",  # goals are for a device
        "wrong": "failed",
        "absent": "skipped",
        "hangs": "failed",
        "ends the process": "failed",
        "last": "ok",
    }
    texts = {result.name: result.text for result in report.results}
    assert "three is not four" in texts["wrong"]
    assert "status 7" in texts["ends the process"]
    assert len(capsys.readouterr().out.splitlines()) == len(outcomes)
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["name"] for one in written["results"]] == list(outcomes)
    assert written["results"][0]["figures"] == {"us": 12.5}
    assert "| wrong | failed |" in (tmp_path / "out" / "report.md").read_text()


def test_what_was_not_reached_in_time_is_named(runner, tmp_path):
    report = runner.Report(tmp_path / "out", {})
    runner.supervise("fake", report, 0.01, dry=True, jobs=1)
    assert {result.status for result in report.results} == {"not run"}


def test_goals():
    sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
    try:
        from gpu_checks.harness import Goal
    finally:
        sys.path.pop(0)
    assert Goal("us", most=10).is_met(10)
    assert not Goal("us", most=10).is_met(11)
    assert not Goal("frames/s", least=5e6).is_met(4e6)
    assert str(Goal("frames/s", least=5e6)) == "frames/s >= 5e+06"
