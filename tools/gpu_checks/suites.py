"""Runs of pytest as checks: one line for each group of tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gpu_checks.harness import Check, Context, Figures, Skipped

ROOT = Path(__file__).resolve().parents[2]
START = time.monotonic()
MOST = 40
"""Failures whose text is in the report."""


@dataclass(frozen=True)
class Suite:
    """A run of pytest.

    Args:
        options: Its options.
        groups: Files and folders below ``packages``, by the name of their check.
    """

    options: list[str]
    groups: dict[str, list[str]]


def suite_checks(context: Context, suite: Suite) -> list[Check]:
    """One check for each group; the first of them runs the tests of all groups."""
    run = cache(lambda: _run(context, suite))
    return [
        Check(f"tests of {name}", lambda name=name: _judge(run(), suite.groups[name]), seconds=context.seconds)
        for name in suite.groups
    ]


def _folder(path: str) -> str:
    return os.path.relpath(ROOT / "packages" / path, ROOT)


def _run(context: Context, suite: Suite) -> list[dict[str, str]]:
    """Outcomes of all tests; those that were not reached in time are absent, and the last entry says so."""
    seconds = context.seconds - (time.monotonic() - START) - 5  # the report is written before the section is ended
    paths = [_folder(path) for group in suite.groups.values() for path in group]
    # By file: the blocks of a page share their names.
    parallel = ["-n", str(context.jobs), "--dist", "loadfile"] if context.jobs > 1 and find_spec("xdist") else []
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as outcomes:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gpu_checks.outcomes"]
        # Warnings are those of the torch that is there, which need not be the one that the tests were written with.
        command += ["--tb=short", "-W", "default", *parallel, *suite.options, *paths]
        places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "GPU_CHECKS_OUTCOMES": outcomes.name, "PYTHONPATH": os.pathsep.join(places)}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                said, _ = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                said, _ = child.communicate()
        found = [json.loads(line) for line in outcomes]
    late = child.returncode == -signal.SIGKILL
    if not found or (not late and child.returncode not in {0, 1, 5}):
        raise AssertionError(f"pytest ended with status {child.returncode}\n{said[-6000:]}")
    return [*found, {"test": "", "outcome": "late" if late else "complete", "text": ""}]


def _judge(outcomes: list[dict[str, str]], paths: list[str]) -> Figures:
    """Count the outcomes of a group.

    Raises:
        AssertionError: With the first failures, if there are any.
    """
    folders = tuple(_folder(path) for path in paths)
    own = [one for one in outcomes if one["test"].startswith(folders)]
    failed = [one for one in own if one["outcome"] == "failed"]
    counts = Counter(one["outcome"] for one in own)
    if failed:
        texts = "\n\n".join(f"{one['test']}\n{one['text'][-1500:]}" for one in failed[:MOST])
        names = "\n".join(one["test"] for one in failed)
        raise AssertionError(f"{texts}\n\n{names}\n{len(failed)} of {len(own)} tests failed")
    late = outcomes[-1]["outcome"] == "late"
    if not counts["passed"]:
        raise Skipped("no time was left for them" if late else f"none of {len(own)} tests ran")
    ended: Figures = {"ended": "early, for want of time"} if late else {}
    return {"passed": counts["passed"], "skipped": counts["skipped"], **ended}
