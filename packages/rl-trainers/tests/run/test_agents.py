"""Agents that come with the package: their returns against the published ones, and what a user does with them."""

import json
from pathlib import Path

import numpy as np
import pytest

import rl.trainers
from rl.core.cli import main
from rl.core.errors import ArgumentError
from rl.trainers import evaluate, load_policy, load_run

PUBLISHED = {
    case["name"]: case
    for case in json.loads((Path(rl.trainers.__file__).parent / "presets" / "results.json").read_text())["cases"]
}
AGENTS = ["ppo-Acrobot-v1", "ppo-CartPole-v1", "ppo-MountainCarContinuous-v0", "ppo-Pendulum-v1"]
OBSERVATION = [0.0, 0.1, 0.0, -0.1]


def command(capsys, *words):
    status = main(list(words))
    return (status, *capsys.readouterr())


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_has_the_published_settings_and_reaches_the_published_return(name):
    case, agent = PUBLISHED[name], load_run(f"hub:{name}")
    for setting in ("env", "learning_rate", "frames_per_batch", "num_envs", "normalize_observation", "num_cells"):
        value = getattr(agent.config, setting)
        assert (list(value) if isinstance(value, tuple) else value) == case["settings"][setting]
    assert agent.frames <= case["frames"]
    returns = evaluate(agent, episodes=agent.config.final_eval_episodes)  # of starts that training has not seen
    assert returns.mean() >= case["best/return_mean"]["min"]


def test_the_list_has_the_agents_with_their_returns(capsys):
    status, out, _ = command(capsys, "hub", "list", "--json")
    found = {one["agent"]: one for one in json.loads(out)}
    assert (status, [*found]) == (0, AGENTS)
    for name, one in found.items():
        assert one["return"] in PUBLISHED[name]["best/return_mean"]["values"]
    status, out, _ = command(capsys, "hub", "list")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["agent", "recipe", "env", "frames", "return"]
    assert ["ppo-CartPole-v1", "ppo", "CartPole-v1", "80,896", "500.0"] in lines


def test_an_agent_is_pulled_without_a_network_and_plays_as_in_python(capsys):
    status, out, _ = command(capsys, "hub", "pull", "ppo-CartPole-v1")
    assert status == 0
    assert out.startswith("runs/ppo-CartPole-v1: ppo on CartPole-v1, mean return 500.00 +/- 0.00\n")
    agent, pulled = load_policy("hub:ppo-CartPole-v1"), load_policy("runs/ppo-CartPole-v1")
    batch = np.random.default_rng(0).uniform(-0.2, 0.2, (50, 4)).astype(np.float32)
    assert agent.predict(OBSERVATION) in (0, 1)
    np.testing.assert_array_equal(agent.predict(batch), pulled.predict(batch))
    assert command(capsys, "eval", "runs/ppo-CartPole-v1", "--episodes", "2")[1].startswith("return 500.00 ± 0.00")
    assert "rl hub pull ppo-CartPole-v1 --out ppo-CartPole-v1" in Path("runs/ppo-CartPole-v1/README.md").read_text()


def test_the_package_has_no_link_or_code_among_its_agents():
    folder = Path(rl.trainers.__file__).parent / "agents"
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    assert {path.suffix for path in files} == {".md", ".yaml", ".json", ".safetensors"}
    assert not any(path.is_symlink() for path in files)
    assert sum(path.stat().st_size for path in files) < 150_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull", "ppo-CartPole"], "'ppo-CartPole' names no place: write ./FOLDER, or OWNER/NAME"),
        (["pull", "ppo-CartPole-v1", "--revision", "v1"], "--revision is for the Hugging Face Hub"),
        (["push", "runs/mine", "ppo-CartPole-v1"], "'ppo-CartPole-v1' names no place"),
    ],
)
def test_wrong_words_are_explained(words, said, capsys):
    status, out, err = command(capsys, "hub", *words)
    assert (status, out) == (1, "")
    assert said in err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hub:ppo-CartPole", "did you mean ppo-CartPole-v1"),
        ("hub:me/mine", "`rl hub pull` takes those of other people"),
    ],
)
def test_an_agent_that_is_not_there_is_named(name, said):
    with pytest.raises(ArgumentError, match=rf"^no agent .* comes with rl-trainers: {said}"):
        load_policy(name)
