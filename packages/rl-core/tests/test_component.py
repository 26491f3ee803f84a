"""`rl.core.component`: what a plugin offers, as data."""

import pytest

from rl.core.component import CONTRACTS, Command, Component
from rl.core.errors import PluginError


@pytest.mark.parametrize("name", ["gym", "ppo-clip", "example/chain", "td3", "a_b.c"])
def test_names_that_are_accepted(name):
    assert Component("env", name, "m:A").name == name


@pytest.mark.parametrize("name", ["", "PPO", "ppo clip", "-ppo", "ppo-", "a//b", "ä"])
def test_names_that_are_refused(name):
    with pytest.raises(PluginError, match="lower case"):
        Component("env", name, "m:A")


@pytest.mark.parametrize("target", ["m.n:A", "m:A.b", "_m:_a"])
def test_targets_that_are_accepted(target):
    assert Component("env", "x", target).target == target


@pytest.mark.parametrize("target", ["", "m", "m.A", "m:", ":A", "m:A()", "m A:b", "m:1"])
def test_targets_that_are_refused(target):
    with pytest.raises(PluginError, match="module:attribute"):
        Component("env", "x", target)
    with pytest.raises(PluginError, match="module:attribute"):
        Command("x", target)


def test_a_component_is_frozen_and_can_be_compared():
    one = Component("env", "x", "m:A")
    assert one == Component("env", "x", "m:A")
    assert hash(one) == hash(Component("env", "x", "m:A"))
    with pytest.raises(AttributeError):
        one.name = "y"


def test_served_versions_are_intervals():
    assert all(1 <= oldest <= current for oldest, current in CONTRACTS.values())
    assert list(CONTRACTS) == sorted(CONTRACTS)
