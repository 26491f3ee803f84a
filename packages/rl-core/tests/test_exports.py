"""Every public name of rl.core, and the lazy exports of a package root."""

import importlib
import sys

import pytest

import rl.core
from rl.core.errors import MissingExtraError
from rl.core.keys import nearest

ROOT = """
from typing import TYPE_CHECKING
from rl.core.lazy import lazy_exports
if TYPE_CHECKING:
    from lazy_root._part import First
    from lazy_root._part import second
    from ._other import THIRD
__getattr__, __dir__ = lazy_exports(__name__)
"""


@pytest.mark.parametrize("name", rl.core.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.core, name) is not None
    assert name in dir(rl.core)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rl.core.nothing


def test_an_import_of_a_name_that_is_not_there_is_an_import_error():
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from rl.core import nothing  # noqa: F401
    from rl.core import doctor  # a module, which is there only after its import

    assert doctor is sys.modules["rl.core.doctor"]


def test_the_old_path_of_the_conformance_kit_forwards_to_rl_testing():
    from rl.core.testing import check_env

    assert check_env is importlib.import_module("rl.testing").check_env


def test_the_old_path_of_the_conformance_kit_names_its_distribution(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl.testing", None)  # an import of it fails
    monkeypatch.delitem(sys.modules, "rl.core.testing", raising=False)
    with pytest.raises(MissingExtraError, match="pip install rl-testing"):
        importlib.import_module("rl.core.testing")


def test_every_import_for_type_checkers_is_exported_and_none_is_loaded_before(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_root"
    folder.mkdir()
    (folder / "__init__.py").write_text(ROOT)
    (folder / "_part.py").write_text("class First: pass\ndef second(): return 2\n")
    (folder / "_other.py").write_text("THIRD = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    root = importlib.import_module("lazy_root")
    assert {"First", "second", "THIRD"} <= {*dir(root)}
    assert "lazy_root._part" not in sys.modules
    assert (root.First.__name__, root.second(), root.THIRD) == ("First", 2, 3)
    with pytest.raises(AttributeError, match="'lazy_root' has no attribute 'fourth'"):
        _ = root.fourth
    for name in [name for name in sys.modules if name.startswith("lazy_root")]:
        monkeypatch.delitem(sys.modules, name)


def test_every_error_is_an_rl_error_and_a_built_in_one():
    from rl.core import errors

    kinds = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    assert len(kinds) > 10
    for name, kind in kinds.items():
        if not issubclass(kind, Warning) and kind is not errors.RLError:
            assert issubclass(kind, errors.RLError)
            assert len(kind.__mro__) > 4, f"{name} is no built-in error besides"


def test_nearest_key():
    assert nearest("obs", ["observation", "action"]) in (None, "observation")
    assert nearest("observation", [("next", "observation"), "observatoin"]) == "observatoin"
    assert nearest("observatoin", [("next", "observation"), "observation"]) == "observation"
    assert nearest(("next", "observatoin"), ["observation", ("next", "observation")]) == ("next", "observation")
    assert nearest("reward", ["action", ("next", "reward")]) == ("next", "reward")
