"""Run every Python block of the documentation, page by page, each page in a folder of its own."""

from __future__ import annotations

import os
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import on_device
import pytest

collect_ignore = ["docs/conf.py"]  # needs Sphinx, which the docs environment has
collect_ignore_glob = ["packages/rl-trainers/src/rl/trainers/agents/*"]  # cards, whose examples need a run in a folder

SIMULATORS = {
    "brax": "brax",
    "gymnax": "gymnax",
    "jumanji": "jumanji",
    "mujoco_playground": "mujoco_playground",
    "chess": "chess",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "mujoco": "mujoco",
    "open_spiel": "pyspiel",
    "pettingzoo": "pettingzoo",
    "vmas": "vmas",
}
"""Module or folder of ``rl.envs`` and page of ``docs/howto/simulators``, and the library that their examples need."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--device`, see `tests/on_device.py`."""
    parser.addoption("--device", help="device of what tests make; leave out the others with -m 'not cpu and not gpu'")


def pytest_configure(config: pytest.Config) -> None:
    """Make Ctrl-C an exception, and begin to place what tests make on the device of `--device`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    name = config.getoption("--device")
    if name is not None:
        on_device.start(name)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Do not let a test that broke the device fail all others."""
    if (item.config.getoption("--device") or "").startswith("cuda"):
        on_device.check_alive()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the examples of simulators that are not installed, and slow tests unless `-m` asks for them."""
    for name, library in SIMULATORS.items():
        if find_spec(library) is None:
            for item in items:
                folder = item.path.parent
                page = item.path.stem == name and folder.name in ("envs", "simulators")  # a module or its page
                if page or folder.parts[-2:] == ("envs", name):
                    item.add_marker(pytest.mark.skip(reason=f"{library} is not installed"))
    _skip_without_gpu(items)
    if "slow" in config.getoption("markexpr"):
        return
    skip = pytest.mark.skip(reason="a long variant: `-m slow` runs it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    """Skip tests that need a CUDA device where there is none; torch is imported only if there are such tests."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device: torch.cuda.is_available() is False"))


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


if find_spec("sybil"):  # absent where only tests are run, as by tools/check_gpu.py
    from sybil import Sybil
    from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

    pytest_collect_file = Sybil(
        parsers=[PythonCodeBlockParser(), SkipParser()],
        patterns=[
            "README.md",
            "CONTRIBUTING.md",
            "docs/*.md",
            "docs/**/*.md",
            "docs/howto/simulators/*.md",  # its two stars match one folder
            "packages/*/README.md",
            "template/**/README.md",
        ],
        excludes=["docs/_build/**", "docs/reference/api/**"],
        setup=setup,
        teardown=teardown,
    ).pytest()
