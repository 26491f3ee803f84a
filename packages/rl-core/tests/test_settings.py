"""`rl.core.settings`: what the environment says."""

import pytest

from rl.core.errors import RLError
from rl.core.settings import Settings, normalized, settings


def test_an_empty_environment_is_the_default():
    assert settings({}) == Settings()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("", (), id="empty"),
        pytest.param(" , ,", (), id="only-commas"),
        pytest.param("envs", ("envs",), id="one"),
        pytest.param(" RL_Envs ,replay, envs,replay", ("rl-envs", "replay", "envs"), id="spaces-case-repeats"),
        pytest.param("*", ("*",), id="all"),
    ],
)
def test_disabled_plugins(text, names):
    assert settings({"RL_PLUGINS_DISABLE": text}).plugins_disable == names


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_switch_on(text):
    assert settings({"RL_DEBUG": text}).debug is True


@pytest.mark.parametrize("text", ["", "0", "false", "No", "off"])
def test_switch_off(text):
    assert settings({"RL_DEBUG": text}).debug is False


def test_a_value_that_cannot_be_is_an_error_that_names_the_variable():
    with pytest.raises(RLError, match=r"RL_DEBUG is 'maybe'"):
        settings({"RL_DEBUG": "maybe"})
    with pytest.raises(RLError, match=r"RL_NATIVE is 'never'; it is one of auto, off, require"):
        settings({"RL_NATIVE": "never"})


@pytest.mark.parametrize("mode", ["auto", "off", "require"])
def test_native(mode):
    assert settings({"RL_NATIVE": mode.upper()}).native == mode


def test_the_environment_is_read_at_each_call(monkeypatch):
    monkeypatch.setenv("RL_PLUGINS_DISABLE", "a")
    assert settings().plugins_disable == ("a",)
    monkeypatch.setenv("RL_PLUGINS_DISABLE", "b")
    assert settings().plugins_disable == ("b",)


def test_names_are_compared_as_installers_do():
    assert normalized("RL_Prio.Cuda") == "rl-prio-cuda"
