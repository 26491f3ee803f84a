"""Each fault of a recipe is named by check_recipe."""

import sys
from dataclasses import dataclass, make_dataclass
from types import SimpleNamespace

import pytest

from rl.core.errors import CheckError
from rl.testing import check_recipe

LIGHT = """
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Config:
    '''Settings.

    Args:
        gamma: discount, in [0, 1].
    '''

    gamma: float = 0.99

def train(config, *, out, resume=False, display=None): ...
def policy(config, env): ...
"""


@pytest.fixture
def light(tmp_path, monkeypatch):
    """A module that keeps every promise, importable here and in a child."""
    (tmp_path / "light_recipe.py").write_text(LIGHT)
    (tmp_path / "heavy_recipe.py").write_text("import torch\n" + LIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    yield __import__("light_recipe")
    for name in ("light_recipe", "heavy_recipe"):
        sys.modules.pop(name, None)


def recipe(module, **other):
    parts = {"name": "mine", "config": module.Config, "train": module.train, "make_policy": module.policy}
    return SimpleNamespace(**parts | other)


def test_a_recipe_that_keeps_its_promises_passes(light):
    assert check_recipe(recipe(light)).not_exercised == ["training: call `train` in a test of its own"]


@dataclass
class Changeable:
    """Settings.

    Args:
        gamma: discount.
    """

    gamma: float = 0.9


@dataclass(frozen=True)
class Required:
    """Settings.

    Args:
        gamma: discount.
    """

    gamma: float


@dataclass(frozen=True)
class Undocumented:
    """Settings."""

    gamma: float = 0.9


@dataclass(frozen=True)
class Refused:
    """Settings.

    Args:
        gamma: discount.
    """

    gamma: float = 2.0

    def __post_init__(self):
        raise ValueError(self.gamma)


@dataclass(frozen=True, eq=False)
class Unequal:
    """Settings.

    Args:
        gamma: discount.
    """

    gamma: float = 0.9


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"config": Changeable}, r"^Changeable is not frozen.* \(recipe 'mine'\)"),
        ({"config": Required}, "^the setting 'gamma' has no default"),
        ({"config": Undocumented}, "^the setting 'gamma' is not documented"),
        ({"config": Refused}, "^the defaults are rejected: ValueError: 2.0"),
        ({"config": Unequal}, "^settings rebuilt from their values are not equal"),
        ({"config": 3}, "^config must be a dataclass, got 3"),
        ({"train": len}, r"^<built-in function len> cannot be called with \(config, out=, resume=, display=\)"),
        ({"make_policy": len}, r"^<built-in function len> cannot be called with \(config, env\)"),
        ({"make_policy": 3}, "^3 is no function"),
    ],
    ids=lambda value: str(next(iter(value.values()))).split(".")[-1] if isinstance(value, dict) else "",
)
def test_a_fault_is_named_reason_first(light, other, message):
    with pytest.raises(CheckError, match=message):
        check_recipe(recipe(light, **other))


def test_settings_next_to_an_import_of_torch_are_named(light):
    heavy = __import__("heavy_recipe")
    with pytest.raises(CheckError, match=r"^heavy_recipe, the module of the settings, imports torch"):
        check_recipe(recipe(light, config=heavy.Config))


def test_something_else_is_no_recipe():
    with pytest.raises(CheckError, match=r"^no recipe: lacks \['config', 'train', 'make_policy'\]"):
        check_recipe(make_dataclass("Half", [("name", str)])("half"))
