"""Whether the steps of a batch follow each other as a recurrent module has to assume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import DONE, INDEX, IS_INIT, NEXT, TRAJ_IDS, NestedKey, key_str, next_key
from rl.core.recurrent import State

__all__ = ["check_sequences"]

_assert_async: Any = torch._assert_async  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  the check that a graph keeps

_INIT_REMEDY = (
    "a Collector writes it for a policy that carries state; in an environment the transform InitTracker does, in a"
    " buffer SliceSampler; keep it where entries are chosen (select, exclude)"
)


def check_sequences(td: TensorDictBase, states: Sequence[State], who: str, *, done_key: NestedKey = DONE) -> None:
    """Refuse a batch in which a state would leak from one trajectory into another, or that is not in time order.

    The last batch dimension is time. Where ``is_init`` is false, the state stored at a step has to be the one that was
    stored under ``next`` at the step before; where an episode has ended at the step before, ``is_init`` has to be true.
    What is not stored is not compared; a flat batch without the states under ``next`` has to say otherwise that its
    steps follow each other: a dimension named ``time``, or the ``index`` of a buffer.

    Args:
        td: the batch ``[*B, T]``.
        states: what is carried, as `rl.core.states_of` gives it; nothing is checked if there is nothing.
        who: reads the batch, for messages.
        done_key: the flag that ends episodes, as it is called under ``next``.

    Raises:
        ContractError: naming the entry, the first step at fault and the remedy.
        RuntimeError: instead, of a compiled function, for what the values in the batch say.
        ShapeError: if ``is_init`` or a state has another shape or dtype than it has to.

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
    is_init = _mark(td, states[0], who)
    _check_states(td, states, who)
    _refuse_time_elsewhere(td, who)
    if dim < 0 or td.batch_size[dim] < 2:
        return
    length = td.batch_size[dim] - 1
    follows = ~_any_behind(is_init.narrow(dim, 1, length), dim)
    done: Tensor | None = td.get(next_key(done_key), None)
    ended = None if done is None else _any_behind(done.narrow(dim, 0, length), dim)
    # Within episodes first: steps out of order are to be called that, whatever their flags say.
    compared = _compare(td, states, follows if ended is None else follows & ~ended, who)
    indexed = not compared and _refuse_jumps(td, follows, who)
    leaks = f"the state {key_str(states[0].name)} would leak into the next episode; {_INIT_REMEDY}"
    if ended is not None:
        _refuse(
            ended & follows,
            f"{who}: an episode ends at step {{step}} of this batch, and {key_str(IS_INIT)} is false at the step after"
            f" it: {leaks}",
        )
    ids: Tensor | None = td.get(TRAJ_IDS, None)
    if ids is not None and ids.shape == td.batch_size:
        _refuse(
            (ids.narrow(dim, 1, length) != ids.narrow(dim, 0, length)) & follows,
            f"{who}: the step after step {{step}} of this batch is of another trajectory ({key_str(TRAJ_IDS)}), and"
            f" {key_str(IS_INIT)} is false there: {leaks}. If the steps were shuffled, sample whole slices instead",
        )
    if not compared and not indexed:
        _refuse_unknown_order(td, follows, states[0], who)


def _mark(td: TensorDictBase, state: State, who: str) -> Tensor:
    """The flags of first steps, which have to be there."""
    is_init: Tensor | None = td.get(IS_INIT, None)
    if is_init is None:
        raise ContractError(
            missing_key_message(
                who,
                Key(
                    IS_INIT,
                    remedy=f"Without it the state {key_str(state.name)} would leak from episode to episode;"
                    f" {_INIT_REMEDY}.",
                ),
                td.keys(include_nested=True, leaves_only=True),
            )
        )
    if is_init.dtype is not torch.bool or is_init.ndim == td.batch_dims:
        raise ShapeError(
            f"{who}: {key_str(IS_INIT)} is {is_init.dtype} {list(is_init.shape)}, expected bool"
            f" {[*td.batch_size, 1]}, as a Collector or InitTracker writes it: keep its last dimension and its dtype"
        )
    return is_init


def _check_states(td: TensorDictBase, states: Sequence[State], who: str) -> None:
    for state in states:
        for key in (state.name, next_key(state.name)):
            found: Tensor | None = td.get(key, None)
            expected = (*td.batch_size, *state.shape)
            if found is not None and found.shape != expected:
                raise ShapeError(
                    f"{who}: {key_str(key)} has the shape {list(found.shape)}, expected {list(expected)}:"
                    f" {state.owner or 'the network'} carries {list(state.shape)} behind the batch"
                    f" {list(td.batch_size)}; collect with the module that reads it"
                )


def _compare(td: TensorDictBase, states: Sequence[State], follows: Tensor, who: str) -> bool:
    """Refuse states that are not those which the step before says; True if there were any to compare."""
    dim, compared = td.batch_dims - 1, False
    length = td.batch_size[dim] - 1
    for state in states:
        here, before = td.get(state.name, None), td.get(next_key(state.name), None)
        if here is None or before is None:
            continue
        compared = True
        differs = here.narrow(dim, 1, length) != before.narrow(dim, 0, length)
        _refuse(
            _any_behind(differs, dim) & follows,
            f"{who}: {key_str(state.name)} after step {{step}} of this batch is not the {key_str(state.name)} that the"
            f" state {key_str((NEXT, *_parts(state.name)))} of that step says, and {key_str(IS_INIT)} is false there:"
            " the steps are not in time order, or were shuffled, or are padding, or time is not the last dimension"
            f" of the batch{_if_known(list(td.batch_size))}. Sample whole slices (SliceSampler), do not shuffle time,"
            " and leave trajectories where they are (no split_trajectories)",
        )
    return compared


def _refuse_time_elsewhere(td: TensorDictBase, who: str) -> None:
    names: list[str | None] = list(td.names)
    if "time" in names and names[-1] != "time":
        raise ContractError(
            f"{who} carries state along the last dimension of a batch, and this one of shape {list(td.batch_size)} has"
            f" time in dimension {names.index('time')} (names: {names}): transpose it"
        )


def _refuse_jumps(td: TensorDictBase, follows: Tensor, who: str) -> bool:
    """Refuse rows that do not follow each other in their buffer; True if the batch says where they lie.

    The rows of one environment lie there in time order, others between them, and go on in front where the ring ends.
    """
    index: Tensor | None = td.get(INDEX, None)
    if index is None or index.shape != td.batch_size:
        return False
    now, then = index[..., :-1], index[..., 1:]
    places = torch.arange(1, index.shape[-1], device=index.device)
    begins = torch.where(follows, 0, places).cummax(-1).values  # where the part begins to which `then` belongs
    back = (then <= now) & follows
    turns = back.cumsum(-1)
    turns = turns - torch.nn.functional.pad(turns, (1, 0)).gather(-1, begins)
    jumps = f"{who}: {key_str(INDEX)} jumps after step {{step}} of this batch, and {key_str(IS_INIT)} is false there:"
    _refuse(
        back & ((turns > 1) | (then >= index.gather(-1, begins))),
        f"{jumps} the steps were shuffled, or a slice begins there and another one's state would leak into it. Sample"
        " whole slices (SliceSampler), which come with that flag, and shuffle slices, never steps",
    )
    if td.batch_dims == 1 and td.names[0] != "time":
        _refuse(
            (then != now + 1) & (then != 0) & follows,
            f"{jumps} the steps were chosen one by one, or lie apart in a storage of several environments. Sample whole"
            " slices (SliceSampler); if these are some, name their dimension (td.names = ['time']), or keep the state"
            f" under {key_str(NEXT)}, which is compared",
        )
    return True


def _refuse_unknown_order(td: TensorDictBase, follows: Tensor, state: State, who: str) -> None:
    """Refuse a flat batch of which nothing says that its steps follow each other."""
    if td.batch_dims > 1 or td.names[-1] == "time":
        return
    _refuse(
        follows,
        f"{who}: nothing in this flat batch of{_if_known(td.batch_size[0])} steps says that step {{step}} and the one"
        f" behind it follow each other in time, and {key_str(IS_INIT)} is false there: if they do not, the state"
        f" {key_str(state.name)} leaks. Keep {key_str(next_key(state.name))}, which is compared, or give a batch"
        " [*B, T], or name its dimension (td.names = ['time'])",
    )


def _any_behind(flags: Tensor, dim: int) -> Tensor:
    """Whether any element of a step is true, ``[*B, T]``."""
    return flags if flags.ndim == dim + 1 else flags.flatten(dim + 1).any(-1)


def _if_known(size: object) -> str:
    """A size for messages; nothing in a graph, where it may be any."""
    return "" if torch.compiler.is_compiling() else f" {size}"


def _parts(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _refuse(bad: Tensor, message: str) -> None:
    if torch.compiler.is_compiling():
        _assert_async((~bad).all(), message.replace("step {step}", "a step"))
    elif bool(bad.any()):
        step = int(bad.nonzero()[0, -1])
        raise ContractError(message.format(step=step))
