"""Whether the steps of a batch follow each other as a recurrent module has to assume."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import TensorDictBase
from torch import Tensor

from rl.core._recurrent import State
from rl.core.errors import ContractError
from rl.core.keys import DONE, IS_INIT, NEXT, NestedKey, key_str, next_key

__all__ = ["check_sequences"]

_INIT_REMEDY = (
    "a Collector writes it for a policy that carries state; in an environment the transform InitTracker does, in a"
    " buffer SliceSampler; keep it where entries are chosen (select, exclude)"
)


def check_sequences(td: TensorDictBase, states: Sequence[State], who: str, *, done_key: NestedKey = DONE) -> None:
    """Refuse a batch in which a state would leak from one trajectory into another, or that is not in time order.

    The last batch dimension is time. Where ``is_init`` is false, the state stored at a step has to be the one that was
    stored under ``next`` at the step before; where an episode has ended at the step before, ``is_init`` has to be true.
    What is not stored is not compared.

    Args:
        td: the batch ``[*B, T]``.
        states: what is carried, as `rl.core.states_of` gives it; nothing is checked if there is nothing.
        who: reads the batch, for messages.
        done_key: the flag that ends episodes, as it is called under ``next``.

    Raises:
        ContractError: naming the entry, the first step at fault and the remedy.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flags = torch.tensor([[True], [False], [False]])
        >>> after = TensorDict(done=torch.tensor([[False], [True], [False]]), batch_size=[3])
        >>> check_sequences(TensorDict(is_init=flags, next=after, batch_size=[3]), [State("h", (1, 2))], "PPOLoss")
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: PPOLoss: an episode ends at step 1 of this batch, ...
    """
    if not states:
        return
    dim = td.batch_dims - 1
    is_init: Tensor | None = td.get(IS_INIT, None)
    if is_init is None:
        raise ContractError(
            f"{who} reads {key_str(IS_INIT)}, which nothing in this batch wrote: without it the state"
            f" {key_str(states[0].name)} would leak from episode to episode; {_INIT_REMEDY}"
        )
    if dim < 0 or td.batch_size[dim] < 2:
        return
    length = td.batch_size[dim] - 1
    follows = ~is_init.narrow(dim, 1, length).flatten(dim + 1).any(-1)
    done: Tensor | None = td.get(next_key(done_key), None)
    if done is not None:
        ended = done.narrow(dim, 0, length).flatten(dim + 1).any(-1)
        _refuse(
            ended & follows,
            f"{who}: an episode ends at step {{step}} of this batch, and {key_str(IS_INIT)} is false at the step after"
            f" it: the state {key_str(states[0].name)} would leak into the next episode; {_INIT_REMEDY}",
        )
    for state in states:
        here, before = td.get(state.name, None), td.get(next_key(state.name), None)
        if here is None or before is None:
            continue
        differs = here.narrow(dim, 1, length) != before.narrow(dim, 0, length)
        _refuse(
            differs.flatten(dim + 1).any(-1) & follows,
            f"{who}: {key_str(state.name)} after step {{step}} of this batch is not the {key_str(state.name)} that the"
            f" state {key_str((NEXT, *_parts(state.name)))} of that step says, and {key_str(IS_INIT)} is false there:"
            " the steps are not in time order, or were shuffled. Sample whole slices (SliceSampler), and do not"
            " shuffle the time dimension",
        )


def _parts(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _refuse(bad: Tensor, message: str) -> None:
    if bool(bad.any()):
        step = int(bad.nonzero()[0, -1])
        raise ContractError(message.format(step=step))
