"""Checks of the time order of a batch: for recurrent networks, and for returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import DONE, INDEX, IS_INIT, NEXT, TRAJ_IDS, NestedKey, as_tuple, key_str, leaf_keys, next_key
from rl.core.recurrent import State

__all__ = ["OrderWatch", "any_of_step", "check_sequences", "check_time_last", "check_time_order"]

_assert_async: Any = torch._assert_async  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  an assertion inside a graph

_INIT_REMEDY = (
    "a Collector writes it for a recurrent policy, in an environment the transform InitTracker, in a buffer"
    " SliceSampler; keep it where keys are selected (select, exclude)"
)
_ORDER_REMEDY = (
    "run the estimator on the batch as it was collected, before it is shuffled; of sampled slices, mark the last step"
    " of each as truncated and done"
)


def any_of_step(flags: Tensor, dims: int) -> Tensor:
    """Whether any flag of a step is true.

    Args:
        flags: Bool ``[*B, ...]``.
        dims: Number of batch dimensions.

    Returns:
        Bool ``[*B]``.

    Example:
        >>> any_of_step(torch.tensor([[[True], [False]]]), 2)
        tensor([[ True, False]])
    """
    if flags.ndim <= dims:
        return flags
    if flags.ndim == dims + 1 and flags.shape[-1] == 1:
        return flags.squeeze(-1)
    return flags.flatten(dims).any(-1)


def check_time_last(td: TensorDictBase, owner: str) -> None:
    """Check that no other batch dimension than the last is named ``time``.

    Args:
        td: Batch.
        owner: Component that reads the batch, for the message.

    Raises:
        ContractError: If one is.

    Example:
        >>> from tensordict import TensorDict
        >>> check_time_last(TensorDict(batch_size=[3, 5], names=[None, "time"]), "PPOLoss")
    """
    names: list[str | None] = list(td.names)
    if "time" in names and names[-1] != "time":
        raise ContractError(
            f"{owner} reads time from the last dimension of a batch, and time is dimension {names.index('time')} of"
            f" this one of shape {list(td.batch_size)} (names: {names}): transpose it"
        )


def check_time_order(
    td: TensorDictBase,
    dim: int,
    done: Tensor,
    owner: str,
    *,
    mask: Tensor | None = None,
    mask_key: NestedKey = ("collector", "mask"),
) -> None:
    """Check that returns cross neither into another trajectory nor into padding.

    Between two adjacent steps without an end of episode,

    - a replay buffer's ``index`` [*B] increases by one, wraps to 0 or stays the same; it is not checked along a
      dimension named ``time``, since rows of several environments are interleaved in a storage;
    - a collector's ``("collector", "traj_ids")`` [*B] stays the same, unless another group of agents ended;
    - ``is_init`` [*B, 1] is false at the second one, with the same exception;
    - the second one is not padding.

    Nothing is checked while `torch.compile` traces.

    Args:
        td: Batch.
        dim: Time dimension.
        done: Bool, ``[*B, ...]``.
        owner: Component that reads the batch, for messages.
        mask: Bool ``[*B]``, false at padding.
        mask_key: Key of the mask, for the message.

    Raises:
        ContractError: If one of these does not hold.

    Example:
        >>> from tensordict import TensorDict
        >>> check_time_order(TensorDict(index=torch.tensor([3, 4, 0]), batch_size=[3]), 0, torch.zeros(3) > 0, "GAE")
    """
    if torch.compiler.is_compiling() or td.shape[dim] < 2:
        return
    shape, is_init = td.shape, td.get(IS_INIT, None)
    ids = {
        key: value
        for key in (INDEX, TRAJ_IDS)
        if (value := td.get(key, None)) is not None
        and value.shape == shape
        and (key != INDEX or td.names[dim] != "time")
    }
    if mask is None and is_init is None and not ids:
        return
    # Compare each step t with t + 1: tensors below have T - 1 steps along `dim`.
    length = shape[dim] - 1
    unended = ~any_of_step(done, len(shape)).narrow(dim, 0, length)
    if mask is not None:
        valid, following = _pairs(mask, dim)
        step = _first(valid & ~following & unended, dim)
        if step is not None:
            raise ContractError(
                f"{owner}: step {step} of this batch is the last one before padding ({key_str(mask_key)} is false after"
                " it) and is not done, so that its return would include padding: mark it as done and truncated, as"
                " SliceSampler(pad_output=True) does, or estimate before trajectories are split and padded"
            )
    for key, value in ids.items():
        now, following = _pairs(value, dim)
        broken = (now != following) & unended
        # Rows of a buffer increase by one, or wrap to 0 at the end of the ring; trajectory ids stay the same.
        broken = broken & (following != now + 1) & (following != 0) if key == INDEX else _without_end(td, dim, broken)
        if _first(broken, dim) is not None:
            raise ContractError(
                f"{owner} needs steps in time order, but {key_str(key)} jumps along dimension {dim} without a done in"
                f" between, so this batch is not: {_ORDER_REMEDY}"
            )
    if is_init is not None and is_init.dtype is torch.bool and is_init.shape in (shape, (*shape, 1)):
        step = _first(_without_end(td, dim, is_init.reshape(shape).narrow(dim, 1, length) & unended), dim)
        if step is not None:
            raise ContractError(
                f"{owner} needs steps in time order, but {key_str(IS_INIT)} is true at step {step + 1}, and step"
                f" {step} is not done, so that returns would cross from one sequence into another: {_ORDER_REMEDY}"
            )


class OrderWatch:
    """Whether an estimator or a loss compares the order of the steps of a batch.

    Each batch on the CPU is compared. On another device only the first one is: the comparison reads values, which would
    wait for all work before it and could not be recorded in a CUDA graph.

    Example:
        >>> watch = OrderWatch()
        >>> [watch.compares(torch.zeros(1, device="meta")) for _ in range(2)], watch.compares(torch.zeros(1))
        ([True, False], True)
    """

    def __init__(self) -> None:
        self._seen = False

    def compares(self, leaf: Tensor) -> bool:
        """Whether to compare the batch that `leaf` is an entry of."""
        if torch.compiler.is_compiling() or leaf.is_cpu:
            return True
        seen, self._seen = self._seen, True
        return not seen


def _without_end(td: TensorDictBase, dim: int, steps: Tensor) -> Tensor:
    """Mask out those of `steps` (all but the last) at which a ``done`` of any group of agents is true."""
    if not bool(steps.any()):
        return steps
    keys = [key for key in leaf_keys(td) if as_tuple(key)[0] == NEXT and as_tuple(key)[-1] == DONE]
    for key in keys:
        steps = steps & ~_pairs(any_of_step(td.get(key).bool(), td.ndim), dim)[0]
    return steps


def check_sequences(td: TensorDictBase, states: Sequence[State], owner: str, *, done_key: NestedKey = DONE) -> None:
    """Check that a batch is in time order and that no recurrent state leaks from one trajectory into another.

    The last batch dimension is time. Where ``is_init`` is false, the state stored at a step must equal the one stored
    under ``next`` at the step before; after the end of an episode, ``is_init`` must be true. States restart with the
    episode, whichever of its agents ended before: if `done_key` is in a group, ``("next", "done")`` at the root counts
    in its place, and without that flag an end of any agent. Keys that are absent are not compared. A flat batch without
    the states under ``next`` needs other evidence of its order: a dimension named ``time``, or the ``index`` of a
    buffer.

    Args:
        td: Batch ``[*B, T]``.
        states: Recurrent states, as `rl.core.states_of` returns them; nothing is checked without any.
        owner: Component that reads the batch, for messages.
        done_key: Flag that ends episodes, without ``next``.

    Raises:
        ContractError: Naming the key, the first wrong step and the remedy.
        RuntimeError: Instead, in a compiled function, where the error depends on values of the batch.
        ShapeError: If ``is_init`` or a state has another shape or dtype.

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
    is_init = _read_is_init(td, states[0], owner)
    _check_states(td, states, owner)
    check_time_last(td, owner)
    if dim < 0 or td.batch_size[dim] < 2:
        return
    continues = ~_pairs(any_of_step(is_init, dim + 1), dim)[1]
    ends = next_key(done_key)
    if len(as_tuple(done_key)) > 1 and td.get(next_key(DONE), None) is not None:
        ends = next_key(DONE)
    done: Tensor | None = td.get(ends, None)
    ended = None if done is None else _pairs(any_of_step(done, dim + 1), dim)[0]
    # Within episodes first: shuffled steps are reported as such, whatever their flags are.
    compared = _compare(td, states, continues if ended is None else continues & ~ended, owner)
    indexed = not compared and _check_index(td, continues, owner)
    leaks = f"the state {key_str(states[0].name)} would leak into the next episode; {_INIT_REMEDY}"
    if ended is not None:
        alone = "" if ends == next_key(DONE) else f". If the flag is that of one agent, keep {key_str(next_key(DONE))}"
        _reject(
            ended & continues,
            f"{owner}: an episode ends at step {{step}} of this batch ({key_str(ends)}), and {key_str(IS_INIT)} is"
            f" false at the step after it: {leaks}{alone}",
        )
    ids: Tensor | None = td.get(TRAJ_IDS, None)
    if ids is not None and ids.shape == td.batch_size:
        now, following = _pairs(ids, dim)
        _reject(
            (following != now) & continues,
            f"{owner}: the step after step {{step}} of this batch is of another trajectory ({key_str(TRAJ_IDS)}), and"
            f" {key_str(IS_INIT)} is false there: {leaks}. If the steps were shuffled, sample full slices instead",
        )
    if not compared and not indexed and td.batch_dims == 1 and td.names[-1] != "time":
        _reject(
            continues,
            f"{owner}: nothing in this flat batch of{_if_known(td.batch_size[0])} steps shows that the step after step"
            f" {{step}} follows it in time, and {key_str(IS_INIT)} is false there: if it does not, the state"
            f" {key_str(states[0].name)} leaks. Keep {key_str(next_key(states[0].name))}, which is compared, or pass a"
            " batch [*B, T], or name its dimension (td.names = ['time'])",
        )


def _read_is_init(td: TensorDictBase, state: State, owner: str) -> Tensor:
    is_init: Tensor | None = td.get(IS_INIT, None)
    if is_init is None:
        remedy = f"Without it the state {key_str(state.name)} would leak from episode to episode; {_INIT_REMEDY}."
        raise ContractError(missing_key_message(owner, Key(IS_INIT, remedy=remedy), leaf_keys(td)))
    if is_init.dtype is not torch.bool or is_init.ndim == td.batch_dims:
        raise ShapeError(
            f"{owner}: {key_str(IS_INIT)} is {is_init.dtype} {list(is_init.shape)}, expected bool"
            f" {[*td.batch_size, 1]}, as a Collector or InitTracker writes it: keep its last dimension and its dtype"
        )
    return is_init


def _check_states(td: TensorDictBase, states: Sequence[State], owner: str) -> None:
    for state in states:
        for key in (state.name, next_key(state.name)):
            found: Tensor | None = td.get(key, None)
            expected = (*td.batch_size, *state.shape)
            if found is not None and found.shape != expected:
                raise ShapeError(
                    f"{owner}: {key_str(key)} has the shape {list(found.shape)}, expected {list(expected)}: a state of"
                    f" {state.owner or 'the network'} has the shape {list(state.shape)} after the batch dimensions"
                    f" {list(td.batch_size)}; collect with the module that reads it"
                )


def _compare(td: TensorDictBase, states: Sequence[State], continues: Tensor, owner: str) -> bool:
    """Reject states that differ from those under ``next`` of the step before; False if none are stored."""
    dim, compared = td.batch_dims - 1, False
    for state in states:
        stored, after = td.get(state.name, None), td.get(next_key(state.name), None)
        if stored is None or after is None:
            continue
        compared = True
        differs = _pairs(stored, dim)[1] != _pairs(after, dim)[0]
        name = key_str(state.name)
        _reject(
            any_of_step(differs, dim + 1) & continues,
            f"{owner}: {name} after step {{step}} of this batch differs from"
            f" {key_str((NEXT, *as_tuple(state.name)))} of that step, and {key_str(IS_INIT)} is false there: the steps"
            " are not in time order, or were shuffled, or are padding, or time is not the last dimension of the"
            f" batch{_if_known(list(td.batch_size))}. Sample full slices (SliceSampler), do not shuffle time, and do"
            " not split trajectories (no split_trajectories)",
        )
    return compared


def _check_index(td: TensorDictBase, continues: Tensor, owner: str) -> bool:
    """Reject rows that do not follow each other in their buffer; False without an ``index``.

    Rows of one environment are stored in time order, rows of other environments between them, and continue at the
    front of the storage where the ring ends.
    """
    index: Tensor | None = td.get(INDEX, None)
    if index is None or index.shape != td.batch_size:
        return False
    now, following = _pairs(index, -1)
    # Position of the first step of each sequence, carried along by the running maximum.
    places = torch.arange(1, index.shape[-1], device=index.device)
    begins = torch.where(continues, 0, places).cummax(-1).values
    # A step back is the end of the ring, at most once in a sequence, and never past the sequence's own first row.
    back = (following <= now) & continues
    wraps = back.cumsum(-1)
    wraps = wraps - torch.nn.functional.pad(wraps, (1, 0)).gather(-1, begins)
    jumps = f"{owner}: {key_str(INDEX)} jumps after step {{step}} of this batch, and {key_str(IS_INIT)} is false there:"
    _reject(
        back & ((wraps > 1) | (following >= index.gather(-1, begins))),
        f"{jumps} the steps were shuffled, or a slice begins there and the state of another one would leak into it."
        " Sample full slices (SliceSampler), which set that flag, and shuffle slices, never steps",
    )
    if td.batch_dims == 1 and td.names[0] != "time":
        _reject(
            (following != now + 1) & (following != 0) & continues,
            f"{jumps} the steps were sampled one by one, or are rows of one of several environments in a storage."
            " Sample full slices (SliceSampler); if these are slices, name their dimension (td.names = ['time']), or"
            f" keep the state under {key_str(NEXT)}, which is compared",
        )
    return True


def _pairs(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Split `x` into all steps but the last, and all but the first."""
    length = x.shape[dim] - 1
    return x.narrow(dim, 0, length), x.narrow(dim, 1, length)


def _if_known(size: object) -> str:
    """Return a size for messages; empty in a graph, where it may vary."""
    return "" if torch.compiler.is_compiling() else f" {size}"


def _first(bad: Tensor, dim: int) -> int | None:
    """Return the first step along `dim` at which `bad` is true; None without one."""
    return int(bad.nonzero()[0, dim]) if bool(bad.any()) else None


def _reject(bad: Tensor, message: str) -> None:
    if torch.compiler.is_compiling():
        _assert_async((~bad).all(), message.replace("step {step}", "a step"))
    elif (step := _first(bad, -1)) is not None:
        raise ContractError(message.replace("{step}", str(step)))
