"""Public names, hooks, ``rl doctor``, and behaviour without the library."""

import os
import subprocess
import sys
from importlib import import_module

import pytest
import torch

import rl.native
from rl.core import backends
from rl.core.doctor import examine
from rl.core.errors import RLError, SlowBackendWarning
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry, discovered

# the library is built, replaced and hidden in a folder of the test
from rl.native import NativePriorityTree, _build, _library, isa, why_not
from rl.native._build import COMMAND
from rl.native._library import ISAS, use_isa
from rl.plugins import native as plugin
from rl.testing import ToyPriorityTree


@pytest.mark.parametrize("name", rl.native.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.native, name) is not None
    assert name in dir(rl.native)


@pytest.mark.parametrize("component", list(plugin.rl_components()), ids=lambda c: f"{c.kind}-{c.name}")
def test_every_component_resolves(component):
    module, _, attribute = component.target.partition(":")
    assert isinstance(getattr(import_module(module), attribute), type)


def test_importing_the_root_and_the_plugin_imports_no_torch():
    code = "import sys, rl.native, rl.plugins.native as p; list(p.rl_components()); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_the_hook_is_for_the_cpu_only():
    for dtype in (torch.float32, torch.float64):
        tree = plugin.rl_priority_tree(10, torch.device("cpu"), dtype)
        assert isinstance(tree, NativePriorityTree)
        assert (tree.capacity, tree.dtype) == (10, dtype)
    assert plugin.rl_priority_tree(10, torch.device("cuda"), torch.float32) is None
    assert plugin.rl_priority_tree(10, torch.device("cpu"), torch.float16) is None
    assert isinstance(
        discovered().answer("rl_priority_tree", capacity=10, device=torch.device("cpu"), dtype=torch.float32).value,
        NativePriorityTree,
    )


def test_an_unmarked_tree_of_a_third_party_is_selected_before_ours():
    class Acme:
        @hookimpl
        def rl_priority_tree(self, capacity, device, dtype):
            return ToyPriorityTree(capacity, device, dtype)

    registry = Registry()
    registry.register(plugin, "native", "rl-native")  # ours are registered first
    registry.register(Acme(), "acme", "acme")
    assert isinstance(
        registry.answer("rl_priority_tree", capacity=10, device=torch.device("cpu"), dtype=torch.float32).value,
        ToyPriorityTree,
    )


def test_doctor_reports_the_instruction_set():
    said = [finding for finding in examine() if finding.name == "priority tree on cpu"]
    assert [finding.state for finding in said] == ["ok"]
    assert "native of rl-native" in said[0].value
    assert isa() in said[0].value


def test_an_instruction_set_can_be_chosen():
    assert use_isa("scalar") == isa() == "scalar"
    assert use_isa(None) in ISAS


@pytest.fixture
def absent(monkeypatch, tmp_path):
    """A package whose library was not built."""
    _library._load.cache_clear()
    monkeypatch.setattr(_library, "LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(backends, "_warned", set())
    yield monkeypatch
    _library._load.cache_clear()


def test_without_the_library_hooks_give_none_and_the_class_names_the_remedy(absent):
    assert plugin.rl_priority_tree(10, torch.device("cpu"), torch.float32) is None
    assert plugin.rl_linear_recurrence(torch.device("cpu"), torch.float32) is None
    assert COMMAND in why_not()
    with pytest.raises(RLError, match="compiler"):
        _library.require()
    said = [finding for finding in examine() if finding.name == "rl-native"]
    assert [finding.state for finding in said] == ["note"]
    assert COMMAND in said[0].value


def test_without_the_library_returns_warn_once(absent, recwarn):
    for _ in range(2):
        assert plugin.rl_linear_recurrence(torch.device("cpu"), torch.float32) is None
    assert plugin.rl_linear_recurrence(torch.device("cpu"), torch.float16) is None
    assert [warning.category for warning in recwarn.list] == [SlowBackendWarning]
    assert str(recwarn.list[0].message).startswith("returns are computed in plain torch")
    assert COMMAND in str(recwarn.list[0].message)


def test_switched_off_there_is_no_warning(absent, recwarn):
    absent.setenv("RL_NATIVE", "off")
    assert plugin.rl_linear_recurrence(torch.device("cpu"), torch.float32) is None
    assert not recwarn.list


def test_without_the_library_require_is_an_error(absent):
    absent.setenv("RL_NATIVE", "require")
    with pytest.raises(RLError, match="RL_NATIVE is require"):
        plugin.rl_priority_tree(10, torch.device("cpu"), torch.float32)


def test_off_switches_it_off(monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "off")
    assert plugin.rl_priority_tree(10, torch.device("cpu"), torch.float32) is None
    assert "RL_NATIVE=off" in why_not()


def test_a_file_that_does_not_load_is_named(absent, tmp_path):
    (tmp_path / "none.so").write_text("no library")
    assert _library.library() is None
    assert "does not load" in why_not()
    assert os.fspath(tmp_path) in why_not()


@pytest.mark.skipif(_build.compiler() is None, reason="no C compiler")
def test_a_library_of_another_version_is_refused(absent, tmp_path):
    """It stays behind where a late build was: pip does not know of it when it installs another version."""
    absent.setattr(_build, "LIBRARY", tmp_path / "none.so")
    absent.setattr(_build, "RECORD", tmp_path / "build.json")
    with absent.context() as other:
        other.setattr(_build, "stamp", lambda: "of another version")
        assert _build.build("require") == "ok"
    assert _library.library() is None
    assert "compiled from other sources" in why_not()
    assert "another version" in why_not()
    assert COMMAND in why_not()
    assert plugin.rl_priority_tree(10, torch.device("cpu"), torch.float32) is None
    assert [finding.value for finding in examine() if finding.name == "rl-native"] == [why_not()]

    for module in (_build, _library):  # at another path: the loader would give the old one again
        absent.setattr(module, "LIBRARY", tmp_path / "new.so")
    assert _build.build("require") == "ok"
    _library._load.cache_clear()
    assert _library.library() is not None


@pytest.mark.skipif(not _build.LIBRARY.is_file(), reason="no library")
@pytest.mark.parametrize("kept", [64, 100, 3_000, 200_000])
def test_a_library_that_is_cut_off_is_not_loaded(absent, tmp_path, kept):
    (tmp_path / "none.so").write_bytes(_build.LIBRARY.read_bytes()[:kept])  # to load it would end the process
    assert _library.library() is None
    assert f"cut off: it has {kept} of " in why_not()
    assert COMMAND in why_not()


def test_a_removed_library_is_reported_as_removed(absent, tmp_path):
    absent.setattr(_library, "record", lambda: {"state": "ok"})
    assert f"{tmp_path / 'none.so'} was built and removed since" in why_not()
