"""Declares an environment for contract env/99."""

from collections.abc import Iterator

from rl.core.component import Component
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_components() -> Iterator[Component]:
    """One component of the future, and one of today: none is taken."""
    yield Component(kind="env", name="future/holodeck", target="rl_plugin_future.holodeck:Holodeck", contract=99)
    yield Component(kind="loss", name="future-loss", target="rl_plugin_future.loss:Loss")
