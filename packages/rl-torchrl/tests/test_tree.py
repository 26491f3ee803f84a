"""TorchRL's module tree, what it says about names without a counterpart, and `install`."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys

import pytest

import rl.core
import rl.torchrl
from rl.core import specs
from rl.core.errors import RLError


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


def test_modules_have_the_names_of_our_packages():
    from rl.torchrl import data
    from rl.torchrl.data.tensor_specs import BoundedTensorSpec
    from rl.torchrl.envs.utils import step_mdp

    assert data.Composite is rl.core.Composite
    assert data.CompositeSpec is rl.core.Composite
    assert BoundedTensorSpec is specs.Bounded
    assert step_mdp is rl.core.step_mdp
    assert {"Composite", "CompositeSpec", "replay_buffers"} <= {*dir(data)}


def test_a_module_that_torchrl_does_not_have_is_not_there():
    with pytest.raises(ModuleNotFoundError, match=r"rl\.torchrl\.data\.nothing"):
        importlib.import_module("rl.torchrl.data.nothing")


def test_a_name_without_counterpart_says_what_to_use():
    with pytest.raises(ImportError, match=r"^rl\.torchrl\.trainers: Trainer: write the loop as lines of your own"):
        from rl.torchrl.trainers import Trainer  # noqa: F401
    with pytest.raises(AttributeError, match=r"rl\.torchrl\.envs: SipHash: it is not available; docs/coming-from"):
        _ = rl.torchrl.envs.SipHash
    with pytest.raises(AttributeError, match=r"HERReplayBuffer means something else here; see Equal names"):
        _ = rl.torchrl.data.HERReplayBuffer
    assert not hasattr(rl.torchrl.data, "Nothing")
    assert not hasattr(rl.torchrl.data, "__wrapped__")


def test_a_name_of_torchrl_that_a_package_does_not_have_says_what_to_use():
    with pytest.raises(
        ImportError, match=r"^rl\.core has no TargetNetUpdater, which TorchRL has: use rl.objectives.SoftUpdate"
    ):
        from rl.core import TargetNetUpdater  # noqa: F401
    with pytest.raises(AttributeError, match=r"which TorchRL has: use rl.objectives.SoftUpdate"):
        _ = rl.core.TargetNetUpdater
    assert not hasattr(rl.core, "TargetNetUpdater")


def test_an_argument_of_torchrl_is_ignored_at_its_default_and_else_says_what_to_use():
    assert specs.OneHot(3, use_register=False).shape == (3,)
    with pytest.raises(TypeError, match="Unbounded got an unexpected keyword argument 'minimum': use low="):
        specs.Unbounded(3, minimum=0)


def test_without_this_package_an_argument_is_unknown_and_the_message_names_it():
    code = "from rl.core.specs import OneHot; OneHot(3, use_register=False)"
    done = run("-c", code, RL_PLUGINS_DISABLE="rl-torchrl")
    assert "'use_register'; if TorchRL has it, rl-torchrl says what to use: pip install rl-torchrl" in done.stderr


def test_the_root_has_the_logger():
    from rl.torchrl import torchrl_logger as logger

    assert logger is logging.getLogger("torchrl")


def test_a_script_that_imports_torchrl_runs_as_it_is(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torchrl\nfrom torchrl.data import *\n"
        "print(sys.argv, torchrl.data.Composite is Composite, Composite.__module__.split('.')[0])\n"
    )
    done = run("-m", "rl.torchrl", str(script), "--seed", "1")
    assert (done.returncode, done.stdout) == (0, f"[{str(script)!r}, '--seed', '1'] True rl\n"), done.stderr
    assert run("-m", "rl.torchrl", "-m", "this", "x").stdout.startswith("The Zen of Python")


def test_what_cannot_be_run_is_named_in_one_line(tmp_path):
    for words in ((), ("-m",), ("--help",)):
        assert run("-m", "rl.torchrl", *words).stderr.startswith("usage: python -m rl.torchrl SCRIPT")
    assert run("-m", "rl.torchrl", "none.py").stderr == "rl.torchrl: there is no file none.py\n"
    (tmp_path / "torchrl.py").write_text("own = True\n")
    (tmp_path / "script.py").write_text("import torchrl\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("-m", "rl.torchrl", str(tmp_path / "script.py"), PYTHONPATH=path)
    assert done.stderr.startswith("rl.torchrl: torchrl itself is installed: uninstall it, or hide it")


def test_torchrl_itself_is_not_hidden_unless_told(tmp_path):
    (tmp_path / "torchrl.py").write_text("own = True\n")
    head = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import rl.torchrl\n"
    assert "torchrl itself is installed" in run("-c", f"{head}rl.torchrl.install()").stderr
    done = run("-c", f"{head}rl.torchrl.install(replace=True)\nimport torchrl\nprint(torchrl.data.Bounded)")
    assert done.stdout == "<class 'rl.core.specs._continuous.Bounded'>\n"
    assert "torchrl was imported before" in run("-c", f"{head}import torchrl\nrl.torchrl.install(replace=True)").stderr


def test_installing_twice_is_installing_once(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "torchrl", raising=False)
    try:
        rl.torchrl.install()
    except RLError:
        pytest.skip("TorchRL itself is installed")
    before = len(sys.meta_path)
    rl.torchrl.install()
    assert len(sys.meta_path) == before
