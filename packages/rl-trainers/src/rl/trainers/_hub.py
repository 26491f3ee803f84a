"""``rl hub``: runs as folders to share, on the Hugging Face Hub or in a folder. Nothing of them is run or unpickled."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import yaml

from rl.core.errors import ArgumentError, CheckpointError, MissingExtraError, RLError
from rl.trainers._agents import agents
from rl.trainers._arguments import OneLineParser
from rl.trainers._named import modules_of, trust_options
from rl.trainers._runs import as_json
from rl.trainers._runs_command import print_table
from rl.trainers._storage import RunFolder, only_run, write_atomic
from rl.trainers.checkpoint import load_checkpoint, save_checkpoint
from rl.trainers.loggers import read_metrics

#: what is shared of a run; with these names the folder is a run folder again. Nothing else is sent, or taken
CARD, VIDEO = "README.md", "replay.mp4"
WEIGHTS = "checkpoints/best.safetensors"
FILES = (CARD, "config.yaml", WEIGHTS, "summary.json", "metrics.csv", "learning_curve.png", VIDEO)

#: parts of a checkpoint that a policy is played with
PARTS = ("policy", "frames", "eval_return_mean", "statistics")

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class Hub(Protocol):
    """Where shared runs are."""

    def upload(self, folder: Path) -> str:
        """Send the files of a folder; returns where they are, for people."""
        ...

    def download(self, folder: Path) -> None:
        """Put the shared files into a folder."""
        ...


class LocalHub:
    """A shared run in a folder of this machine.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def upload(self, folder: Path) -> str:
        """Copy the files; others that an earlier push has left are removed.

        Raises:
            RLError: If the folder has something else, or cannot be written.
        """
        if self.path.exists() and not (self.path.is_dir() and (_is_shared(self.path) or not any(self.path.iterdir()))):
            raise RLError(f"{self.path} exists and is no shared run; name a new folder")
        try:
            for name in FILES:
                source, to = folder / name, self.path / name
                if source.is_file():
                    write_atomic(to, lambda path, source=source: shutil.copyfile(source, path))
                else:
                    to.unlink(missing_ok=True)
        except OSError as error:
            raise RLError(f"{self.path} cannot be written: {error}; free some room, or name another folder") from error
        return str(self.path)

    def download(self, folder: Path) -> None:
        """Copy the files; links are not followed.

        Raises:
            CheckpointError: If there is no run in the folder, or a file is a link.
            RLError: If a file cannot be read or written.
        """
        if not (self.path / "config.yaml").is_file():
            raise CheckpointError(f"{self.path} is no shared run: it has no config.yaml; name what `rl hub push` wrote")
        for name in FILES:
            source = self.path / name
            if source.is_symlink() or (self.path / name.partition("/")[0]).is_symlink():
                raise CheckpointError(f"{source} is a link, which is not followed; put the file in its place")
            if source.is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copyfile(source, folder / name)
                except OSError as error:
                    raise RLError(f"{source} cannot be copied: {error}; free some room") from error


class HuggingFaceHub:
    """A shared run on the Hugging Face Hub; needs the extra ``hub``.

    Args:
        repository: ``OWNER/NAME``.
        private: Whether a new repository is private.
        revision: Branch, tag or commit to take; the newest if None.

    Raises:
        MissingExtraError: If huggingface_hub is not installed.
    """

    def __init__(self, repository: str, *, private: bool = False, revision: str | None = None) -> None:
        try:
            import huggingface_hub  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError(
                f"the Hub needs {error.name}, which is not installed: pip install 'rl-trainers[hub]'"
            ) from error
        self._library: Any = huggingface_hub
        self.repository, self.private, self.revision = repository, private, revision

    def upload(self, folder: Path) -> str:
        """Create the repository if there is none, and commit the files.

        Raises:
            RLError: If the Hub does not take them.
        """
        try:
            api = self._library.HfApi()
            url = api.create_repo(self.repository, private=self.private, exist_ok=True)
            api.upload_folder(
                repo_id=self.repository,
                folder_path=folder,
                commit_message="Push a run with rl hub",
                delete_patterns=list(FILES),  # what this push does not have
            )
        except Exception as error:  # of a network
            raise RLError(
                f"the Hub did not take {self.repository}: {_said(error)}. `hf auth login` signs in"
            ) from error
        return str(url)

    def download(self, folder: Path) -> None:
        """Download the files.

        Raises:
            RLError: If the Hub does not give them.
            CheckpointError: If there is no run in the repository.
        """
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".hub-") as taken:
            try:
                self._library.snapshot_download(
                    self.repository, revision=self.revision, allow_patterns=list(FILES), local_dir=taken
                )
            except Exception as error:  # of a network
                raise RLError(
                    f"the Hub did not give {self.repository}: {_said(error)}. `hf auth login` signs in to a private one"
                ) from error
            if not (Path(taken) / "config.yaml").is_file():
                raise CheckpointError(f"{self.repository} is no shared run: it has no config.yaml")
            LocalHub(Path(taken)).download(folder)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


def _is_shared(path: Path) -> bool:
    return all((path / name).is_file() for name in (CARD, "config.yaml", WEIGHTS))


def hub_of(name: str, **options: Any) -> Hub:
    """Return where a name leads: ``./folder``, ``/folder`` or ``~/folder``, or ``OWNER/NAME`` of the Hugging Face Hub.

    Raises:
        ArgumentError: If it is neither, or both.
        MissingExtraError: If a library is not installed.
    """
    path = Path(name).expanduser()
    if name.startswith((".", "~")) or path.is_absolute():
        if options:
            raise ArgumentError(
                f"--{next(iter(options))} is for the Hugging Face Hub, and {name} is a folder: leave it out"
            )
        return LocalHub(path)
    if path.exists():
        raise ArgumentError(f"{name} exists here, and is no name of the Hub's: write ./{name} for what is here")
    if not _REPOSITORY.fullmatch(name):
        raise ArgumentError(
            f"{name!r} names no place: write ./FOLDER, or OWNER/NAME for the Hugging Face Hub. `rl hub list` has the"
            " agents to pull without a network"
        )
    return HuggingFaceHub(name, **options)


def source_of(name: str, **options: Any) -> Hub:
    """Return what a name to pull from leads to: an agent that comes with this package, or what `hub_of` returns.

    Raises:
        ArgumentError: If it is none of them, or has options that are not for it.
        MissingExtraError: If a library is not installed.
    """
    own = agents().get(name)
    return hub_of(name if own is None else str(own), **options)


def push_run(run: str | Path, hub: Hub, name: str) -> str:
    """Share the best policy of a run, with its settings, results and a card.

    Args:
        run: The run folder.
        hub: Where it goes.
        name: Name of the shared run, for its card.

    Returns:
        Where it is, for people.

    Raises:
        CheckpointError: If there is no run in the folder, or it has no policy of an environment.
        RLError: If it cannot be sent.
    """
    folder = only_run(run, "one is shared")
    with tempfile.TemporaryDirectory(prefix="rl-hub-") as temporary:
        staged = RunFolder(temporary)
        weights = folder.best if folder.best.is_file() else folder.last  # before the first evaluation
        save_checkpoint(staged.best, _parts(load_checkpoint(weights), folder.path))
        for one in ("config.yaml", "summary.json", "metrics.csv", "learning_curve.png"):
            if (folder.path / one).is_file():
                shutil.copyfile(folder.path / one, staged.path / one)
        video = _video(folder.path)
        if video is not None:
            shutil.copyfile(video, staged.path / VIDEO)
        (staged.path / CARD).write_text(model_card(staged, name), encoding="utf-8")
        return hub.upload(staged.path)


def _parts(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what a policy is played with, of a best or a last checkpoint.

    Raises:
        CheckpointError: If there is no policy in it.
    """
    source = state if "frames" in state else state.get("run", {})
    found = {"policy": state.get("policy"), **{name: source[name] for name in PARTS if name in source}}
    if not isinstance(found["policy"], Mapping) or not isinstance(found.get("frames"), int):
        raise CheckpointError(f"{path} has no policy of an environment, and nothing else is shared")
    return found


def _video(path: Path) -> Path | None:
    """Return the newest video of a run; None if there is none."""
    found = [*(path / "videos").rglob("*.mp4")] or [path / VIDEO]
    there = [one for one in found if one.is_file()]
    return max(there, key=lambda one: one.stat().st_mtime, default=None)


def pull_run(hub: Hub, out: str | Path) -> RunFolder:
    """Put a shared run into a folder, all of it or nothing; none of it is run, imported or unpickled.

    Args:
        hub: Where it is.
        out: The folder, which must not exist.

    Raises:
        ArgumentError: If the folder exists.
        CheckpointError: If there is no run, or it is damaged.
        RLError: If it cannot be received or written.
    """
    out = Path(out)
    if os.path.lexists(out):
        raise ArgumentError(f"{out} exists already and is not overwritten; name another folder with --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-")
    except OSError as error:
        raise RLError(f"{out} cannot be written: {error.strerror}; name another folder with --out") from error
    with temporary as name:
        staged = RunFolder(Path(name) / "run")
        staged.path.mkdir()
        hub.download(staged.path)
        try:
            staged.read_config()
            staged.read_summary()
            _parts(load_checkpoint(staged.best), staged.path)
            if staged.metrics.is_file():
                read_metrics(staged.metrics)
        except CheckpointError as error:
            said = str(error).replace(f"{staged.path}{os.sep}", "the shared ").partition("; ")[0]
            raise CheckpointError(f"{said}; it has to be pushed again") from error
        staged.path.rename(out)
    return RunFolder(out)


# ---- the card


def model_card(folder: RunFolder, name: str) -> str:
    """Return the card of a shared run: YAML with its result for leaderboards, and a text.

    Args:
        folder: The run folder.
        name: Name of the shared run.

    Raises:
        CheckpointError: If the run is damaged.
    """
    settings, summary = folder.read_config(), folder.read_summary() or {}
    recipe, env = _plain(settings["recipe"]), _plain(settings.get("env"))
    local = PurePosixPath(name.replace("\\", "/")).name
    options = trust_options(settings)
    head = {
        "library_name": "rl-trainers",
        "tags": [env, recipe, "deep-reinforcement-learning", "reinforcement-learning"],
        "model-index": [{"name": recipe, "results": _results(env, summary)}],
    }
    parts = [f"# {recipe} on {env}"]
    frames = f" for {summary['frames']:,} steps" if isinstance(summary.get("frames"), int) else ""
    parts.append(
        f"A policy that `rl train {recipe} --env {env}` has trained{frames}, with seed {settings.get('seed')}."
    )
    if _results(env, summary):
        episodes = settings.get("final_eval_episodes")
        parts.append(f"Mean return over {episodes} fresh episodes: **{_mean_and_deviation(summary)}**")
    if (folder.path / "learning_curve.png").is_file():
        parts.append("![Learning curve](learning_curve.png)")
    commands = [
        "pip install 'rl-trainers[hub,video]'",
        f"rl hub pull {name} --out {local}",
        f"rl play {local}{options}",
        f"rl eval {local}{options}",
    ]
    parts += ["## Use it", "\n".join(["```console", *(f"$ {one}" for one in commands), "```"])]
    trust = f", trust={modules_of(settings)!r}" if options else ""
    lines = [
        "from rl.trainers import load_policy",
        "",
        f'policy = load_policy("{local}"{trust})',
        "action = policy.predict(observation)  # NumPy arrays",
    ]
    parts.append("\n".join(["```python", *lines, "```"]))
    if options:
        modules = ", ".join(f"`{_plain(one)}`" for one in modules_of(settings))
        parts.append(f"The settings name code of {modules}, which is not included and has to be installed.")
    parts += ["## Train it again", f"```console\n$ rl train {recipe} --config {local}/config.yaml{options}\n```"]
    versions = summary.get("versions")
    if isinstance(versions, Mapping):
        parts.append("Versions: " + ", ".join(f"{_plain(one)} {_plain(two)}" for one, two in versions.items()) + ".")
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + "\n\n".join(parts) + "\n"


def _results(env: str, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the result as leaderboards of the Hub read it; none of a run that is not complete."""
    if not isinstance(summary.get("best/return_mean"), int | float):
        return []
    metric = {"type": "mean_reward", "name": "mean_reward", "value": _mean_and_deviation(summary), "verified": False}
    return [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [metric],
        }
    ]


def _mean_and_deviation(summary: Mapping[str, Any]) -> str:
    deviation = summary.get("best/return_std")
    return f"{summary['best/return_mean']:.2f} +/- {deviation if isinstance(deviation, int | float) else 0:.2f}"


def _plain(value: Any) -> str:
    """Return a value as a line without control characters and backquotes, which end code in Markdown."""
    return "".join(letter for letter in " ".join(str(value).split()) if letter.isprintable() and letter != "`")


# ---- the command


def run_hub(argv: Sequence[str]) -> int:
    """Run ``rl hub ARGUMENTS``.

    Raises:
        UsageError: If the arguments cannot be understood.
        RLError: If there is no such run, or it cannot be sent or received.
    """
    parser = OneLineParser(
        "rl hub",
        description="Share runs: on the Hugging Face Hub as OWNER/NAME, or in a folder as ./FOLDER. Agents of our"
        " results come with this package.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=OneLineParser)
    about = {
        "push": "share the best policy of a run",
        "pull": "take a shared run",
        "card": "print the card of a run",
        "list": "the agents that come with this package",
    }
    parsers = {name: commands.add_parser(name, help=text, description=text) for name, text in about.items()}
    parsers["push"].add_argument("run", metavar="RUN", help="the run folder")
    parsers["push"].add_argument("to", metavar="TO", help="OWNER/NAME, or ./FOLDER")
    parsers["push"].add_argument("--private", action="store_true", help="a new repository of the Hub is private")
    parsers["pull"].add_argument("source", metavar="FROM", help="OWNER/NAME, ./FOLDER, or a name of rl hub list")
    parsers["pull"].add_argument("--out", metavar="DIR", help="a new run folder (default: runs/NAME)")
    parsers["pull"].add_argument("--revision", metavar="R", help="branch, tag or commit of the Hub (default: newest)")
    parsers["card"].add_argument("run", metavar="RUN", help="the run folder")
    parsers["list"].add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(list(argv))
    {"push": _push, "pull": _pull, "card": _card, "list": _list}[options.command](options)
    return 0


def _push(options: argparse.Namespace) -> None:
    hub = hub_of(options.to, **({"private": True} if options.private else {}))
    sys.stdout.write(f"{options.run} is shared: {push_run(options.run, hub, options.to)}\n")


def _pull(options: argparse.Namespace) -> None:
    hub = source_of(options.source, **({"revision": options.revision} if options.revision else {}))
    name = PurePosixPath(options.source.replace("\\", "/")).name
    if options.out is None and name in ("", ".", "..", "~"):
        raise ArgumentError(f"{options.source} has no name for a folder: name one with --out")
    folder = pull_run(hub, options.out or Path("runs") / name)
    settings, summary = folder.read_config(), folder.read_summary() or {}
    result = f", mean return {_mean_and_deviation(summary)}" if _results("", summary) else ""
    sys.stdout.write(f"{folder.path}: {_plain(settings['recipe'])} on {_plain(settings.get('env'))}{result}\n")
    more = trust_options(settings)
    if more:
        modules = ", ".join(map(_plain, modules_of(settings)))
        sys.stdout.write(f"its settings name code of {modules}, which runs only if you add{more}\n")
    sys.stdout.write(f"watch it with: rl play {folder.path}{more}\n")


def _card(options: argparse.Namespace) -> None:
    folder = only_run(options.run, "a card is of one")
    sys.stdout.write(model_card(folder, f"OWNER/{folder.path.resolve().name}"))


def _list(options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for name, path in agents().items():
        summary = RunFolder(path).read_summary() or {}
        kept = {one: summary[one] for one in ("recipe", "env", "frames")}
        rows.append({"agent": name, **kept, "return": summary["best/return_mean"]})
    if options.json:
        sys.stdout.write(as_json(rows))
    else:
        shown = [{**one, "frames": f"{one['frames']:,}", "return": f"{one['return']:.1f}"} for one in rows]
        print_table(shown)
        sys.stdout.write("take one with: rl hub pull AGENT\n")
