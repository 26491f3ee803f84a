"""The conformance check of the back end."""

import pytest
from rl.testing import check_recurrent_backend

from rl_plugin_example import plugin
from rl_plugin_example.loop import LoopBackend


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_back_end_computes_the_recurrence(cell):
    check_recurrent_backend(LoopBackend(), cell)


def test_it_is_selected_by_name_alone():
    assert isinstance(plugin.rl_recurrent_backend("gru", "example/loop", "cpu"), LoopBackend)
    assert plugin.rl_recurrent_backend("gru", None, "cpu") is None
