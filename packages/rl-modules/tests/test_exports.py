import subprocess
import sys

import pytest

import rl.modules
from rl.plugins import modules as plugin


@pytest.mark.parametrize("name", rl.modules.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.modules, name) is not None
    assert name in dir(rl.modules)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'MPL'"):
        rl.modules.MPL  # noqa: B018


@pytest.mark.parametrize("component", list(plugin.rl_components()), ids=lambda c: c.name)
def test_every_component_points_at_something_public(component):
    module, attribute = component.target.split(":")
    assert module == "rl.modules"
    assert attribute in rl.modules.__all__


def test_importing_the_package_and_its_plugin_imports_no_torch():
    code = "import sys, rl.modules, rl.plugins.modules as p; list(p.rl_components()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
