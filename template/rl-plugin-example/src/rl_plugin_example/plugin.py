"""What this distribution offers, as data."""

from collections.abc import Iterator

from rl.core.component import Component
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_components() -> Iterator[Component]:
    """List the components; targets are strings, imported on first use."""
    yield Component(
        kind="env",
        name="example/chain",
        target="rl_plugin_example.chain:ChainEnv",
        summary="Walk to the end of a chain that sometimes slips.",
    )
    yield Component(
        kind="loss",
        name="example-reinforce",
        target="rl_plugin_example.reinforce:ReinforceLoss",
        summary="Policy gradient with an entropy bonus.",
    )
