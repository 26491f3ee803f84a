"""What this distribution offers, as data. Targets are strings, imported on first use."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rl.core.component import Command, Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from rl_plugin_example.loop import LoopBackend


@hookimpl
def rl_components() -> Iterator[Component]:
    """List the components."""
    yield Component(
        kind="env",
        name="example/chain",
        target="rl_plugin_example.chain:ChainEnv",
        summary="Walk to the end of a chain that sometimes slips.",
    )
    yield Component(
        kind="loss",
        name="example/reinforce",
        target="rl_plugin_example.reinforce:ReinforceLoss",
        summary="Policy gradient with an entropy bonus.",
    )
    yield Component(
        kind="transform",
        name="example/scale-reward",
        target="rl_plugin_example.scale_reward:ScaleReward",
        summary="Rewards times a number.",
    )
    yield Component(
        kind="sampler",
        name="example/stratified",
        target="rl_plugin_example.stratified:StratifiedSampler",
        summary="Uniform, one row from each of as many equal parts as the batch has rows.",
    )
    yield Component(
        kind="storage",
        name="example/rows",
        target="rl_plugin_example.rows:RowStorage",
        summary="Rows in a TensorDict that the first batch allocates.",
    )
    yield Component(
        kind="logger",
        name="example/lines",
        target="rl_plugin_example.lines:Lines",
        summary="Metrics as lines of JSON in the run folder.",
    )
    yield Component(
        kind="recipe",
        name="example-reinforce",
        target="rl_plugin_example.recipe:REINFORCE",
        summary="REINFORCE with a baseline.",
        extra="trainers",
    )
    yield Component(
        kind="recurrent_backend",
        name="example/loop",
        target="rl_plugin_example.loop:LoopBackend",
        summary="One cell of PyTorch after the other.",
    )


@hookimpl
def rl_recurrent_backend(cell: str, name: str | None, device: Any) -> "LoopBackend | None":
    """Return the back end if its name is given."""
    del cell, device  # it supports all of them
    if name != "example/loop":
        return None
    from rl_plugin_example.loop import LoopBackend

    return LoopBackend()


@hookimpl
def rl_commands() -> Command:
    """Offer a subcommand of `rl`."""
    return Command(
        name="example",
        target="rl_plugin_example.command:main",
        summary="List the components of this plugin.",
    )
