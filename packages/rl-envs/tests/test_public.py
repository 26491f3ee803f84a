from __future__ import annotations

import subprocess
import sys

import pytest

import rl.envs
from rl.core.mdp import step_mdp
from rl.plugins.envs import rl_components


@pytest.mark.parametrize("name", rl.envs.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.envs, name) is not None


def test_step_mdp_is_that_of_core():
    assert rl.envs.step_mdp is step_mdp


def test_components_point_at_what_exists():
    for component in rl_components():
        module, _, name = component.target.partition(":")
        assert module == "rl.envs"
        assert name in rl.envs.__all__, component


@pytest.mark.parametrize("heavy", ["torch", "gymnasium"])
def test_importing_the_package_imports_nothing_heavy(heavy):
    code = f"import sys, rl.envs, rl.plugins.envs; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_simulators_are_imported_where_an_environment_is_made():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from rl.envs import DMControlEnv, PettingZooEnv, VmasEnv\n"
        "sys.exit(bool({'dm_control', 'mujoco', 'pettingzoo', 'vmas', 'gym'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_torch_environments_do_without_gymnasium():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from rl.envs import PendulumEnv, StepCounter, TransformedEnv\n"
        "TransformedEnv(PendulumEnv(), StepCounter(3)).rollout(5)\n"
        "from rl.core.errors import MissingExtraError\n"
        "try:\n    from rl.envs import GymEnv\n"
        "except MissingExtraError as error:\n    assert 'rl-envs[gym]' in str(error)\n"
        "else:\n    sys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
