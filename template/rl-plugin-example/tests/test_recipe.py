"""The conformance check of the recipe, and a short run; both need rl-trainers."""

import pytest

pytest.importorskip("rl.trainers")

from rl.testing import check_recipe

from rl_plugin_example.recipe import REINFORCE, ReinforceConfig


def test_the_recipe_keeps_the_protocol():
    check_recipe(REINFORCE)


def test_the_recipe_trains(tmp_path):
    config = ReinforceConfig(
        env="CartPole-v1", total_frames=64, frames_per_batch=32, num_envs=2, eval_episodes=1, final_eval_episodes=1
    )
    assert REINFORCE.train(config, out=tmp_path / "run", display="none").train_frames == 64
