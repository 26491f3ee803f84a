"""The conformance check of the storage."""

import pytest
from rl.core.errors import ArgumentError
from rl.testing import check_storage

from rl_plugin_example.rows import RowStorage


def test_the_storage_keeps_the_protocol():
    check_storage(RowStorage)


def test_a_size_below_one_is_rejected():
    with pytest.raises(ArgumentError, match="RowStorage: max_size"):
        RowStorage(0)
