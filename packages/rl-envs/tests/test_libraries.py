"""Optional libraries: missing, too old, too new."""

import pytest

from rl.core.errors import MissingExtraError

# the bounds of versions are varied, those of the environments fit what is installed
from rl.envs._libraries import import_library


def test_it_returns_the_module_of_a_supported_version():
    assert import_library("pluggy", needed_by="XEnv", extra="x", at_least="1.0", below="99").__name__ == "pluggy"


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"at_least": "99.1"}, r'XEnv needs pluggy 99.1 or later, found \d.*pip install "rl-envs\[x\]" -U'),
        ({"below": "0.1"}, r'XEnv needs pluggy below 0.1, found \d.*pip install "pluggy<0.1"'),
    ],
)
def test_a_wrong_version_is_refused_with_the_command_to_type(bounds, words):
    with pytest.raises(MissingExtraError, match=words):
        import_library("pluggy", needed_by="XEnv", extra="x", **bounds)
