"""The command ``rl``: its own subcommands, and those that plugins contribute.

Nothing here imports torch or tensordict; a subcommand's module is imported when it is run.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any, TextIO

from rl.core.__about__ import __version__
from rl.core._discovery import installed_version
from rl.core._output import Parser, diverted_stdout, table
from rl.core._plugins import PluginRecord, printable
from rl.core.component import CONTRACTS, Command
from rl.core.errors import BrokenPluginWarning, MissingExtraError, RLError
from rl.core.registry import Registry, discovered
from rl.core.settings import settings
from rl.core.targets import absent_package, import_target

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rl ARGUMENTS``.

    Args:
        argv: Arguments; if None, those of the process.

    Returns:
        Exit status: 0 if it worked, 1 if it did not (one message on standard error; a traceback with
        ``RL_DEBUG=1``), 2 if the command line makes no sense.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _brief(warnings.showwarning)
        return _guarded(arguments)


def _brief(show: Callable[..., None]) -> Callable[..., None]:
    """Our own warnings as one line, all others as ever."""

    def brief(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, BrokenPluginWarning):
            sys.stderr.write(f"rl: {message}\n")
        else:
            show(message, category, *rest)

    return brief


def _guarded(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except RLError as error:
        if _debug():
            traceback.print_exc()
        else:
            sys.stderr.write(f"rl: {error}\n")
        return 1
    except SystemExit as error:  # argparse exits on --help and on bad options
        if isinstance(error.code, str):
            sys.stderr.write(f"rl: {error.code}\n")
            return 1
        return int(error.code or 0)
    except BrokenPipeError:  # `rl plugins | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt as error:
        sys.stderr.write(f"{' '.join(['rl: interrupted', *getattr(error, '__notes__', ())])}\n")
        return 130


def _debug() -> bool:
    try:
        return settings().debug
    except RLError:  # RL_DEBUG itself is malformed
        return False


def _dispatch(arguments: list[str]) -> int:
    if len(arguments) > 1 and arguments[0] == "help":  # `rl help train` is `rl train --help`
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _write_help(sys.stdout)
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"rl-core {__version__}\n")
        return 0
    splits = [("/".join(arguments[:words]), arguments[words:]) for words in (2, 1)]  # `rl new plugin` is new/plugin
    for name, rest in splits:
        if name in _OWN:
            return _OWN[name][0](rest)
    registry, offered = _found()
    first, *more = arguments
    names = _OWN if first in offered else (*_OWN, *offered)  # a command of that name runs, unless the group is ours
    grouped = any(name.startswith(f"{first}/") for name in names)
    if grouped and (not more or more[0].startswith("-")):  # `rl new` and `rl new --help`
        _write_help(sys.stdout, first)
        return 0 if more else 2
    for name, rest in splits:
        if name in offered:
            registry.warn()  # before libraries are imported, which may fail for the same reason
            return _run(*offered[name], rest)
    return _unknown(arguments, [*_OWN, *offered])


def _run(command: Command, record: PluginRecord, arguments: list[str]) -> int:
    function = import_target(command.target, f"command {command.name!r}", record.distribution)
    try:
        return int(function(arguments) or 0)
    except ImportError as error:
        if remedy := absent_package(error):
            raise MissingExtraError(remedy) from error
        raise


def _found() -> tuple[Registry, dict[str, tuple[Command, PluginRecord]]]:
    """Return the registry and its subcommands; what plugins print meanwhile goes to standard error."""
    with diverted_stdout():
        registry = discovered()
        return registry, registry.commands()


def _unknown(arguments: list[str], known: list[str]) -> int:
    name = arguments[0]
    if any(one.startswith(f"{name}/") for one in known):
        name = "/".join(arguments[:2])
    owner, bracket, extra = _ELSEWHERE.get(name, "").partition("[")
    if owner and installed_version(owner) is None:
        wanted = f'"{owner}[{extra}"' if bracket else owner
        sys.stderr.write(f"rl: `rl {_spoken(name)}` comes with {owner}: pip install {wanted}\n")
        return 2
    what = "option" if name.startswith("-") else "subcommand"
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean `rl {_spoken(close[0])}`?" if close else ""
    left_out = discovered().left_out()
    more = f" {left_out[0].upper()}{left_out[1:]}." if left_out else ""
    sys.stderr.write(f"rl: no {what} {_spoken(name)!r}.{hint}{more} `rl --help` lists what there is.\n")
    return 2


def _spoken(name: str) -> str:
    """Return the words on the command line: those of ``new/plugin`` are two."""
    return name.replace("/", " ")


def _write_help(out: TextIO, group: str = "") -> None:
    """List all subcommands, or those that begin with the word `group`."""
    _, offered = _found()
    rows = [(name, summary, "") for name, (_, summary) in _OWN.items()]
    rows += [(name, command.summary, record.distribution) for name, (command, record) in offered.items()]
    rows = [(_spoken(name), *rest) for name, *rest in rows if not group or f"{name}/".startswith(f"{group}/")]
    out.write("usage: rl [--help] [--version] SUBCOMMAND [ARGUMENTS]\n\nSubcommands:\n")
    out.writelines(f"  {line}\n" for line in table(rows))
    out.write("\n`rl SUBCOMMAND --help` explains one. RL_DEBUG=1 shows tracebacks.\n")


def _plugins(arguments: list[str]) -> int:
    parser = Parser("rl plugins", description="List the plugins that are installed, usable or not.")
    parser.add_argument("--json", action="store_true", help="as JSON, with everything that is known")
    parser.add_argument("--all", action="store_true", help="one line for each component, too")
    options = parser.read(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table lists the broken plugins
        registry, _ = _found()
    if options.json:
        sys.stdout.write(json.dumps([record.as_dict() for record in registry.plugins], indent=2) + "\n")
        return 0
    head = ("distribution", "version", "plugin", "contracts", "components", "import", "state", "reason")
    for line in table([head, *map(_row, registry.plugins)], head=True):
        sys.stdout.write(line + "\n")
    if not registry.plugins:
        sys.stdout.write("No plugin is installed: pip install rl-envs, for example.\n")
    loaded = [record for record in registry.plugins if record.state == "loaded"]
    rows = sorted((c.kind, c.name, r.distribution, printable(c.summary)) for r in loaded for c in r.components)
    if options.all and rows:
        rows = [("kind", "name", "distribution", "summary"), *rows]
        sys.stdout.write("\n" + "\n".join(table(rows, head=True)) + "\n")
    return 0


def _row(record: PluginRecord) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for component in record.components:
        counts[component.kind] = counts.get(component.kind, 0) + 1
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    parts = (record.reason, *record.problems, *record.notes, record.slow)
    reason = " ".join("; ".join(filter(None, parts)).split())
    cost = f"{record.import_seconds * 1000:.0f} ms{' SLOW' if record.slow else ''}"
    return (
        record.distribution,
        record.version or "-",
        record.name,
        ", ".join(record.contracts) or "-",
        listed or "-",
        cost if record.import_seconds else "-",
        record.state,
        reason,
    )


def _doctor(arguments: list[str]) -> int:
    from rl.core import doctor

    return doctor.main(arguments)


def _list(arguments: list[str]) -> int:
    parser = Parser("rl list", description="List the installed components of a kind, which are chosen by these names.")
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(CONTRACTS)}; all if left out")
    parser.add_argument("--json", action="store_true", help="as JSON, with targets and extras")
    options = parser.read(arguments)
    registry, _ = _found()
    registry.warn()
    found = registry.components(options.kind)
    owners = [registry.owner_of(component) for component in found]
    if options.json:
        rows = [{**asdict(one), "distribution": owner} for one, owner in zip(found, owners, strict=True)]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    if not found:
        sys.stdout.write(
            f"No installed plugin offers a component{f' of kind {options.kind}' if options.kind else ''}.\n"
        )
        return 0
    head = ("kind", "name", "distribution", "summary")
    rows = [(one.kind, one.name, owner, printable(one.summary)) for one, owner in zip(found, owners, strict=True)]
    sys.stdout.writelines(f"{line}\n" for line in table([head, *rows], head=True))
    return 0


def _new_plugin(arguments: list[str]) -> int:
    from rl.core import _new

    return _new.main(arguments)


_ELSEWHERE = {
    "completion": "rl-trainers",
    "eval": "rl-trainers",
    "migrate": "rl-torchrl[migrate]",
    "new/algorithm": "rl-trainers",
    "new/recipe": "rl-trainers",
    "train": "rl-trainers",
}
"""Documented subcommands, and the distribution that provides each, with the extra that it needs."""

_OWN: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "plugins": (_plugins, "List the plugins that are installed, usable or not."),
    "list": (_list, "List the installed components of a kind, which are chosen by name."),
    "doctor": (_doctor, "Look for what is broken or slower than it need be, and say what to do."),
    "new/plugin": (_new_plugin, "Write a project of a plugin, with tests and workflows."),
}
