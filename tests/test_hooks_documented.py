from __future__ import annotations

import pluggy
import pytest
from fresh_env import ROOT

from rl.core import hookspecs
from rl.core.registry import Registry


def test_every_hook_has_a_heading_and_every_heading_a_hook():
    manager = pluggy.PluginManager("rl")
    manager.add_hookspecs(hookspecs)
    hooks = {name for name in vars(manager.hook) if not name.startswith("_")}
    lines = (ROOT / "docs" / "hooks.md").read_text().splitlines()
    headings = {line.strip("# `").split("(")[0] for line in lines if line.startswith("## `")}
    assert headings == hooks


@pytest.mark.parametrize(
    ("hook", "marks"),
    [
        ("rl_priority_tree", {"rl-native": "", "rl-prio-cuda": "", "rl-replay": "trylast"}),
        ("rl_linear_recurrence", {"rl-native": "", "rl-objectives": "trylast"}),
        ("rl_row_gather", {"rl-native": "", "rl-replay": "trylast"}),
        ("rl_recurrent_backend", {"rl-native": "", "rl-recurrent-triton": "", "rl-modules": "trylast"}),
        ("rl_policy_step", {"rl-native": ""}),
    ],
)
def test_accelerators_answer_without_a_mark_and_plain_torch_last(hook, marks):
    """As docs/hooks.md says, so that an unmarked third-party plugin is called first."""
    found = {record.distribution: mark for record, mark in Registry.installed().candidates(hook)}
    assert {distribution: mark for distribution, mark in found.items() if distribution in marks} == marks
