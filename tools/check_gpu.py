#!/usr/bin/env python3
"""Check on a machine with a CUDA device that everything that claims to run there does: `./x gpu`.

Needs Python 3.11, torch with CUDA and pytest, and the packages of this repository: installed, or as wheels with
`pip install --no-index --no-deps dist/*.whl`. It uses no network. It prints a line for each check, writes `report.json`
and `report.md` after each, and exits with 1 if one failed. A goal of a benchmark that is missed is reported and fails
nothing. Without a device `--dry` runs what a CPU can, with the smallest sizes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
SECTIONS = {"environment": 40, "tests": 150, "kernels": 130, "recipes": 80, "benchmarks": 80}
"""Sections in their order, and their shares of the time."""
MARK = "@check "
"""What begins a line that a section sends to the runner."""


@dataclass
class Result:
    """Outcome of a check.

    Args:
        section: Its section.
        name: Its name.
        status: ``ok``, ``missed`` (a goal), ``failed``, ``skipped``, or ``not run`` for want of time.
        seconds: How long it took.
        figures: What it measured.
        goals: Goals, and whether each is met.
        text: Why it failed or was skipped.
    """

    section: str
    name: str
    status: str
    seconds: float = 0.0
    figures: dict[str, float | str] = field(default_factory=dict)
    goals: dict[str, bool] = field(default_factory=dict)
    text: str = ""

    def line(self) -> str:
        """One line to print."""
        words = [f"{self.status:8} {self.section}: {self.name} ({self.seconds:.1f} s)"]
        words += [f"{name} {shown(value)}" for name, value in self.figures.items()]
        words += [f"goal {goal} {'met' if met else 'MISSED'}" for goal, met in self.goals.items()]
        return "; ".join(words) + (f": {self.text.strip().splitlines()[-1][:300]}" if self.text.strip() else "")


def shown(value: float | str) -> str:
    """Return a figure with about three digits."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# ---- a section, in a process of its own


def run_section(name: str, done: list[str], *, dry: bool, jobs: int, budget: float) -> None:  # noqa: C901
    """Run the checks of a section but those that are done, and print what comes of each."""
    import torch
    from gpu_checks.harness import Context, Skipped

    device = torch.device("cpu" if dry else "cuda")
    context = Context(device, dry, jobs, budget)
    for check in importlib.import_module(f"gpu_checks.{name}").checks(context):
        if check.name in done:
            continue
        send({"begins": check.name, "seconds": check.seconds})
        start = time.perf_counter()
        result = Result(name, check.name, "ok")
        try:
            result.figures = check.run() or {}
            if device.type == "cuda":
                torch.cuda.synchronize()
        except Skipped as reason:
            result.status, result.text = "skipped", str(reason)
        except Exception:  # noqa: BLE001  it is what the report is for
            result.status, result.text = "failed", traceback.format_exc()
        if not dry:
            for goal in check.goals:
                value = result.figures.get(goal.figure)
                if isinstance(value, float | int):
                    result.goals[str(goal)] = goal.is_met(value)
            if result.status == "ok" and not all(result.goals.values()):
                result.status = "missed"
        result.seconds = time.perf_counter() - start
        send({"result": asdict(result)})
        if result.status == "failed" and "CUDA error" in result.text:
            sys.exit(3)  # a process cannot go on after such an error; the runner starts another one


def send(message: dict[str, Any]) -> None:
    """Print a line for the runner."""
    print(MARK + json.dumps(message), flush=True)


# ---- the runner


class Report:
    """Results so far, written after each of them.

    Args:
        folder: Folder of `report.json` and `report.md`.
        about: What was checked, where and when.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.results: list[Result] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, result: Result) -> None:
        """Print a result, and write the report with it."""
        self.results.append(result)
        print(result.line(), flush=True)
        self.write()

    def write(self) -> None:
        """Write both files; a reader never sees half of one."""
        for name, text in (("report.json", self._json()), ("report.md", self._markdown())):
            written = self.folder / f".{name}"
            written.write_text(text)
            written.replace(self.folder / name)

    def counts(self) -> dict[str, int]:
        """Return the number of results by status."""
        return {
            status: sum(r.status == status for r in self.results)
            for status in ("ok", "missed", "failed", "skipped", "not run")
        }

    def _json(self) -> str:
        return json.dumps({"about": self.about, "results": [asdict(r) for r in self.results]}, indent=1)

    def _markdown(self) -> str:
        lines = ["# Report of tools/check_gpu.py", ""]
        lines += [f"- {name}: {value}" for name, value in self.about.items()]
        lines += ["- " + ", ".join(f"{count} {status}" for status, count in self.counts().items()), ""]
        for section in dict.fromkeys(r.section for r in self.results):
            lines += [f"## {section}", "", "| check | outcome | s | figures | goals |", "|---|---|---|---|---|"]
            for result in (r for r in self.results if r.section == section):
                figures = "; ".join(f"{name} {shown(value)}" for name, value in result.figures.items())
                goals = "; ".join(f"{goal}: {'met' if met else 'missed'}" for goal, met in result.goals.items())
                cells = result.name, result.status, f"{result.seconds:.1f}", figures, goals
                lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
            lines.append("")
        for result in (r for r in self.results if r.text):
            title = f"### {result.status}: {result.section}, {result.name}"
            lines += [title, "", "```", result.text.strip(), "```", ""]
        return "\n".join(lines)


def supervise(name: str, report: Report, seconds: float, *, dry: bool, jobs: int) -> None:
    """Run a section in other processes: one more after each check that hangs or ends its process."""
    done: list[str] = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, __file__, "--child", name, "--jobs", str(jobs), "--budget", str(left)]
        command += ["--dry"] * dry + [word for one in done for word in ("--skip", one)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as child:
            running, tail = follow(child, name, done, report, end)
        late = time.monotonic() >= end
        if running is None and child.returncode == 0:
            return
        if running is not None:
            done.append(running)
            status = f"its process ended or hung (status {child.returncode})"
            said = "the time of the section is over" if late else status
            report.add(Result(name, running, "not run" if late else "failed", text="\n".join([*tail[-40:], said])))
        elif child.returncode != 3 and not late:
            report.add(Result(name, "the section itself", "failed", text="\n".join(tail[-40:])))
            return
    report.add(Result(name, "the checks after these", "not run", text="the time of the section is over"))


def follow(
    child: subprocess.Popen[str], section: str, done: list[str], report: Report, end: float
) -> tuple[str | None, list[str]]:
    """Take the messages of a process until it ends, or its check or section is out of time.

    Returns:
        The check that had begun and not ended, and the last lines that were printed besides.
    """
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    running, limit, tail = None, end, [f"section {section}"]
    while True:
        try:
            line = lines.get(timeout=max(0.0, min(limit, end) - time.monotonic()))
        except queue.Empty:
            stop(child)
            return running, tail
        if line is None:
            child.wait()
            return running, tail
        if not line.startswith(MARK):
            tail = [*tail[-200:], line.rstrip()]
            continue
        message = json.loads(line[len(MARK) :])
        if "begins" in message:
            running, limit = message["begins"], time.monotonic() + message["seconds"]
        else:
            result = Result(**message["result"])
            done.append(result.name)
            report.add(result)
            running, limit = None, end


def stop(child: subprocess.Popen[str]) -> None:
    """End a process and all that it started."""
    import signal

    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.kill()
    child.wait()


def about(*, dry: bool) -> dict[str, Any]:
    """Return the machine, for the head of the report."""
    import torch

    found = {"time": time.strftime("%Y-%m-%d %H:%M"), "torch": torch.__version__}
    if not dry:
        found["device"] = torch.cuda.get_device_name()
    return {**found, "mode": "dry, on the CPU" if dry else "on the device"}


def main() -> int:
    """Run the sections; 1 if a check failed, 2 if there is no device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="this section alone; may be repeated")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all sections (default: 480)")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report (gpu-report)")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes of tests at once")
    parser.add_argument("--dry", action="store_true", help="run on the CPU what a CPU can")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--skip", action="append", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_section(given.child, given.skip, dry=given.dry, jobs=given.jobs, budget=given.budget)
        return 0
    import torch

    if not given.dry and not torch.cuda.is_available():
        print("check_gpu: torch sees no CUDA device (torch.cuda.is_available() is False); --dry runs what a CPU can")
        return 2
    report = Report(given.out, about(dry=given.dry))
    names = given.section or list(SECTIONS)
    start, shares = time.monotonic(), sum(SECTIONS[name] for name in names)
    for name in names:  # what a section leaves is for the sections after it
        left = given.budget - (time.monotonic() - start)
        supervise(name, report, left * SECTIONS[name] / shares, dry=given.dry, jobs=given.jobs)
        shares -= SECTIONS[name]
    counts = report.counts()
    print(", ".join(f"{count} {status}" for status, count in counts.items()) + f"; {given.out / 'report.md'}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
