"""What the package offers."""

import subprocess
import sys

import rl.llm
from rl.core.testing import check_plugin
from rl.llm import functional
from rl.plugins import llm


def test_every_public_name_resolves():
    for module in (rl.llm, functional):
        for name in module.__all__:
            assert getattr(module, name) is not None
            assert name in dir(module)


def test_components_keep_the_rules_of_plugins():
    check_plugin("rl.plugins.llm")
    names = {one.name for one in llm.rl_components() if one.kind == "loss"}
    assert {"grpo", "dapo", "dr-grpo", "gspo", "cispo", "rloo", "sft", "dpo", "distillation", "reward-model"} < names


def test_importing_the_package_and_its_plugin_imports_no_torch():
    code = "import sys, rl.llm, rl.plugins.llm; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
