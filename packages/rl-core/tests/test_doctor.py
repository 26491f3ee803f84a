"""``rl doctor``."""

import json
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

from rl.core import doctor

# a table of version ranges, which the installed distributions do not require
from rl.core._discovery import requirements, satisfies
from rl.core.component import Command, Component
from rl.core.errors import BackendError, MissingExtraError
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.testing import ToyPriorityTree


def of(findings, section):
    return [finding for finding in findings if finding.section == section]


def problems(findings):
    return [finding for finding in findings if finding.state == "problem"]


class Trees:
    @hookimpl
    def rl_priority_tree(self, capacity, device, dtype):
        return ToyPriorityTree(capacity, device, dtype)


class Crashes:
    @hookimpl
    def rl_linear_recurrence(self):
        raise OSError("libfast.so: cannot open")


class Refuses:
    @hookimpl
    def rl_recurrent_backend(self, cell):
        raise BackendError("install the driver")


def registry(*plugins):
    made = Registry()
    for plugin in plugins:
        made.register(plugin, type(plugin).__name__.lower())
    return made


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The outcome does not depend on the folder that tests are started in, nor on the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("RL_PLUGINS_DISABLE", "RL_NATIVE", "RL_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def test_a_sound_system_has_no_problem():
    findings = doctor.examine(registry=registry(Trees()))
    assert problems(findings) == []
    assert {"system", "libraries", "devices", "back ends", "plugins"} <= {f.section for f in findings}
    assert {"torch", "tensordict", "pluggy", "numpy"} <= {f.name for f in of(findings, "libraries")}
    assert any(f.name == "cpu" and "cores" in f.value for f in of(findings, "devices"))


def test_the_plugin_that_answers_each_hook_is_named():
    found = {f.name: f for f in of(doctor.examine(registry=registry(Trees())), "back ends")}
    assert found["priority tree on cpu"].value == "ToyPriorityTree of this program (the only candidate)"
    assert found["linear recurrence on cpu"].state == "note"
    assert "no installed plugin answers" in found["recurrent gru on cpu"].value


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU."""
    properties = SimpleNamespace(name="Pretend 9000", total_memory=8 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_a_gpu_is_shown_and_asked_for(gpu):
    class OnGpu:
        @hookimpl
        def rl_linear_recurrence(self, device):
            return fast if device.type == "cuda" else None

    def fast(d, c, time_dim): ...

    fast.name, fast.why = "fast-scan", "the library for this GPU loads"
    findings = doctor.examine(registry=registry(Trees(), OnGpu()))
    (card,) = [f for f in of(findings, "devices") if f.name == "cuda:0"]
    assert card.value == "Pretend 9000, 8 GiB, compute capability 9.0"
    found = {f.name: f.value for f in of(findings, "back ends")}
    assert found["linear recurrence on cuda"] == (
        "fast-scan of this program: the library for this GPU loads (the only candidate)"
    )
    assert "no installed plugin answers" in found["linear recurrence on cpu"]


def test_what_torch_says_about_a_driver_is_repeated(monkeypatch):
    def too_old():
        warnings.warn("the NVIDIA driver is too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", too_old)
    (found,) = [f for f in of(doctor.examine(registry=registry(Trees())), "devices") if f.name == "cuda"]
    assert "driver is too old" in found.value


def test_candidates_are_listed_in_the_order_of_calls_with_what_became_of_them():
    class Passes:
        @hookimpl(tryfirst=True)
        def rl_priority_tree(self):
            return None

    class Last:
        @hookimpl(trylast=True)
        def rl_priority_tree(self):
            raise AssertionError

    found = {f.name: f.value for f in of(doctor.examine(registry=registry(Last(), Trees(), Passes())), "back ends")}
    assert found["priority tree on cpu"] == (
        "ToyPriorityTree of this program (in order of calls: this program:passes [tryfirst]: no answer here;"
        " this program:trees: selected, the first answer; this program:last [trylast]: not called)"
    )


def test_names_that_clash_and_slow_declarations_are_notes():
    made = registry(Trees())
    made.plugins[0].notes.append("env 'x' is offered 2 times, as a:x, b:x")
    made.plugins[0].imports = ("torch",)
    findings = [f for f in of(doctor.examine(quick=True, registry=made), "plugins") if f.state == "note"]
    assert [f.value.partition(",")[0] for f in findings] == [
        "env 'x' is offered 2 times",
        "the declaration imports torch; only targets may import what is heavy",
    ]
    assert "distribution:name" in findings[0].remedy
    assert "RL_PLUGINS_DISABLE=trees" in findings[1].remedy


def test_every_component_is_imported():
    made = Registry()
    made.add(Component("loss", "good", "json:loads"))
    made.add(Component("loss", "typo", "json:laods"))
    made.add(Component("env", "absent", "rl.core.no_such_module:X"))
    found = {f.name: f for f in of(doctor.examine(registry=made), "components")}
    assert [found[name].state for name in ("loss typo", "env absent")] == ["problem", "problem"]
    assert found["all others"].value == "1 import and fit their kinds"


def test_a_target_that_does_not_fit_its_kind_is_a_problem():
    made = Registry()
    made.add(Component("env", "x", "torch.nn:MSELoss"), distribution="acme")
    (found,) = problems(doctor.examine(registry=made))
    assert (found.name, "env 'x' of acme is broken" in found.value) == ("env x", True)


def test_a_wrong_answer_of_a_hook_is_a_problem():
    class Wrong:
        @hookimpl
        def rl_priority_tree(self):
            return "a tree"

    findings = doctor.examine(registry=registry(Trees(), Wrong()))
    shown = next(f.value for f in of(findings, "back ends") if f.name == "priority tree on cpu")
    assert "wrong: its answer was rejected; this program:trees: selected" in shown
    (found,) = problems(findings)
    assert "rl_priority_tree returned 'a tree', which lacks update" in found.value
    assert "RL_PLUGINS_DISABLE=wrong" in found.remedy


def test_an_extra_that_is_absent_is_no_problem(monkeypatch, tmp_path):
    (tmp_path / "rlt_needs.py").write_text("import no_such_lib")
    monkeypatch.syspath_prepend(tmp_path)
    made = Registry()
    made.add(Component("env", "extra", "rlt_needs:X", extra="gym"), distribution="rl-envs")
    (found,) = of(doctor.examine(registry=made), "components")
    assert found.state == "note"
    assert 'pip install "rl-envs[gym]"' in found.value


def test_a_hook_that_crashes_is_a_problem_with_a_remedy():
    (found,) = problems(doctor.examine(registry=registry(Trees(), Crashes())))
    assert "libfast.so: cannot open" in found.value
    assert "RL_PLUGINS_DISABLE=crashes" in found.remedy


def test_a_refusal_is_a_problem():
    found = problems(doctor.examine(registry=registry(Refuses())))
    assert {f.name for f in found} == {"recurrent lstm on cpu", "recurrent gru on cpu"}
    assert found[0].value == "install the driver"


class Full:
    @hookimpl
    def rl_linear_recurrence(self, device, dtype):
        raise OSError("cannot delete a file of the cache: upgrade the disk")


def test_a_remedy_does_not_depend_on_the_words_of_an_error():
    (found,) = problems(doctor.examine(registry=registry(Trees(), Full())))
    assert "cannot delete" in found.value
    assert "RL_PLUGINS_DISABLE=full" in found.remedy
    made = registry(Trees())
    made.plugins[0].state, made.plugins[0].reason = "broken", "OSError: cannot delete a file"
    (found,) = problems(doctor.examine(quick=True, registry=made))
    assert "RL_PLUGINS_DISABLE=trees" in found.remedy


@pytest.mark.parametrize("state", ["broken", "incompatible"])
def test_a_plugin_that_is_left_out_is_a_problem(state):
    made = registry(Trees())
    made.plugins[0].state, made.plugins[0].reason = state, "because"
    (found,) = problems(doctor.examine(quick=True, registry=made))
    assert "because" in found.value
    assert found.remedy


def test_a_disabled_plugin_is_not_a_problem(monkeypatch):
    made = registry(Trees())
    made.plugins[0].state = "disabled"
    monkeypatch.setenv("RL_PLUGINS_DISABLE", "trees,typo")
    findings = doctor.examine(quick=True, registry=made)
    assert problems(findings) == []
    (note,) = of(findings, "settings")
    assert "'typo', which is no installed plugin" in note.value


def test_a_wrong_setting_is_a_problem(monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "perhaps")
    (found,) = problems(doctor.examine(quick=True, registry=Registry()))
    assert "RL_NATIVE" in found.value


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these versions are installed, and these requirements declared."""

    def pretend(versions, wanted=None):
        monkeypatch.setattr(doctor, "installed_version", versions.get)
        monkeypatch.setattr(doctor, "requirements", lambda name: (wanted or {}).get(name, []))
        monkeypatch.setattr(doctor._bad_pairs, "__defaults__", (versions.get,))

    return pretend


@pytest.mark.parametrize(
    ("versions", "remedy"),
    [
        pytest.param({"dm-control": "1.0.50", "mujoco": "4.0.0"}, "mujoco<4", id="mujoco-4"),
        pytest.param({"pygame": "2.6.1", "pygame-ce": "2.5.5"}, "pygame-ce", id="pygame-twice"),
        pytest.param({"dm-control": "1.0.50", "mujoco": "3.9.0"}, None, id="mujoco-3"),
        pytest.param({"mujoco": "4.0.0"}, None, id="mujoco-alone"),
        pytest.param({"pygame-ce": "2.5.5"}, None, id="pygame-once"),
    ],
)
def test_pairs_that_do_not_work_together(installed, versions, remedy):
    installed({"numpy": "2.4", **versions})
    found = problems(doctor.examine(quick=True, registry=Registry()))
    assert len(found) == (remedy is not None)
    assert all(remedy in f.remedy for f in found)


def test_a_library_that_is_too_old_or_absent_is_a_problem(installed):
    wanted = {"rl-core": [("torch", ">=2.11", None, False), ("pluggy", ">=1.5,<2", None, False)]}
    installed({"torch": "2.9.1+cpu", "numpy": "2.4"}, wanted)
    old, absent = problems(doctor.examine(quick=True, registry=Registry()))
    assert old.value == "2.9.1+cpu, rl-core needs >=2.11"
    assert absent.remedy == 'pip install "pluggy>=1.5,<2"'


def test_a_plugin_whose_requirement_is_out_of_range_is_a_problem(installed):
    made = Registry()
    made.add(Component("loss", "x", "m:A"), distribution="acme")
    installed({"rl-core": "0.3.0", "numpy": "2.4"}, {"acme": [("rl-core", ">=0.1,<0.2", None, False)]})
    (found,) = problems(doctor.examine(quick=True, registry=made))
    assert found.value == "needs rl-core>=0.1,<0.2; it is 0.3.0"


def test_an_absent_extra_is_a_hint(installed):
    made = Registry()
    made.add(Component("env", "gym", "m:A", extra="gym"), distribution="rl-envs")
    installed({"numpy": "2.4"}, {"rl-envs": [("gymnasium", ">=1.1,<2", "gym", False)]})
    findings = doctor.examine(quick=True, registry=made)
    assert problems(findings) == []
    (hint,) = of(findings, "extras")
    assert hint.state == "note"
    assert hint.remedy.startswith('pip install "rl-envs[gym]"')


def test_a_torch_that_does_not_import_is_a_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    findings = doctor.examine(registry=Registry())
    (found,) = problems(findings)
    assert found.name == "import tensordict"
    assert of(findings, "back ends") == []


def test_exit_status_and_text(monkeypatch, capsys):
    made = registry(Trees())
    monkeypatch.setattr(doctor, "discovered", lambda: made)
    assert doctor.main(["--quick"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("Nothing is broken.")
    made.plugins[0].state, made.plugins[0].reason = "broken", "because"
    assert doctor.main(["--quick"]) == 1
    out = capsys.readouterr().out
    assert "WRONG this program:trees" in out
    assert "        -> upgrade or uninstall" in out
    assert out.rstrip().endswith("1 problem.")


def test_json(monkeypatch, capsys):
    made = registry(Trees())
    made.plugins[0].state = "broken"
    monkeypatch.setattr(doctor, "discovered", lambda: made)
    assert doctor.main(["--quick", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert {"section", "name", "value", "state", "remedy"} == set(report["findings"][0])


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.11", True),
        ("2.9", ">=2.11", False),
        ("0.1.0", ">=0.1,<0.2", True),
        ("0.2", ">=0.1,<0.2", False),
        ("1.0.0", "==1.0", True),
        ("1.0.1", "!=1.0.1", False),
        ("4.0.0rc1", ">=4", True),
        ("1", "", True),
        ("2.13.0+cpu", "==2.*", True),
        ("2.13.0", "==2.0.*", False),
        ("2.13.0", "!=2.*", False),
        ("1.9", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.5.0", "~=1.4.2", False),
        ("1.0", "@ https://example.org/x-2.0.zip?v==2", True),
    ],
)
def test_version_ranges(version, wanted, fits):
    assert satisfies(version, wanted) is fits


def test_requirements_are_read_from_metadata():
    found = {name: (wanted, extra) for name, wanted, extra, _ in requirements("rl-core")}
    assert found["torch"] == (">=2.11", None)
    assert requirements("no-such-distribution") == []


def test_a_command_that_does_not_import_is_a_problem():
    class Offers:
        @hookimpl
        def rl_commands(self, registry):
            return Command("play", "json:no_such_function")

    found = {f.name: f for f in doctor.examine(registry=registry(Offers()))}
    assert found["command play"].state == "problem"
    assert "no_such_function" in found["command play"].value


def test_checks_of_a_plugin_need_the_conformance_kit(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl.testing", None)  # an import of it fails
    monkeypatch.setattr("rl.core.targets.installed_version", lambda _: None)
    made = registry(Trees())
    with pytest.raises(MissingExtraError, match=r"rl doctor --plugin .* needs rl-testing, .*pip install rl-testing"):
        doctor.examine_plugin("trees", registry=made)
