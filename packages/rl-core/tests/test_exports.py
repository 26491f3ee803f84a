"""Every public name of rl.core."""

import pytest

import rl.core
from rl.core.keys import nearest


@pytest.mark.parametrize("name", rl.core.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.core, name) is not None
    assert name in dir(rl.core)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rl.core.nothing


def test_every_error_is_an_rl_error_and_a_built_in_one():
    from rl.core import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, Exception) and not issubclass(kind, Warning) and kind is not errors.RLError:
            assert issubclass(kind, errors.RLError)
            assert len(kind.__mro__) > 4, f"{name} is no built-in error besides"


def test_nearest_key():
    assert nearest("obs", ["observation", "action"]) in (None, "observation")
    assert nearest("observation", [("next", "observation"), "observatoin"]) == "observatoin"
    assert nearest("observatoin", [("next", "observation"), "observation"]) == "observation"
    assert nearest(("next", "observatoin"), ["observation", ("next", "observation")]) == ("next", "observation")
    assert nearest("reward", ["action", ("next", "reward")]) == ("next", "reward")
