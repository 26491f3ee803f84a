"""Completion in shells: what follows in a command line, and the script for bash in a bash."""

import argparse
import shutil
import subprocess
import sys

import pytest

from rl.core.cli import main
from rl.core.registry import components

# commands that are not installed
from rl.trainers._completion import words

RAN = []


def play(argv):
    parser = argparse.ArgumentParser("rl play")
    parser.add_argument("run")
    parser.add_argument("--checkpoint", choices=["best", "last"])
    parser.add_argument("--fast", action="store_true")
    RAN.append(parser.parse_args(argv))


def data(argv):
    parser = argparse.ArgumentParser("rl data")
    commands = parser.add_subparsers(dest="command")
    record = commands.add_parser("record")
    record.add_argument("kind", choices=["all", "some"])
    record.add_argument("--frames", type=int)
    commands.add_parser("info")
    RAN.append(parser.parse_args(argv))


def shown(argv):
    RAN.append(argv)


def broken(argv):
    print("a message")
    raise OSError("no disk")


COMMANDS = {"play": play, "data": data, "new/plugin": shown, "new": play, "shown": shown, "broken": broken}


def call(argv):
    return COMMANDS[argv[0]](argv[1:])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pl", "play"),
        ("--v", "--version"),
        ("new p", "plugin"),
        ("new --", "--help --checkpoint --fast"),
        ("play ", ""),  # a file
        ("play --", "--help --checkpoint --fast"),
        ("play run --checkpoint ", "best last"),
        ("play run --checkpoint l", "last"),
        ("play run --checkpoint=l", "--checkpoint=last"),
        ("play run --checkpoint = l", "last"),  # bash makes three words of it
        ("play --checkpoint best ", ""),
        ("play --fast --che", "--checkpoint"),
        ("data ", "record info"),
        ("data record ", "all some"),
        ("data record --f", "--frames"),
        ("data record --frames ", ""),
        ("data record --frames 3 s", "some"),
        ("data record some ", ""),
        ("help pl", "play"),
        ("shown --", ""),
        ("broken --", ""),
        ("nothing --", ""),
    ],
)
def test_words_that_may_follow(line, expected, capsys):
    *before, current = line.split(" ")
    assert words(before, current, [*COMMANDS], call) == expected.split()
    assert capsys.readouterr() == ("", "")


def test_no_command_is_run_for_its_completion():
    RAN.clear()
    words(["play", "run"], "--", [*COMMANDS], call)
    words(["shown", "--delete", "x"], "", [*COMMANDS], call)
    assert RAN == [["x", "--help"]]  # of one without a parser, its help


def test_commands_that_are_installed_are_completed(capsys):
    assert main(["completion", "words", "2", "rl", "plugins", "--j"]) == 0
    assert capsys.readouterr().out == "--json\n"
    assert main(["completion", "words", "1", "rl"]) == 0
    assert {"plugins", "list", "completion"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "rl completion words" in capsys.readouterr().out


def test_a_shell_that_is_unknown_is_rejected(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"), [("plug", "plugins"), ("plugins --", "--help|--json|--all"), ("completion f", "fish")]
)
def test_bash_completes(line, expected):
    script = f"""
    rl() {{ '{sys.executable}' -m rl.core "$@"; }}
    eval "$(rl completion bash)"
    COMP_WORDS=(rl {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _rl
    (IFS='|'; echo "${{COMPREPLY[*]}}")
    complete -p rl
    """
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [expected, "complete -o bashdefault -o default -F _rl rl"]


def offered(line, capsys):
    given = ["rl", *line.split(" ")]
    assert main(["completion", "words", str(len(given) - 1), *given]) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train pp", ["ppo", "ppo-rnd"]),
        ("train ppo --pre", ["--preset", "--precision"]),
        ("train dqn --annealing", ["--annealing-num-steps"]),
        ("train ppo --annealing", []),
        ("train ppo --precision ", ["fp32", "bf16"]),
        ("train ppo --env Acro", ["Acrobot-v1"]),
        ("train sac --sampler prioritized", ["prioritized", "prioritized-slices"]),
        ("train ppo --display=pl", ["--display=plain"]),
        ("train ppo --gamma ", []),
        ("train --env x --compile t", ["true"]),
        ("train ppo --preset no", ["none"]),
        ("train nothing --", []),
        ("eval run --vid", ["--video"]),
    ],
)
def test_words_that_may_follow_in_rl_train(line, expected, capsys):
    assert offered(line, capsys) == expected


def test_all_transforms_and_loggers_are_offered(capsys):
    for option, kind in (("transform", "transform"), ("loggers", "logger")):
        assert offered(f"train ppo --{option} ", capsys) == [one.name for one in components(kind)]


def test_settings_that_a_recipe_has_not_are_not_offered(capsys):
    words = offered("train maddpg --", capsys)
    assert "--resume" in words
    assert "--n-steps" not in words
