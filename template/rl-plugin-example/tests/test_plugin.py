"""The plugin as a whole: its declaration, its targets, and what needs no arguments."""

from rl.core.registry import Registry
from rl.testing import check_plugin

from rl_plugin_example import plugin


def test_the_plugin_keeps_the_rules():
    check_plugin("rl_plugin_example.plugin", "rl-plugin-example")


def test_its_names_have_the_prefix():
    registry = Registry()  # an empty one, so that this passes without an installation, too
    registry.register(plugin, "example")
    assert all(component.name.startswith("example") for component in registry.components())
