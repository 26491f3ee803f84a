"""Parse the arguments of ``rl train`` into a config. Imports no torch."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml
from jsonargparse import ArgumentError as ParserError
from jsonargparse import ArgumentParser

from rl.core.errors import ArgumentError, RLError
from rl.core.registry import components, load
from rl.trainers._named import check_trusted, find, import_named
from rl.trainers._presets import Preset, preset_for, preset_in
from rl.trainers._schedules import Annealing
from rl.trainers._storage import RunFolder
from rl.trainers.algorithm import Algorithm
from rl.trainers.config import ConfigField, RunConfig, config_fields, old_names, warn_old_names, with_new_names
from rl.trainers.display import DisplayMode


class UsageError(RLError, ValueError):
    """The command line cannot be understood; exit status 2."""


class OneLineParser(argparse.ArgumentParser):
    """Parser that reports an error in one line, as `rl train` does."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. More: {self.prog} --help")


@dataclass(frozen=True)
class TrainArguments:
    """Parsed arguments of ``rl train``.

    Args:
        preset: The preset that applies, with the settings that it decides: those that nothing else sets.
    """

    recipe: Algorithm
    config: RunConfig
    out: str | None
    resume: str | None
    display: Any
    preset: Preset | None = None
    seeds: tuple[int, ...] = ()
    like: str | None = None
    jobs: int = 1


CONTROL = (
    ConfigField("out", str | None, None, "the run folder, which must not exist [runs/RECIPE-ENV-SEED-COUNTER]"),
    ConfigField("resume", str | None, None, "an earlier run's folder; it continues from its last checkpoint"),
    ConfigField(
        "seeds",
        str | None,
        None,
        "several seeds, as in 0,1,2 or 0-4: runs in folders seed-0, seed-1, ... of --out, one after the other or --jobs"
        " at a time, with one plot and one summary of all. The same command with the same --out continues.",
    ),
    ConfigField("jobs", int, 1, "runs of --seeds that train at the same time, each in a process of its own"),
    ConfigField("config", str | None, None, "a YAML file with settings, for example another run's config.yaml"),
    ConfigField("like", str | None, None, "an earlier run's folder, whose recipe and settings a new run gets"),
    ConfigField(
        "preset",
        str,
        "auto",
        "settings for an environment, by name (`rl presets` lists them) or as a .yaml file, which `rl tune` writes;"
        " auto takes those of --env if there are any, and none with --config or --resume; none takes none. Options and"
        " config files take precedence.",
    ),
    ConfigField(
        "trust",
        tuple[str, ...],
        (),
        "a module that the files of --config and --resume may name, as in my_env for env: my_env:Maze; may be repeated."
        " Of what these files name only installed components are imported otherwise.",
        repeated=True,
    ),
    ConfigField("display", str, "auto", "progress as a live panel (rich), lines (plain), not at all (none), or auto"),
)


_COMMAND_LINE_ONLY = ("out", "resume", "seeds", "jobs", "config", "like", "preset", "trust")


def usage() -> str:
    """Return the page of ``rl train --help``."""
    lines = ["usage: rl train [RECIPE] [--env ID] [--total-frames N] [--seed S] [--out DIR] ...", "", "Recipes:"]
    recipes = components("recipe")
    width = max(len(component.name) for component in recipes)
    lines += [f"  {component.name:<{width}}  {component.summary}" for component in recipes]
    lines += ["", "Without arguments: ppo on CartPole-v1. All settings of a recipe: rl train RECIPE --help"]
    return "\n".join(lines) + "\n"


def parse_train(argv: Sequence[str]) -> TrainArguments | str:
    """Understand the arguments, or return the help page that they ask for.

    Raises:
        UsageError: If an argument cannot be understood.
        RLError: If a file that is named cannot be read.

    Example:
        >>> parse_train(["ppo", "--total-frames", "1000"]).config.total_frames
        1000
    """
    words = list(argv)
    named = bool(words) and not words[0].startswith("-")
    if not named and {"-h", "--help"} & set(words):
        known = {component.name for component in components("recipe")}
        recipes = [word for word in words if word in known]  # rl train --help ppo
        return parse_train([recipes[0], "--help"]) if recipes else usage()
    given = _dashes_to_underscores(words[1:] if named else words)
    like = _value_of("--like", given)
    given = _with_settings_of(like, given)
    name = words[0] if named else _recipe_of_files(given)
    recipe = find_recipe(name)
    given = _plain_words(_with_new_options(given, recipe.config), config_fields(recipe.config))
    parser = _parser(recipe)
    fields = [*CONTROL, *config_fields(recipe.config)]
    given = _collect_repeated(given, {field.name for field in fields if field.repeated})
    if {"-h", "--help"} & set(given):
        return _help_page(parser, recipe)
    preset, values = _parse(parser, recipe, given)
    control = {field.name: values.pop(field.name) for field in CONTROL}
    if control["resume"] and control["out"]:
        raise UsageError("--resume continues in the folder that it names: remove --out")
    seeds = _seeds(control["seeds"], given)
    jobs = control["jobs"]
    if jobs < 1:
        raise UsageError(f"--jobs is the number of runs of --seeds at a time, 1 or more, got {jobs}")
    if jobs > 1 and not seeds:
        raise UsageError(f"--jobs {jobs} trains seeds side by side: name them, as in --seeds 0-4")
    modes = get_args(DisplayMode)
    if control["display"] not in modes:
        raise UsageError(f"--display must be one of {', '.join(modes)}, got {control['display']!r}")
    try:
        config = recipe.config(**values)
    except ArgumentError as error:
        decided = ""
        if preset is not None and str(error) != _error_without(preset, recipe, values):
            decided = f"; settings of the preset {preset.name} apply, --preset none leaves them out"
        raise UsageError(f"{error}{decided}") from error
    return TrainArguments(
        recipe, config, control["out"], control["resume"], control["display"], preset, seeds, like, jobs
    )


def _with_settings_of(like: str | None, given: Sequence[str]) -> list[str]:
    """Words with the config file of the run that ``--like`` names.

    Raises:
        UsageError: If another option excludes it.
        CheckpointError: If there is no such run.
    """
    if like is None:
        return list(given)
    for option in ("--config", "--resume"):
        if _value_of(option, given) is not None:
            raise UsageError(f"--like and {option} exclude each other: remove one")
    return [*given, f"--config={RunFolder.open(like).config}"]


def _error_without(preset: Preset, recipe: Algorithm, values: Mapping[str, Any]) -> str:
    """Return what is wrong with the settings without those of the preset; empty if nothing is."""
    try:
        recipe.config(**{name: value for name, value in values.items() if name not in preset.settings})
    except ArgumentError as error:
        return str(error)
    return ""


def _seeds(text: str | None, given: Sequence[str]) -> tuple[int, ...]:
    """Return the seeds of ``--seeds``.

    Raises:
        UsageError: If they are no different integers from 0 to 2147483647, or another option excludes them.
    """
    if text is None:
        return ()
    for option in ("--seed", "--resume"):
        if _value_of(option, given) is not None:
            raise UsageError(f"--seeds starts a run for each seed: remove {option}")
    wrong = UsageError(f"--seeds must be different integers from 0 to 2147483647, as in 0,1,2 or 0-4, got {text}")
    seeds: list[int] = []
    for word in text.strip("[]").split(","):
        match = re.fullmatch(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", word)
        if match is None:
            raise wrong
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= 2**31 or last - first >= _MOST_SEEDS:
            raise wrong
        seeds += range(first, last + 1)
    if not seeds or len({*seeds}) != len(seeds):
        raise wrong
    return tuple(seeds)


#: seeds of one range; more is a mistake in typing
_MOST_SEEDS = 10_000


def find_recipe(name: str) -> Algorithm:
    """Return the recipe of that name.

    Raises:
        UsageError: If there is none.
    """
    known = [component.name for component in components("recipe")]
    if name.endswith(".py"):
        return algorithm_of_file(name)
    if ":" in name:
        found = find("recipe", name)
        if not isinstance(found, Algorithm):
            raise UsageError(
                f"the recipe {name!r} is a {type(found).__name__}; name an object of rl.trainers.Algorithm"
            )
        return found
    if name not in known:
        plain = name.lower().replace("_", "-")
        close = [plain] if plain in known else get_close_matches(plain, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; to train on an environment: rl train --env {name}"
        raise UsageError(f"there is no recipe {name!r}{hint} (recipes: {', '.join(known)})")
    return load("recipe", name)


def algorithm_of_file(file: str) -> Algorithm:
    """Return the algorithm of a page, which is imported as the module of its name.

    Raises:
        UsageError: If there is no such file, its name is none of a module, or it has not one algorithm.
    """
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}: `rl new recipe {file} --like td3` writes one")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = import_named(path.stem, f"the algorithm {file}")
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UsageError(
            f"{file} has the name of the module {module.__file__}, which is imported in its place: rename it"
        )
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Algorithm) and value.config.__module__ == module.__name__
    }
    if len(found) != 1:
        listed = f"{len(found)}: name one, as in {path.stem}:{next(iter(found))}" if found else "none"
        raise UsageError(f"{file} needs one Algorithm(...) at its top level, got {listed}")
    return next(iter(found.values()))


def _recipe_of_files(given: Sequence[str]) -> str:
    """Return the recipe that ``--resume`` or ``--config`` implies; ppo without them."""
    for option in ("--resume", "--config"):
        value = _value_of(option, given)
        if value is None:
            continue
        values = RunFolder.open(value).read_config() if option == "--resume" else read_yaml(value)
        recipe = str(values.get("recipe", "ppo"))
        check_trusted({"recipe": recipe}, _trusted_modules(given), value)
        return recipe
    return "ppo"


def _trusted_modules(given: Sequence[str]) -> list[str]:
    """Return the modules of ``--trust``, as typed or collected."""
    values = [_value_of("--trust", given[i : i + 2]) for i, word in enumerate(given) if word.startswith("--trust")]
    found: list[str] = []
    for value in values:
        found += json.loads(value) if value is not None and value.startswith("[") else [value or ""]
    return found


def _value_of(option: str, given: Sequence[str]) -> str | None:
    """Return the last value of an option."""
    found = None
    for i, word in enumerate(given):
        if word.startswith(option + "="):
            found = word.split("=", 1)[1]
        if word == option and i + 1 < len(given):
            found = given[i + 1]
    return found


def _dashes_to_underscores(words: Sequence[str]) -> list[str]:
    """Both ``--total-frames`` and ``--total_frames`` are understood."""
    out: list[str] = []
    for word in words:
        option, sign, value = word.partition("=")
        if re.fullmatch(r"--[A-Za-z][\w-]*", option):
            option = "--" + option[2:].replace("-", "_")
        out.append(option + sign + value)
    return out


def _parser(recipe: Algorithm) -> ArgumentParser:
    parser = ArgumentParser(
        prog=f"rl train {recipe.reference}",
        exit_on_error=False,
        add_help=False,
        usage=f"rl train {recipe.name} [--OPTION VALUE ...]",
    )
    run, algorithm = parser.add_argument_group("run"), parser.add_argument_group(f"settings of {recipe.name}")
    common = {field.name for field in dataclasses.fields(RunConfig)}
    for field in CONTROL:
        _add(run, field)
    for field in config_fields(recipe.config):
        group = run if field.name in common else algorithm
        _add(group, field, hidden=field.name in recipe.config.absent)
    return parser


def _with_new_options(words: Sequence[str], config: type[RunConfig]) -> list[str]:
    """Words with the options of older versions and aliases by today's names."""
    known = old_names(config)
    names = {f"--{old}": f"--{new}" for old, new in known.items()}
    options = [word.partition("=")[0] for word in words]
    given = {old: known[old] for old in dict.fromkeys(option[2:] for option in options) if old in known}
    warn_old_names(config, given, option=lambda name: f"--{name.replace('_', '-')}")
    names["--logger"] = "--loggers"
    return [names.get(option, option) + word[len(option) :] for option, word in zip(options, words, strict=True)]


def _plain_words(words: Sequence[str], fields: Sequence[ConfigField]) -> list[str]:
    """Words as YAML has them: ``true`` after a switch alone, lists in brackets, ``key=value`` in braces."""
    kinds = {field.name: field.type for field in fields}
    repeated = {field.name for field in fields if field.repeated}
    out: list[str] = []
    for before, word, after in zip(["", *words], words, [*words[1:], "--"], strict=False):
        option, sign, value = word.partition("=")
        if not word.startswith("--"):
            name = before.removeprefix("--") if before.startswith("--") and "=" not in before else ""
            out.append(_plain(word, name, kinds.get(name), repeated))
        elif sign:
            out.append(f"{option}={_plain(value, option[2:], kinds.get(option[2:]), repeated)}")
        else:
            alone = kinds.get(option[2:]) in (bool, Annealing) and after.startswith("--")
            out.append(f"{word}=true" if alone else word)
    return out


#: options whose values name a component and its arguments, as in ``step-counter:max_steps=200``
_CALLS = ("wrapper", "transform", "sampler", "loggers")
_WITH_PAIRS = re.compile(r"(?P<name>.+?):(?P<pairs>[A-Za-z_]\w*=.*)", re.DOTALL)


def _plain(text: str, name: str, kind: Any, repeated: Set[str]) -> str:
    if kind is float and text in ("inf", "-inf"):
        return text.replace("inf", ".inf")
    if get_origin(kind) is Mapping:
        return _mapping(text)
    if get_origin(kind) is tuple and name not in repeated:
        if text.startswith("["):
            return text
        if get_args(kind)[0] is not str:
            return f"[{text}]"
        parts = split_commas(text)
        return json.dumps([_call(part) for part in _join_calls(parts)] if name in _CALLS else parts)
    return _call(text) if name in _CALLS else text


def _call(text: str) -> str:
    """Return ``NAME:{key: value}`` for ``NAME:key=value``."""
    match = _WITH_PAIRS.fullmatch(text)
    return f"{match['name']}:{_mapping(match['pairs'])}" if match else text


def _join_calls(parts: Sequence[str]) -> list[str]:
    """Return calls, from what commas separate: ``wandb:project=maze``, ``entity=me`` are one."""
    calls: list[str] = []
    for part in parts:
        if calls and _WITH_PAIRS.fullmatch(calls[-1]) and re.match(r"[A-Za-z_]\w*=", part):
            calls[-1] += f",{part}"
        else:
            calls.append(part)
    return calls


def _mapping(text: str) -> str:
    """Return ``{key: value, ...}`` for ``key=value,...``; anything else as it is."""
    pairs = [part.partition("=") for part in split_commas(text)]
    if text.startswith("{") or not all(sign and key.strip().isidentifier() for key, sign, _ in pairs):
        return text
    try:
        values = {key.strip(): yaml.safe_load(value) for key, _, value in pairs}
    except yaml.YAMLError:
        return text
    return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=2**31).strip()


def split_commas(text: str) -> list[str]:
    """Return what commas separate, outside of brackets and braces; without empty parts."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _collect_repeated(words: Sequence[str], repeated: set[str]) -> list[str]:
    """Each repeated option once, with the list of its values at the position of the first."""
    out: list[str] = []
    places: dict[str, int] = {}
    values: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        option, sign, value = word.partition("=")
        name = option.removeprefix("--")
        if option == name or name not in repeated:
            out.append(word)
            continue
        value = value if sign else next(rest, None)
        if value is None:
            raise UsageError(f"--{name} needs a value")
        if name not in places:
            places[name] = len(out)
            out.append("")
        values.setdefault(name, []).append(value)
    for name, place in places.items():
        out[place] = f"--{name}={json.dumps(values[name])}"
    return out


_METAVARS = {int: "N", float: "X", bool: "true|false", str: "NAME", Annealing: "true|false|cosine"}


def _add(group: Any, field: ConfigField, *, hidden: bool = False) -> None:
    names = {"metavar": _METAVARS.get(field.type, "VALUE")}
    help_text = argparse.SUPPRESS if hidden else _escape(field.doc)
    # of values of any type jsonargparse imports what a key class_path names; of a plain dict it reads none
    kind = dict if get_origin(field.type) is Mapping else field.type
    group.add_argument(f"--{field.name}", type=kind, default=field.default, help=help_text, **names)


def parse_value(field: ConfigField, text: str) -> Any:
    """Return the value that the text of an option stands for.

    Raises:
        UsageError: If it is none of the field's type.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> fields = {field.name: field for field in config_fields(PPOConfig)}
        >>> parse_value(fields["num_cells"], "[64, 64]"), parse_value(fields["epochs"], "1e1")
        ((64, 64), 10)
    """
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    _add(parser, field)
    words = _plain_words([f"--{field.name}={text}"], [field])
    try:
        return getattr(
            parser.parse_args(_integer_words(words, {field.name} if field.type is int else set())), field.name
        )
    except ParserError as error:
        raise UsageError(_explain(_one_line(str(error)), "rl tune")) from error


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _help_page(parser: ArgumentParser, recipe: Algorithm) -> str:
    title = inspect.cleandoc(recipe.config.__doc__ or "").partition("\nArgs:")[0].strip()
    page = re.sub(r"--\w*_\w*", lambda match: match[0].replace("_", "-"), parser.format_help())
    names = ", ".join(recipe.load_presets())
    presets = f"\nPresets, which --env finds (rl presets {recipe.name} shows them): {names}\n" if names else ""
    return f"{page}\n{title}\n{presets}"


def _parse(parser: ArgumentParser, recipe: Algorithm, given: Sequence[str]) -> tuple[Preset | None, dict[str, Any]]:
    """Return the preset, and values of all options: from the command line, files, the preset, or the defaults."""
    options = [action.dest for action in parser._actions]  # noqa: SLF001 - argparse has no other list
    for word in given:
        option = word.partition("=")[0]
        if option.startswith("--") and option[2:] not in options:
            raise UsageError(unknown("option", option[2:], options, dashed=True))
    try:
        integers = {action.dest for action in parser._actions if action.metavar == _METAVARS[int]}  # noqa: SLF001
        files = {
            name: _whole(v) if name in integers else v
            for name, v in _file_values(parser, recipe.config, given, options).items()
        }
        words = _integer_words(given, integers)
        preset = _preset(recipe, words, files)
        below = {**({} if preset is None else preset.settings), **files}
        namespace = parser.parse_object(below) if below else parser.get_defaults()
        return preset, dict(vars(parser.parse_args(words, namespace=namespace)))
    except ParserError as error:
        raise UsageError(_explain(_one_line(str(error)), parser.prog)) from error
    except (SystemExit, RecursionError) as error:
        raise UsageError(f"cannot understand: {' '.join(given)[:200]}") from error


def _preset(recipe: Algorithm, given: Sequence[str], files: Mapping[str, Any]) -> Preset | None:
    """Return the preset that applies, less the settings that an option or a file sets; None if nothing of it is left.

    Raises:
        UsageError: If there is no preset of that name.
    """
    name = _value_of("--preset", given) or "auto"
    by_file = any(_value_of(option, given) is not None for option in ("--config", "--resume"))
    if name == "none" or (name == "auto" and by_file):
        return None
    if _value_of("--resume", given) is not None:
        raise UsageError("--resume continues with the settings of the run: remove --preset")
    typed = {word.partition("=")[0].removeprefix("--") for word in given if word.startswith("--")}
    env = _value_of("--env", given) or files.get("env", recipe.config.env)
    preset = find_preset(recipe, name, env, trust=_trusted_modules(given), besides={*typed, *files})
    if preset is None:
        return None
    left = {key: value for key, value in preset.settings.items() if key not in typed and key not in files}
    return replace(preset, settings=left) if left else None


def find_preset(
    recipe: Algorithm, name: str, env: Any, *, trust: str | Sequence[str] = (), besides: Collection[str] = ()
) -> Preset | None:
    """Return the preset of a name or file, ``auto`` for that of an environment; None without one, or for ``none``.

    Args:
        recipe: The recipe.
        name: Name, or a file that ends in ``.yaml`` or ``.yml``.
        env: Environment.
        trust: Modules that the file may name.
        besides: Settings that do not count, as something else sets them.

    Raises:
        UsageError: If there is no preset of that name, or the file cannot be read.
        ArgumentError: If the file has no such preset.
        RLError: If it names a module that is not trusted.
    """
    if name == "none":
        return None
    if name.endswith((".yaml", ".yml")):
        found = preset_in(_load_yaml(name, "preset"), name, recipe.name, str(env))
        settings = with_new_names(recipe.config, found.settings)
        known = [field.name for field in config_fields(recipe.config) if field.name not in ("env", "seed")]
        for setting in settings:
            if setting not in known:
                raise UsageError(f"{name}: {unknown('setting', setting, known)}")
        check_trusted({key: value for key, value in settings.items() if key not in besides}, trust, name)
        return replace(found, settings=settings)
    presets = recipe.load_presets()
    if name == "auto":
        return preset_for(presets, env) if isinstance(env, str) else None
    if name not in presets:
        raise UsageError(
            unknown(f"preset of {recipe.name} named", name, list(presets), more=f"rl presets {recipe.name}")
        )
    return presets[name]


def _file_values(
    parser: ArgumentParser, config: type[RunConfig], given: Sequence[str], options: Sequence[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option, path in (("--resume", _value_of("--resume", given)), ("--config", _value_of("--config", given))):
        if path is None:
            continue
        part = RunFolder.open(path).read_config() if option == "--resume" else read_yaml(path)
        recipe = part.pop("recipe", None)
        mine = parser.prog.rpartition(" ")[2]
        if recipe not in (None, mine):
            raise UsageError(f"{path} is about the recipe {recipe!r}: type rl train {recipe} {option} {path}")
        part = with_new_names(config, part)
        for name in part:
            if name in _COMMAND_LINE_ONLY:
                raise UsageError(f"{path} sets {name!r}, which a config file cannot: type --{name}")
            if name not in options:
                raise UsageError(f"{path}: {unknown('setting', name, options)}")
        typed = {word.partition("=")[0].removeprefix("--") for word in given if word.startswith("--")}
        mine_alone = {name: value for name, value in part.items() if name not in typed}
        check_trusted({"recipe": recipe, **mine_alone}, _trusted_modules(given), path)
        values |= part
    return values


def _load_yaml(path: str, what: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be read: {error.strerror}; name a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"the {what} {path} is not YAML: {_one_line(str(error))}") from error


def read_yaml(path: str) -> dict[str, Any]:
    values = _load_yaml(path, "config file")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"the config file {path} holds {type(values).__name__}; write lines like 'gamma: 0.98'")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust`` to a command that reads a run folder or a file."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that the run or file may name, as in my_env for env: my_env:Maze; may be repeated. Otherwise"
        " only installed components are imported",
    )


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add what all commands have that play a run's policy."""
    parser.add_argument("--device", metavar="D", help="where to run the policy, as cpu (default: as it was trained)")
    parser.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take the deterministic action, or sample it as in training (default: deterministic)",
    )
    parser.add_argument("--stochastic", action="store_false", dest="deterministic", help="same as --no-deterministic")
    add_trust(parser)


def unknown(
    what: str, name: str, options: Sequence[str], *, dashed: bool = False, more: str = "rl train RECIPE --help"
) -> str:
    """Return the message about an unknown option or setting, with the nearest one and where all are listed."""
    close = get_close_matches(name, options, n=1)
    shown, near = (f"--{name}", f"--{close[0]}") if dashed and close else (name, close[0] if close else "")
    if dashed:
        shown, near = f"--{name}".replace("_", "-"), near.replace("_", "-")
    hint = f"; did you mean {near}?" if near else "."
    hint = _elsewhere(name, options, dashed=dashed) or hint
    return f"there is no {what} {shown}{hint} All of them: {more}"


#: options of other projects, and what has the same purpose here; the first that a recipe has is named
_ELSEWHERE = {
    "algo": (),
    "batch_size": ("minibatch_size",),
    "buffer": ("buffer_size",),
    "clip_coef": ("clip_epsilon",),
    "clip_range": ("clip_epsilon",),
    "ent_coef": ("entropy_coeff", "alpha_init"),
    "env_id": ("env",),
    "eval_freq": ("eval_every",),
    "exploration_final_eps": ("eps_end",),
    "exploration_fraction": ("annealing_num_steps",),
    "gradient_steps": ("utd_ratio",),
    "gym_id": ("env",),
    "log_interval": ("log_every",),
    "logdir": ("out",),
    "lr": ("learning_rate",),
    "n_envs": ("num_envs",),
    "n_epochs": ("epochs",),
    "n_eval_episodes": ("eval_episodes",),
    "n_steps": ("frames_per_batch",),
    "net_arch": ("num_cells",),
    "num_steps": ("frames_per_batch",),
    "polyak": ("tau",),
    "save_freq": ("checkpoint_every",),
    "target_update_interval": ("target_every",),
    "total_steps": ("total_frames",),
    "total_timesteps": ("total_frames",),
    "train_freq": ("frames_per_batch",),
    "update_epochs": ("epochs",),
    "verbose": ("display",),
    "vf_coef": ("critic_coeff",),
}


def _elsewhere(name: str, options: Sequence[str], *, dashed: bool) -> str:
    """Return what an option of another project is called here; empty if it is none."""
    plain = name.replace("-", "_").lower()
    if plain == "algo":
        return "; the recipe is the first word, as in rl train ppo."
    found = next((one for one in _ELSEWHERE.get(plain, ()) if one in options), None)
    if found is None:
        return ""
    return f"; here it is {'--' + found.replace('_', '-') if dashed else found}."


def _integer_words(words: Sequence[str], integers: set[str]) -> list[str]:
    """`words`, with 1e6 written out where an integer is expected."""
    out: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        option, sign, value = word.partition("=")
        if sign and option.removeprefix("--") in integers:
            out.append(f"{option}={_whole(value)}")
        else:
            out.append(str(_whole(word)) if before.removeprefix("--") in integers else word)
    return out


def _whole(value: Any) -> Any:
    """1e6 as 1000000; anything else as it is."""
    if isinstance(value, float) or (isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", value)):
        number = float(value)
        return int(number) if number.is_integer() else value
    return value


_WANTED = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list, like 64,64 or csv",
    "dict": "arguments, like frame_skip=4 or '{frame_skip: 4}', in quotes and with a space after each colon",
}


def _explain(message: str, prog: str) -> str:
    """Return a message of jsonargparse, in terms of the command line."""
    wrong = re.search(r"Parser key \"(\w+)\": Expected an? <class '(?:[\w.]+\.)?(\w+)'>. Got value: (.*)", message)
    if wrong is None:  # of a setting that may also be None
        kinds = r"Union subtypes\s+Subtypes: \[<class '(\w+)'>, <class 'NoneType'>\]"
        wrong = re.search(rf"Parser key \"(\w+)\": Does not .* {kinds}.*Given value: (.*)", message, re.DOTALL)
    if wrong is not None and wrong[2] in _WANTED:
        return f"--{wrong[1].replace('_', '-')} must be {_WANTED[wrong[2]]}, got {wrong[3]}"
    if message.startswith("unrecognized arguments: "):
        rest = message.partition(": ")[2]
        return (
            f"cannot understand {rest!r}; the recipe comes first, each option has one value: {prog} --OPTION VALUE ..."
        )
    return message


def _one_line(text: str) -> str:
    return " ".join(text.split())
