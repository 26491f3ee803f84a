"""Run every Python block of the documentation, page by page, each page in a folder of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser


def setup(namespace: dict[str, Any]) -> None:
    """Run a page with a fixed seed in a temporary folder."""
    import torch

    torch.manual_seed(0)
    namespace["_folder"], namespace["_before"] = tempfile.TemporaryDirectory(), Path.cwd()
    os.chdir(namespace["_folder"].name)


def teardown(namespace: dict[str, Any]) -> None:
    """Go back, and remove what the page wrote."""
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=[
        "README.md",
        "CONTRIBUTING.md",
        "docs/*.md",
        "docs/**/*.md",
        "packages/*/README.md",
        "template/**/README.md",
    ],
    excludes=["docs/_build/**", "docs/reference/api/**"],
    setup=setup,
    teardown=teardown,
).pytest()
