"""The command ``rl``."""

import json
import os
import re
import subprocess
import sys
import warnings
from types import ModuleType

import pytest

from rl.core import cli, targets
from rl.core.__about__ import __version__
from rl.core.component import Command, Component
from rl.core.errors import BrokenPluginWarning, RLError
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry

calls = []


def run_it(arguments):
    calls.append(arguments)
    return 7 if "--seven" in arguments else None


def fail_it(arguments):
    raise RLError("no such environment: install it")


def crash_it(arguments):
    raise ZeroDivisionError("a bug")


class Plugin:
    @hookimpl
    def rl_components(self):
        yield Component("loss", "mine", "m:A", "A loss.")

    @hookimpl
    def rl_commands(self, registry):
        yield Command("play", "rlt_commands:run_it", "Play a game.")
        yield Command("fail", "rlt_commands:fail_it")
        yield Command("crash", "rlt_commands:crash_it")
        yield Command("gone", "no_such_module_x:main")
        yield Command("show/map", "rlt_commands:run_it", "Show the map.")


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    made = Registry()
    made.register(Plugin(), "mine", "acme")
    monkeypatch.setattr(cli, "discovered", lambda: made)
    commands = ModuleType("rlt_commands")
    vars(commands).update(run_it=run_it, fail_it=fail_it, crash_it=crash_it)
    monkeypatch.setitem(sys.modules, "rlt_commands", commands)
    monkeypatch.delenv("RL_DEBUG", raising=False)
    calls.clear()
    return made


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_own_and_contributed_subcommands(capsys, arguments):
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: rl")
    for part in ("plugins", "doctor", "play", "Play a game.", "acme"):
        assert part in out


def test_a_contributed_command_says_first_which_plugins_are_left_out(capsys, registry):
    registry.plugins[0].state, registry.plugins[0].reason = "broken", "because"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["play"]) == 0
    assert capsys.readouterr().err == "rl: plugin acme:mine is left out: because\n"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rl-core {__version__}\n"


def test_a_contributed_command_gets_the_remaining_arguments():
    assert cli.main(["play", "--seven", "x"]) == 7
    assert cli.main(["play"]) == 0
    assert calls == [["--seven", "x"], []]


def test_a_command_of_two_words_gets_the_remaining_arguments(capsys):
    assert cli.main(["show", "map", "--seven"]) == 7
    assert calls == [["--seven"]]
    assert cli.main(["show", "--help"]) == 0
    assert cli.main(["show"]) == 2
    out = capsys.readouterr().out
    assert out.count("show map") == 2
    assert "play" not in out
    assert cli.main(["show", "mop"]) == 2
    assert capsys.readouterr().err.startswith("rl: no subcommand 'show mop'. Did you mean `rl show map`?")


def test_list_names_the_components_of_a_kind(capsys):
    assert cli.main(["list", "loss"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["loss", "mine", "acme", "A", "loss."]
    assert cli.main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["target"], row["distribution"]) == ("m:A", "acme")
    assert cli.main(["list", "env"]) == 0
    assert capsys.readouterr().out == "No installed plugin offers a component of kind env.\n"
    assert cli.main(["list", "lsos"]) == 1
    assert "did you mean 'loss'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param("plugns", "Did you mean `rl plugins`?", id="own"),
        pytest.param("pley", "Did you mean `rl play`?", id="contributed"),
        pytest.param("qqqqq", "`rl --help` lists what there is", id="nothing-close"),
        pytest.param("--verbose", "no option '--verbose'", id="option"),
    ],
)
def test_an_unknown_subcommand_is_answered_with_a_close_match_and_status_2(capsys, name, hint):
    assert cli.main([name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert repr(name) in err
    assert hint in err


def test_an_error_of_ours_is_one_message_without_a_traceback(capsys):
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr().err == "rl: no such environment: install it\n"


@pytest.mark.parametrize(("hidden", "said"), [(False, "pip install rl-envs"), (True, "rename")])
def test_our_package_that_cannot_be_imported_is_one_message(capsys, monkeypatch, tmp_path, hidden, said):
    def import_it(arguments):
        raise ImportError("cannot import name 'GymEnv' from 'rl.envs'", name="rl.envs")

    monkeypatch.setattr(sys.modules["rlt_commands"], "run_it", import_it)
    monkeypatch.setattr(targets, "installed_version", lambda name: "0.2.0" if hidden else None)
    monkeypatch.chdir(tmp_path)
    if hidden:
        (tmp_path / "rl").mkdir()
        (tmp_path / "rl" / "envs.py").write_text("")
    assert cli.main(["play"]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_the_traceback_is_there_on_demand(capsys, monkeypatch):
    monkeypatch.setenv("RL_DEBUG", "1")
    assert cli.main(["fail"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_plugin_that_is_left_out_is_one_line_and_other_warnings_are_as_ever(capsys):
    shown = []
    brief = cli._brief(lambda *given: shown.append(given))
    brief(BrokenPluginWarning("plugin x is left out"), BrokenPluginWarning, "file.py", 3)
    brief(UserWarning("something else"), UserWarning, "file.py", 4)
    assert capsys.readouterr().err == "rl: plugin x is left out\n"
    assert [category for _, category, *_ in shown] == [UserWarning]


def test_plugins_marks_what_makes_every_command_slow(capsys, registry):
    registry.plugins[0].import_seconds, registry.plugins[0].imports = 0.312, ("torch",)
    assert cli.main(["plugins"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    # The call of rl_commands adds its time.
    assert re.search(r" 3\d\d ms SLOW  loaded  the declaration takes 3\d\d ms and imports torch; only targets", row)


@pytest.mark.parametrize(
    ("name", "owner", "install"),
    [
        ("train", "rl-trainers", "rl-trainers"),
        ("eval", "rl-trainers", "rl-trainers"),
        ("migrate", "rl-torchrl", '"rl-torchrl[migrate]"'),
    ],
)
def test_a_subcommand_of_a_package_that_is_absent_says_what_to_install(capsys, monkeypatch, name, owner, install):
    monkeypatch.setattr(cli, "installed_version", lambda distribution: None)
    assert cli.main([name]) == 2
    assert capsys.readouterr().err == f"rl: `rl {name}` comes with {owner}: pip install {install}\n"


def test_an_interrupt_says_which_plugin_was_running(capsys, monkeypatch):
    def interrupted():
        error = KeyboardInterrupt()
        error.add_note("while importing plugin acme:slow 1.0")
        raise error

    monkeypatch.setattr(cli, "discovered", interrupted)
    assert cli.main(["plugins"]) == 130
    assert capsys.readouterr().err == "rl: interrupted while importing plugin acme:slow 1.0\n"


def test_what_a_plugin_writes_does_not_reach_a_listing(tmp_path):
    (tmp_path / "acme-1.0.dist-info").mkdir()
    (tmp_path / "acme-1.0.dist-info" / "METADATA").write_text("Name: acme\nVersion: 1.0\n")
    (tmp_path / "acme-1.0.dist-info" / "entry_points.txt").write_text("[rl.plugins]\nacme = rlt_noisy\n")
    noise = "import os, sys, rl.core.hookspecs as h\nprint('one')\nos.write(1, b'two')\n"
    noise += "sys.__stdout__.write('three')\n@h.hookimpl\ndef rl_commands():\n    os.write(1, b'four')\n    return []\n"
    (tmp_path / "rlt_noisy.py").write_text(noise)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for words in (["plugins", "--json"], ["doctor", "--quick", "--json"]):
        command = [sys.executable, "-m", "rl.core", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert "acme" in str(json.loads(done.stdout))
        assert all(word in done.stderr for word in ("one", "two", "three", "four"))


def test_a_bug_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        cli.main(["crash"])


def test_a_command_whose_library_is_absent_says_so(capsys):
    assert cli.main(["gone"]) == 1
    assert "command 'gone' of acme" in capsys.readouterr().err


def test_a_wrong_setting_is_one_message(capsys, monkeypatch):
    def refused():
        raise RLError("RL_NATIVE is 'x'")

    monkeypatch.setattr(cli, "discovered", refused)
    assert cli.main(["plugins"]) == 1
    assert capsys.readouterr().err == "rl: RL_NATIVE is 'x'\n"


def test_plugins_is_an_aligned_table(capsys):
    assert cli.main(["plugins"]) == 0
    head, line, row = capsys.readouterr().out.splitlines()
    columns = "distribution version plugin contracts components import state reason"
    assert head.split() == columns.split()
    assert set(line) == {"-", " "}
    assert row.split()[:6] == ["acme", "-", "mine", "loss/1", "1", "loss"]
    assert row.split()[7] == "ms"
    assert head.index("state") == row.index("loaded")


def test_plugins_can_list_every_component(capsys):
    assert cli.main(["plugins", "--all"]) == 0
    assert "loss  mine  acme          A loss." in capsys.readouterr().out


def test_plugins_as_json(capsys):
    assert cli.main(["plugins", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["distribution"] == "acme"
    assert record["components"] == [{"kind": "loss", "name": "mine", "summary": "A loss."}]


def test_plugins_shows_the_reason_of_a_broken_one(capsys, registry):
    record = registry.plugins[0]
    record.state, record.reason = "broken", "ValueError: two\nlines"
    assert cli.main(["plugins"]) == 0
    assert "broken  ValueError: two lines" in capsys.readouterr().out


def test_no_plugin_at_all(capsys, monkeypatch):
    monkeypatch.setattr(cli, "discovered", Registry)
    assert cli.main(["plugins"]) == 0
    assert "No plugin is installed" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["plugins", "--json"], ["doctor", "--quick"]])
def test_listing_imports_neither_torch_nor_tensordict(arguments):
    code = (
        "import sys\nfrom rl.core.cli import main\n"
        f"main({arguments!r})\n"
        "heavy = {'torch', 'tensordict', 'numpy', 'gymnasium', 'jsonargparse', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "rl.core", "no-such-thing"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RL_PLUGINS_DISABLE": "*"},
    )
    assert done.returncode == 2
    assert "no subcommand 'no-such-thing'" in done.stderr


def test_a_subcommand_prints_its_own_help(capsys):
    assert cli.main(["help", "play"]) == 0
    assert calls == [["--help"]]
    assert cli.main(["help", "plai"]) == 2
    assert "Did you mean `rl play`?" in capsys.readouterr().err


def test_plugins_shows_what_is_wrong_with_commands(registry, capsys):
    class Thief:
        @hookimpl
        def rl_commands(self, registry):
            return Command("play", "m:run")

    registry.register(Thief(), "thief", "other")
    assert cli.main(["plugins", "--json"]) == 0
    problems = {record["name"]: record["problems"] for record in json.loads(capsys.readouterr().out)}
    assert problems == {"mine": [], "thief": ["rl_commands: command 'play' is already offered by acme:mine"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["doctor", "--quik"], "rl doctor: there is no option --quik; did you mean --quick?"),
        (["plugins", "--jsno"], "rl plugins: there is no option --jsno; did you mean --json?"),
        (["plugins", "everything"], "rl plugins: there is no option everything."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_option_is_answered_with_a_close_match_and_status_2(capsys, arguments, said):
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err
