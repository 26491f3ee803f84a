import subprocess
import sys

import rl.trainers
from rl.core import components


def test_every_public_name_resolves():
    for name in rl.trainers.__all__:
        assert getattr(rl.trainers, name) is not None
    assert set(rl.trainers.__all__) <= set(dir(rl.trainers))


def test_importing_the_package_imports_no_torch():
    code = "import rl.trainers, sys; assert not {'torch', 'tensordict', 'matplotlib', 'rich'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plugin_offers_recipes_loggers_and_commands():
    assert {"ppo", "dqn"} <= {c.name for c in components("recipe")}
    assert {"csv", "tensorboard"} <= {c.name for c in components("logger")}
