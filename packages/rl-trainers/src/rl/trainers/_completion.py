"""``rl completion``: scripts for shells, and the words that may follow on a command line. Imports no torch.

The scripts call ``rl completion words``, so that what they offer is what is installed. The parser of a command is taken
from `argparse` at the moment when it would parse; that of ``rl train`` depends on the recipe.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from rl.core.cli import main
from rl.core.component import OWN_COMMANDS
from rl.core.errors import RLError
from rl.core.registry import components, discovered

if TYPE_CHECKING:
    from rl.trainers.algorithm import Algorithm
    from rl.trainers.config import ConfigField

SCRIPTS = {
    "bash": """\
_rl() {
    local IFS=$'\\n'
    COMPREPLY=($(rl completion words "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null))
}
complete -o bashdefault -o default -F _rl rl
""",
    "zsh": """\
#compdef rl
_rl() {
    local -a found
    found=("${(@f)$(rl completion words $((CURRENT - 1)) "${words[@]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
if [[ "${funcstack[1]}" = _rl ]]; then _rl "$@"; else compdef _rl rl; fi
""",
    "fish": """\
function __rl_words
    set -l before (commandline -opc)
    rl completion words (count $before) $before (commandline -ct) 2>/dev/null
end
complete -c rl -a '(__rl_words)'
""",
}

INSTALL = """\
In ~/.bashrc:                    eval "$(rl completion bash)"
In ~/.zshrc, after compinit:     eval "$(rl completion zsh)"
Once, for fish:                  rl completion fish > ~/.config/fish/completions/rl.fish
"""


def complete(arguments: Sequence[str]) -> list[str]:
    """Return what ``rl completion words`` prints.

    Args:
        arguments: Index of the word at the cursor, and the words of the command line.
    """
    at, line = int(arguments[0]), list(arguments[1:])
    names = [*OWN_COMMANDS, *discovered().commands()]
    return words(line[1:at], line[at] if at < len(line) else "", names, main)


def words(
    before: Sequence[str], current: str, names: Sequence[str], call: Callable[[Sequence[str]], object]
) -> list[str]:
    """Return what the word at the cursor may be; nothing where it may be a file.

    Args:
        before: Words between ``rl`` and the cursor.
        current: Beginning of the word at the cursor.
        names: Names of all commands, as in ``new/plugin``.
        call: Function that runs a command line.

    Example:
        >>> words([], "d", ["doctor", "list"], print)
        ['doctor']
    """
    option, sign, value = current.partition("=")
    if current.startswith("--") and sign:  # --display=pl, of shells for which it is one word
        return [f"{option}={word}" for word in words([*before, option], value, names, call)]
    before, current = [word for word in before if word != "="], "" if current == "=" else current  # bash: three words
    return [word for word in _after(before, current, names, call) if word.startswith(current)]


def _after(
    before: Sequence[str], current: str, names: Sequence[str], call: Callable[[Sequence[str]], object]
) -> Sequence[str]:
    if before[:1] == ["help"]:
        before = before[1:]
    start = "".join(f"{word}/" for word in before)
    following = [one.removeprefix(start).partition("/")[0] for one in names if one.startswith(start)]
    if not before:
        return [*dict.fromkeys(following), "--help", "--version"]
    found = next((one for n in (2, 1) if (one := "/".join(before[:n])) in names), None)
    if found is None:
        return following
    count = found.count("/") + 1
    try:
        with _quiet():
            if found == "train":
                return complete_train(before[1:])
            return [*following, *_of_parser(_parser_of(call, before), before[count:], current)]
    except Exception:  # noqa: BLE001  of a broken plugin; a message would stand in the line that is typed
        return following


@contextmanager
def _quiet() -> Generator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


class _FoundError(BaseException):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def _parser_of(call: Callable[[Sequence[str]], object], line: Sequence[str]) -> argparse.ArgumentParser | None:
    """Return the parser that a command makes; None if it makes none. It is called for its help, so it does nothing."""

    def found(self: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _FoundError(self)

    parse: Any = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = found  # of this process, which ends
    try:
        call([*(word for word in line if not word.startswith("-")), "--help"])
    except _FoundError as one:
        return one.parser
    finally:
        argparse.ArgumentParser.parse_known_args = parse
    return None


def _of_parser(parser: argparse.ArgumentParser | None, rest: Sequence[str], current: str) -> Sequence[str]:
    if parser is None:
        return ()
    positionals = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001  no other list
    place, waiting = 0, None
    for number, word in enumerate(rest):
        action = parser._option_string_actions.get(word.partition("=")[0])  # noqa: SLF001
        if waiting is not None:
            waiting = None
        elif action is not None:
            waiting = action if action.nargs != 0 and "=" not in word else None
        elif place < len(positionals):
            if isinstance(positionals[place], argparse._SubParsersAction):  # noqa: SLF001
                choices: Any = positionals[place].choices
                return _of_parser(choices.get(word), rest[number + 1 :], current)
            place += positionals[place].nargs not in ("*", "+")
    if waiting is not None:
        return [str(choice) for choice in waiting.choices or ()]
    if current.startswith("-"):
        return [name for name in parser._option_string_actions if name.startswith("--")]  # noqa: SLF001
    return [str(choice) for choice in positionals[place].choices or ()] if place < len(positionals) else ()


def complete_train(before: Sequence[str]) -> list[str]:
    """Return recipes, options, or values of the last option; nothing where it may be a file or a number.

    Args:
        before: Words between ``rl train`` and the cursor.

    Example:
        >>> complete_train(["ppo", "--precision"])
        ['fp32', 'bf16']
    """
    from rl.trainers._arguments import CONTROL, find_recipe
    from rl.trainers.config import config_fields

    named = bool(before) and not before[0].startswith("-")
    try:
        recipe = find_recipe(before[0] if named else "ppo")
    except RLError:
        return []
    fields = {field.name: field for field in (*CONTROL, *config_fields(recipe.config))}
    options = [f"--{name.replace('_', '-')}" for name in fields if name not in recipe.config.absent]
    last = fields.get(before[-1].removeprefix("--").replace("-", "_")) if before and before[-1][:2] == "--" else None
    if last is not None and last.type is not bool:
        return _values(last, recipe)
    switch = [] if last is None else ["true", "false"]  # a switch may also stand alone
    recipes = [] if before else [component.name for component in components("recipe")]
    return [*switch, *recipes, *options, "--help"]


def _values(field: ConfigField, recipe: Algorithm) -> list[str]:
    from rl.trainers._named import SETTING_KINDS
    from rl.trainers.display import DisplayMode

    if field.name == "display":
        return [*get_args(DisplayMode)]
    if field.name == "preset":
        return ["auto", "none", *recipe.load_presets()]
    kind = SETTING_KINDS.get(field.name)
    if kind is None:
        return [*field.choices]
    ids = [*recipe.load_presets()] if kind == "env" else []
    return [*ids, *(component.name for component in components(kind))]
