from __future__ import annotations

import pluggy
from fresh_env import ROOT

from rl.core import hookspecs


def test_every_hook_has_a_heading_and_every_heading_a_hook():
    manager = pluggy.PluginManager("rl")
    manager.add_hookspecs(hookspecs)
    hooks = {name for name in vars(manager.hook) if not name.startswith("_")}
    lines = (ROOT / "docs" / "hooks.md").read_text().splitlines()
    headings = {line.strip("# `").split("(")[0] for line in lines if line.startswith("## `")}
    assert headings == hooks
