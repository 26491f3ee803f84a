"""Build hook: compile what this machine can, and tag the wheel for the platform only if something was compiled."""

from __future__ import annotations

import runpy
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface[BuilderConfig]):
    """Runs for wheels, including editable ones, whose library lies next to the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling names it
        """Compile, and set the tag of the wheel."""
        if self.target_name != "wheel":
            return
        state = runpy.run_path(str(Path(self.root, "src/rl/native/_build.py")))["build"]()
        self.app.display_info(f"rl-native: {state}")
        if state == "ok":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"] += ["src/rl/native/_lib/*.so", "src/rl/native/_lib/build.json"]

    def clean(self, versions: list[str]) -> None:  # noqa: ARG002  hatchling names it
        """Remove what was compiled."""
        shutil.rmtree(Path(self.root, "src/rl/native/_lib"), ignore_errors=True)
