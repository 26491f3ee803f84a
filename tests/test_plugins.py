"""Third-party plugins, installed as wheels: a good one trains; a broken and a future one are named and left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fresh_env import CORE_NEEDS, ROOT, FreshEnv, build_wheel, fresh_env

THIRD_PARTY = (
    ROOT / "template" / "rl-plugin-example",
    ROOT / "tests" / "plugins" / "rl-plugin-broken",
    ROOT / "tests" / "plugins" / "rl-plugin-future",
)
TRAINER_NEEDS = (
    *CORE_NEEDS,
    "gymnasium",
    "pygame-ce",
    "jsonargparse",
    "matplotlib",
    "pyyaml",
    "rich",
    "safetensors",
    "tensorboard",
    "pytest",
)


@pytest.fixture(scope="module")
def crowd(wheels: Path, tmp_path_factory) -> FreshEnv:
    """All our packages and all plugins of others."""
    env = fresh_env(tmp_path_factory.mktemp("crowd"), TRAINER_NEEDS)
    for project in THIRD_PARTY:
        build_wheel(project, wheels)
    env.install(wheels, "rl-trainers", "rl-testing", "rl-native", *(project.name for project in THIRD_PARTY))
    return env


@pytest.fixture(scope="module")
def listed(crowd: FreshEnv) -> dict[str, dict]:
    """Records of `rl plugins`, by distribution."""
    done = crowd.rl("plugins", "--json")
    assert done.returncode == 0, done.stderr
    return {record["distribution"]: record for record in json.loads(done.stdout)}


def test_the_good_plugin_is_listed_with_what_it_offers(listed):
    example = listed["rl-plugin-example"]
    assert example["state"] == "loaded"
    kinds = {component["kind"] for component in example["components"]}
    assert {"env", "loss"} <= kinds


def test_the_broken_plugin_is_named_with_the_reason(listed):
    broken = listed["rl-plugin-broken"]
    assert broken["state"] == "broken"
    assert broken["reason"]


def test_the_future_plugin_is_named_with_the_upgrade(listed):
    future = listed["rl-plugin-future"]
    assert future["state"] == "incompatible"
    assert "/99" in future["reason"]
    assert "upgrade rl-core" in future["reason"]


def test_ours_are_untouched(listed):
    ours = {name: record["state"] for name, record in listed.items() if not name.startswith("rl-plugin-")}
    assert len(ours) == 7
    assert set(ours.values()) == {"loaded"}


def test_the_table_names_everybody(crowd):
    done = crowd.rl("plugins")
    for project in THIRD_PARTY:
        assert project.name in done.stdout


def test_doctor_fails_and_says_what_to_do(crowd):
    done = crowd.rl("doctor")
    assert done.returncode == 1
    assert "rl-plugin-broken" in done.stdout
    assert "upgrade rl-core" in done.stdout


def test_disabled_plugins_do_no_harm(crowd):
    done = crowd.rl("doctor", RL_PLUGINS_DISABLE="rl-plugin-broken,rl-plugin-future")
    assert done.returncode == 0, done.stdout


def test_the_good_plugin_passes_its_conformance_tests_as_installed(crowd, tmp_path):
    tests = THIRD_PARTY[0] / "tests"
    done = crowd.run(
        *("-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tests)),
        cwd=tmp_path,
        RL_PLUGINS_DISABLE="rl-plugin-broken,rl-plugin-future",  # their warnings are errors under our pytest settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_it_trains_with_our_recipe(crowd, tmp_path):
    out = tmp_path / "run"
    command = ["train", "ppo", "--env", "example/chain", "--total-frames", "4096", "--out", str(out)]
    done = crowd.rl(*command, RL_PLUGINS_DISABLE="rl-plugin-broken,rl-plugin-future")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["frames"] == 4096
    assert "best/return_mean" in summary


def test_a_misspelt_environment_of_it_is_corrected(crowd, tmp_path):
    done = crowd.rl("train", "ppo", "--env", "example/chian", "--out", str(tmp_path / "run"))
    assert done.returncode in (1, 2)
    assert "example/chain" in done.stderr
    assert not (tmp_path / "run").exists()
