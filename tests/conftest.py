from __future__ import annotations

from pathlib import Path

import pytest
from fresh_env import ROOT, build_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every package."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        build_wheel(project.parent, folder)
    return folder
