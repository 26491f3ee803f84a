"""Each fault of a declaration is named by check_component and check_plugin, and shown by rl doctor --plugin."""

from importlib.metadata import EntryPoint

import pytest

from rl.core.component import Component
from rl.core.doctor import examine_plugin
from rl.core.errors import CheckError, NotExercisedWarning, UnknownComponentError
from rl.core.registry import GROUP, Registry

# the limit of an import's duration is raised for busy machines
from rl.testing import _plugin, check_component, check_plugin

HEAD = """
from rl.core.component import Component
from rl.core.hookspecs import hookimpl
"""

GOOD = (
    HEAD
    + """
@hookimpl
def rl_components():
    yield Component("env", "acme/counting", "rl.testing:CountingEnv", summary="Counts.")
    yield Component("tree_backend", "acme-tree", "rl.testing:ToyPriorityTree", summary="An array.")
    yield Component("loss", "acme-loss", "acme_parts:Loss", summary="A loss.")
    yield Component("env", "acme/named", "acme_parts:Named", summary="Needs a name.")
"""
)

PARTS = """
from rl.testing import CountingEnv

class Loss:
    contract = None
    def __call__(self, td): ...

class Named(CountingEnv):
    def __init__(self, name): ...

class Endless(CountingEnv):
    def __init__(self):
        super().__init__(1000)

class Unseeded(CountingEnv):
    def set_seed(self, seed): ...
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module of a plugin that can be imported here and in a child; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_plugin, "SLOW_IMPORT", 0.5)  # the tests' machine may be busy
    (tmp_path / "acme_parts.py").write_text(PARTS)

    def module(text, name="acme_plugin"):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
        return name

    yield module
    for name in ("acme_parts", "acme_plugin"):
        __import__("sys").modules.pop(name, None)


def declaring(target, kind="env"):
    return f"{HEAD}\n@hookimpl\ndef rl_components():\n    yield Component({kind!r}, 'acme', {target!r}, summary='x')\n"


def test_a_plugin_that_keeps_its_promises_passes_and_says_what_was_not_exercised(write):
    with pytest.warns(NotExercisedWarning, match="^not exercised: its behaviour: needs arguments"):
        report = check_plugin(write(GOOD))
    assert [sentence.split(" (")[-1] for sentence in report.not_exercised] == [
        *["env acme/counting)"] * 2,
        "loss acme-loss)",
        "env acme/named)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\n" + GOOD, "^it imports torch.*; only targets may import what is heavy"),
        ("import time; time.sleep(0.6)\n" + GOOD, r"^its import takes \d+ ms, 500 ms is the limit"),
        ("import nowhere", "^ModuleNotFoundError: No module named 'nowhere'"),
        ("import os; os._exit(3)", "^its import ended the process with status 3"),
        ("x = 3", "implements no hook"),
        (declaring("torch.nn:MSELoss"), r"does not fit the kind env.*\(env acme\)"),
        (declaring("acme_parts:Nothing"), "acme_parts:Nothing raised AttributeError"),
        (declaring("acme_parts:Unseeded"), "^set_seed: it must return the next seed"),
    ],
)
def test_a_fault_is_named_reason_first(write, text, message):
    with pytest.raises(CheckError, match=message):
        check_plugin(write(text))


def test_all_faults_are_named_a_line_each(write):
    text = declaring("acme_parts:Unseeded") + "    yield Component('env', 'more', 'torch.nn:MSELoss', summary='x')\n"
    with pytest.raises(CheckError) as caught:
        check_plugin(write(text))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Component("enviroment", "x", "a:b", summary="x"), "^no kind of component is called 'enviroment'"),
        (Component("env", "x", "rl.testing:CountingEnv"), r"^has no summary.*\(env 'x'\)"),
        (Component("env", "x", "rl.testing:CountingEnv", summary="one\ntwo"), "^the summary has several lines"),
        (Component("env", "x", "rl.testing:CountingEnv", summary="x", contract=9), "env/9.*upgrade rl-core"),
        (Component("env", "x", "rl.testing:ToyRowGather", summary="x"), "does not fit the kind env"),
    ],
)
def test_a_wrong_declaration_is_named(component, message):
    with pytest.raises(CheckError, match=message):
        check_component(component)


def test_the_wrong_target_is_named_before_the_missing_summary():
    with pytest.raises(CheckError) as caught:
        check_component(Component("env", "x", "torch.nn:MSELoss"))
    first, second = str(caught.value).splitlines()
    assert "does not fit the kind env" in first
    assert second.startswith("has no summary")
    with pytest.raises(CheckError, match=r"^expected an rl\.core\.Component, got 3 of type int"):
        check_component(3)


def test_a_wrong_answer_of_a_hook_is_named(write):
    text = HEAD + '\n@hookimpl\ndef rl_priority_tree():\n    return "a tree"\n'
    with pytest.raises(CheckError, match=r"^rl_priority_tree returned 'a tree', which lacks update"):
        check_plugin(write(text))


def test_a_target_whose_library_is_absent_is_reported(write):
    write("import nowhere", "acme_plugin")
    component = Component("env", "x", "acme_plugin:X", summary="x", extra="sim")
    with pytest.warns(NotExercisedWarning, match=r"^not exercised: the target: .*pip install"):
        check_component(component, "acme-rl")


def test_the_doctor_shows_a_row_for_each_result(write):
    text = declaring("acme_parts:Endless") + "    yield Component('env', 'more', 'torch.nn:MSELoss', summary='x')\n"
    registry = Registry([EntryPoint(name="acme", value=write(text), group=GROUP)])
    found = examine_plugin("Acme", registry=registry)
    assert [(finding.name, finding.state) for finding in found] == [
        ("declaration acme_plugin", "ok"),
        ("env acme", "ok"),
        ("env acme", "note"),
        ("env acme", "note"),
        ("env more", "problem"),
    ]
    assert found[2].value.startswith("not exercised: last observation of an episode: no end")
    with pytest.raises(UnknownComponentError, match="no installed plugin is called 'acmee'"):
        examine_plugin("acmee", registry=registry)
