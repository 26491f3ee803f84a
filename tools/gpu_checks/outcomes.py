"""Plugin of pytest that writes the outcome of each test at once, so that a run that is killed keeps what it had."""

from __future__ import annotations

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append a line for a test that has ended; with pytest-xdist, in the main process alone."""
    path = os.environ.get("GPU_CHECKS_OUTCOMES")
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when == "call" or report.outcome != "passed":
        line = {"test": report.nodeid, "outcome": report.outcome, "text": report.longreprtext}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
