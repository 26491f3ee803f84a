"""What the package offers."""

import subprocess
import sys

import pytest
import torch

import rl.objectives
import rl.objectives.value
from rl.core.registry import default

# the hook returns this function, and no other name identifies it
from rl.objectives.functional._recurrence import torch_recurrence
from rl.objectives.value import functional
from rl.plugins import objectives


@pytest.mark.parametrize("module", [rl.objectives, rl.objectives.value, functional], ids=lambda m: m.__name__)
def test_every_public_name_resolves(module):
    assert sorted(module.__all__, key=str.lower) == sorted(set(module.__all__), key=str.lower)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_every_component_resolves():
    found = [one for one in objectives.rl_components() if one.kind in ("loss", "estimator")]
    losses = ["ppo", "ppo-clip", "a2c", "reinforce", "dqn", "ppo-kl", "impala", "rnd", "c51", "qr-dqn"]
    losses += ["ddpg", "td3", "sac", "discrete-sac", "redq", "tqc", "crossq", "mappo", "ippo", "qmixer"]
    losses += ["bc", "td3-bc", "iql", "discrete-iql", "cql", "discrete-cql"]
    losses += ["dt", "online-dt", "gail", "diffusion-bc", "act", "world-model", "tdmpc2"]
    losses += [f"dreamer-{part}" for part in ("model", "actor", "value", "v3-model", "v3-actor", "v3-value")]
    assert sorted(one.name for one in found) == sorted(
        [*losses, "gae", "multi-agent-gae", "td0", "td1", "td-lambda", "vtrace"]
    )
    for one in found:
        assert default().load(one.kind, one.name).__name__ == one.target.split(":")[1]


def test_plain_torch_answers_for_everything():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert objectives.rl_linear_recurrence(torch.device("cpu"), dtype) is torch_recurrence


def test_importing_the_package_and_its_plugin_imports_no_torch():
    code = "import sys, rl.objectives, rl.objectives.value, rl.plugins.objectives; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
