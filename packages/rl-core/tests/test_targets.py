"""`rl.core.targets`: what a component names is compared with the protocol of its kind."""

import sys
from abc import abstractmethod
from functools import partial
from types import SimpleNamespace

import pytest

from rl.core.component import Component
from rl.core.errors import PluginError
from rl.core.registry import Registry
from rl.core.targets import check_target


class Writer:
    def claim(self, storage, count): ...
    def extended(self, index, data): ...
    def empty(self): ...
    def state_dict(self): ...
    def load_state_dict(self, state): ...


class Forwards:
    def __getattr__(self, name):
        return getattr(Writer(), name)


class HalfWriter(Writer):
    claim = None
    empty = None


class AbstractWriter(Writer):
    __abstractmethods__ = frozenset({"claim"})
    claim = abstractmethod(Writer.claim)


class Silent:
    """No `__call__`; that of `type` makes objects and is not theirs."""


def make_writer() -> Writer:
    return Writer()


writer = Writer()
recipe = SimpleNamespace(name="r", config=None, train=None, make_policy=None)
made_with_options = partial(Writer)


def component(kind: str, name: str) -> Component:
    return Component(kind, "x", name if ":" in name else f"rlt_targets:{name}")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "rlt_targets", SimpleNamespace(**globals()))


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("env", "torch.nn:MSELoss", "the class torch.nn.modules.loss.MSELoss lacks the methods reset, step,"),
        ("env", "torch.nn:MSELoss", "rl.core.interfaces.Env"),
        ("writer", "HalfWriter", "lacks the methods claim, empty of rl.core.interfaces.Writer"),
        ("writer", "AbstractWriter", "is abstract: it lacks claim"),
        ("writer", "writer", "is neither a class nor a function"),
        ("loss", "Silent", "Silent lacks the method __call__ of rl.core.interfaces.Loss"),
        ("recipe", "Writer", "is no rl.trainers.Algorithm: it lacks name, config, train"),
        ("logger", "math:pi", "3.141592653589793 is neither"),
    ],
)
def test_a_target_that_does_not_fit_its_kind_is_refused_with_distribution_and_remedy(kind, name, said):
    registry = Registry()
    registry.add(component(kind, name), distribution="acme")
    with pytest.raises(PluginError) as seen:
        registry.load(kind, "x")
    for part in (f"{kind} 'x' of acme is broken", said, "Upgrade acme, or correct the target"):
        assert part in str(seen.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("writer", "Writer"),
        ("writer", "Forwards"),
        ("writer", "make_writer"),
        ("writer", "made_with_options"),
        ("recipe", "recipe"),
        ("module", "torch.nn:Linear"),
        ("tree_backend", "rl.testing:ToyPriorityTree"),
    ],
)
def test_a_target_that_may_fit_is_returned(kind, name):
    assert check_target(component(kind, name)) is not None


def test_every_component_that_is_installed_fits_its_kind():
    pytest.importorskip("rl.trainers")
    registry = Registry.installed()
    for each in registry.components():
        check_target(each, registry.owner(each.kind, each.name).distribution)
