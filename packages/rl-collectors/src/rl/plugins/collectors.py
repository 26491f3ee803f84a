"""Components of rl-collectors, as data."""

from collections.abc import Iterator

from rl.core.component import Component
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_components() -> Iterator[Component]:
    """Return the collectors."""
    yield Component(
        kind="collector",
        name="collector",
        target="rl.collectors:Collector",
        summary="One process, one environment (batched or not), batches in time order",
    )
