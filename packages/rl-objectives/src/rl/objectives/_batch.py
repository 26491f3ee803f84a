"""Batches of losses and estimators: masks, done flags, and the dimension of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import BUFFER_KEYS, DONE, TERMINATED, TRUNCATED, NestedKey, as_tuple, key_str, next_key, unwrap

MASK: NestedKey = ("collector", "mask")
"""Key under which ``SliceSampler(pad_output=True)`` writes the mask."""

VALIDITY_MASK: NestedKey = "validity_mask"
"""Key under which the windows of ``Sequence`` have a flag that is false at repeated rows."""

LEARNING_MASK: NestedKey = "learning_mask"
"""Key under which the windows of ``Sequence`` have a flag that is false at burn-in and bootstrap rows."""

SEQUENCE_ID: NestedKey = "sequence_id"
"""Key under which the windows of ``Sequence`` have the number of the window."""

DISCOUNT: NestedKey = "gamma"
"""Key under which ``MultiStepTransform`` of rl-replay writes the discount of each next value."""

STEPS: NestedKey = "steps_to_next_obs"
"""Key under which ``MultiStepTransform`` of rl-replay and ``MultiStep`` write the number of steps."""


def entry_of_loss(td: TensorDictBase, key: NestedKey) -> Tensor | None:
    """Return an optional entry that losses read; None if it is absent, or is an observation.

    An environment may call an observation ``gamma`` or ``priority_weight``. What it writes is under ``next`` too, what
    replay buffers write is not. An entry under another key, which `set_keys` names, is read in either case.

    Example:
        >>> from tensordict import TensorDict
        >>> gravity = torch.tensor([[9.8]])
        >>> entry_of_loss(TensorDict(gamma=gravity, next=TensorDict(gamma=gravity), batch_size=[1]), "gamma")
        >>> entry_of_loss(TensorDict(gamma=gravity, batch_size=[1]), "gamma")
        tensor([[9.8000]])
    """
    found: Tensor | None = td.get(key, None)
    if found is None or key not in BUFFER_KEYS:
        return found
    return found if td.get(next_key(key), None) is None else None


def leaf_of(td: TensorDictBase, key: NestedKey) -> Tensor | None:
    """Return an entry if it is there; a group of the name, such as ``("next", "done")``, is none.

    Example:
        >>> from tensordict import TensorDict
        >>> leaf_of(TensorDict(done=TensorDict(left=torch.ones(1))), "done")
    """
    found: Tensor | None = td.get(key, None)
    return found if isinstance(found, Tensor) else None


def discount_key(name: NestedKey) -> Key:
    """Return the discount of the next values in a contract."""
    return Key(name, (1,), "discount of the next value, in place of the estimator's", optional=True)


def steps_key(name: NestedKey) -> Key:
    """Return the number of steps from each state to the next one in a contract."""
    return Key(name, (1,), "steps to the next state; its value is discounted by gamma to that power", optional=True)


def mask_keys_of_steps(name: NestedKey) -> tuple[Key, ...]:
    """Return the masks of steps in a contract: that of valid steps called `name`, and those of windows."""
    return (
        Key(name, (), "true at valid steps, false at padding", torch.bool, optional=True),
        Key(VALIDITY_MASK, (), "false at repeated rows of a window, which are padding", torch.bool, optional=True),
        Key(LEARNING_MASK, (), "false at burn-in and bootstrap rows of a window", torch.bool, optional=True),
    )


def terminated_key(name: NestedKey) -> Key:
    """Return the flag of terminal steps in a contract, called `name` under ``next``."""
    doc = "whether the episode terminated; done if absent"
    return Key(next_key(name), (1,), doc, torch.bool, optional=True)


def scalar(name: str, doc: str) -> Key:
    """Return a scalar output of a loss in its contract."""
    return Key(name, (), doc, batched=False)


def check_step_mask(mask: Tensor, key: NestedKey, size: torch.Size, owner: str) -> Tensor:
    """Return a mask of steps as ``[*B]``, after its checks.

    Args:
        mask: Entry of the batch, ``[*B]`` or ``[*B, 1]``.
        key: Key of the entry, for messages.
        size: Shape ``[*B]`` of the batch.
        owner: Component that reads it, for messages.

    Raises:
        ShapeError: If the mask has another shape or dtype, or is false at each of its steps.

    Example:
        >>> check_step_mask(torch.tensor([[True], [False]]), MASK, torch.Size([2]), "DQNLoss").tolist()
        [True, False]
    """
    flat = mask.squeeze(-1) if mask.ndim > len(size) else mask
    if mask.dtype is not torch.bool or flat.shape != size:
        raise ShapeError(
            f"{owner}: {key_str(key)} is {mask.dtype} {list(mask.shape)}, expected bool {list(size)}: true at valid"
            " steps, false at padding. Remove the entry if it means something else"
        )
    # Read on the CPU only: on another device, reading waits for all work before it.
    if not torch.compiler.is_compiling() and mask.is_cpu and mask.numel() and not bool(mask.any()):
        raise ShapeError(
            f"{owner}: {key_str(key)} is false at each of {mask.numel()} steps: no step is valid, skip this batch"
        )
    return flat


def expand_right(mask: Tensor, elements: Tensor) -> Tensor:
    """Expand a mask ``[*B]`` to the shape of `elements` ``[*B, ...]``."""
    return mask.reshape(*mask.shape, *[1] * (elements.ndim - mask.ndim)).expand(elements.shape)


def replace_padding(leaves: Sequence[Tensor], mask: Tensor | None) -> list[Tensor]:
    """Replace padding of `leaves` ``[*B, ...]`` by the first valid step.

    Whatever padding holds, NaN or an action out of range, is replaced before the arithmetic: after it, a weight of zero
    would still make NaN of its gradient.

    Example:
        >>> replace_padding([torch.tensor([1.0, torch.nan])], torch.tensor([True, False]))
        [tensor([1., 1.])]
    """
    if mask is None or not mask.numel():
        return list(leaves)
    first = mask.flatten().to(torch.uint8).argmax().unsqueeze(0)
    return [leaf.where(expand_right(mask, leaf), leaf.flatten(0, mask.ndim - 1)[first]) for leaf in leaves]


def mean_of(elements: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of the valid elements ``[*B, ...]``.

    Example:
        >>> mean_of(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    if mask is None:
        return elements.mean()
    inside = expand_right(mask, elements)
    return elements.where(inside, 0).sum() / inside.sum().clamp_min(1)


def mean_std(elements: Tensor, mask: Tensor | None, apart: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of the valid elements; gradients are finite where the latter is 0.

    Args:
        elements: Elements, ``[*B, ...]``.
        mask: Mask of the valid ones, ``[*B]``; all are if None.
        apart: Dimensions that have a mean and a deviation for each index; the results have size 1 in the others.
    """
    dims = [dim for dim in range(elements.ndim) if dim not in {one % elements.ndim for one in apart}]
    if mask is None:
        std, mean = torch.std_mean(elements, dims, correction=0, keepdim=bool(apart))
        return mean, std
    inside = expand_right(mask, elements)
    count = inside.sum(dims, keepdim=bool(apart)).clamp_min(1)
    mean = elements.where(inside, 0).sum(dims, keepdim=bool(apart)) / count
    rest = (elements - mean).where(inside, 0)
    norm = torch.linalg.vector_norm(rest, dim=dims, keepdim=bool(apart))  # a root has an infinite gradient at 0
    return mean, norm / count.to(norm.dtype).sqrt()


def find_time_dim(td: TensorDictBase, time_dim: int | None, owner: str) -> int:
    """Return the time dimension of a batch: `time_dim`, else the one named ``time``, else the last one.

    Args:
        td: Batch.
        time_dim: Index into ``td.batch_size``; None if unknown.
        owner: Name of the caller in messages.

    Raises:
        ArgumentError: If `time_dim` is not a dimension of the batch, or the one named ``time`` is another one.
        ContractError: If none is named or given, and the last one has another name.
        ShapeError: If the batch has no dimension.

    Example:
        >>> from tensordict import TensorDict
        >>> find_time_dim(TensorDict(batch_size=[3, 5]), None, "GAE")
        1
        >>> find_time_dim(TensorDict(batch_size=[5, 3], names=["time", None]), None, "GAE")
        0
    """
    if td.ndim == 0:
        raise ShapeError(f"{owner} got a batch without dimensions; it needs one that is time")
    names: list[str | None] = list(td.names)
    named = names.index("time") if "time" in names else None
    if time_dim is None and named is not None:
        return named
    if time_dim is not None and not -td.ndim <= time_dim < td.ndim:
        raise ArgumentError(f"{owner} has time_dim={time_dim}, which a batch of shape {tuple(td.shape)} does not have")
    dim = td.ndim - 1 if time_dim is None else time_dim % td.ndim
    if named is not None and named != dim:
        raise ArgumentError(
            f"{owner} has time_dim={time_dim}, but dimension {named} of the batch (names: {names}) is the one named"
            " 'time': leave time_dim out, or name the dimensions as they are"
        )
    if time_dim is None and names[dim] is not None:
        raise ContractError(
            f"{owner} needs steps in time order, but the last dimension of the batch (names: {names}) is"
            f" {names[dim]!r}: name the time dimension 'time', or pass time_dim. If there is none, run the"
            " estimator before steps are shuffled"
        )
    return dim


class BatchReader:
    """Reader of batches by a contract, whose keys are split once.

    Where a group of agents lacks its reward or flags, those of the entire team at the root are read: environments of a
    team write one reward and one pair of flags, ``[*B, 1]``, which count for each agent.

    Args:
        contract: Keys that are read.
        keys: Key of each name of the loss or the estimator.
        owner: Component that messages name.

    Attributes:
        contract: Keys that are read.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.core.contract import Contract
        >>> reader = BatchReader(Contract((Key("x"), Key("gamma", optional=True))), {}, "DQNLoss")
        >>> reader.read(TensorDict(x=torch.ones(1), batch_size=[1]))
        {'x': tensor([1.])}
    """

    def __init__(self, contract: Contract, keys: Mapping[str, Any], owner: str) -> None:
        self.contract, self._owner, self._required = contract, owner, contract.in_keys
        masks = keys.get("mask", MASK), VALIDITY_MASK, LEARNING_MASK
        self._masks = [(key, _observation_of(key)) for key in masks]
        optional = (key.name for key in contract.reads if key.optional and key.name not in masks)
        self._optional = [(key, _observation_of(key)) for key in optional]
        outcome = [next_key(keys[name]) for name in ("reward", "done", "terminated") if name in keys]
        self._of_team = {key: next_key(key[-1]) for key in outcome if len(key) > 2}
        self._estimates = [(name, next_key(keys[name])) for name in ("advantage", "value_target") if name in keys]
        done = keys.get("done", DONE)
        self._done, self._terminated = next_key(done), next_key(keys.get("terminated", TERMINATED))
        self._truncated = next_key(unwrap((*as_tuple(done)[:-1], TRUNCATED)))
        self._in_group = done != DONE

    def entry(self, td: TensorDictBase, key: NestedKey) -> Tensor | None:
        """Return an entry, that of the team for a reward or flag that a group lacks; None if there is none."""
        found: Tensor | None = td.get(key, None)
        return leaf_of(td, self._of_team[key]) if found is None and key in self._of_team else found  # pyright: ignore[reportArgumentType] - keys of teams are tuples

    def read_required(self, td: TensorDictBase) -> dict[NestedKey, Tensor]:
        """Return the entries that must be in the batch, by key.

        Raises:
            ContractError: If one is absent.
        """
        found: dict[NestedKey, Tensor] = {}
        for key in self._required:
            value: Tensor | None = td.get(key, None)
            if value is None and (value := self.entry(td, key)) is None:
                self.contract.refuse(td, key, self._owner)
            found[key] = value
        return found

    def read(self, td: TensorDictBase) -> dict[NestedKey, Tensor]:
        """Return the required entries, and the optional ones that the batch has, without masks of steps.

        Raises:
            ContractError: If a required entry is absent.
        """
        found = self.read_required(td)
        for key, observation in self._optional:
            value: Tensor | None = td.get(key, None)
            if value is None:
                value = self.entry(td, key) if key in self._of_team else None
            elif observation is not None and td.get(observation, None) is not None:
                continue
            if value is not None:
                found[key] = value
        return found

    def step_masks(self, td: TensorDictBase) -> tuple[Tensor | None, Tensor | None]:
        """Return the masks ``[*B]`` of valid steps and of steps to learn from; None for one that the batch lacks.

        Raises:
            ShapeError: If a mask has another shape or dtype, or is false at each of its steps.
        """
        found: list[Tensor | None] = []
        for key, observation in self._masks:
            mask: Tensor | None = td.get(key, None)
            if mask is None or (observation is not None and td.get(observation, None) is not None):
                found.append(None)
            else:
                found.append(check_step_mask(mask, key, td.batch_size, self._owner))
        padded, unrepeated, learned = found
        if padded is None or unrepeated is None:
            return unrepeated if padded is None else padded, learned
        return padded & unrepeated, learned

    def check_unobserved(self, td: TensorDictBase) -> None:
        """Raise if the environment writes an advantage or a value target, which would be taken for an estimate.

        Raises:
            ContractError: If there is one.
        """
        for name, key in self._estimates:
            if td.get(key, None) is not None:
                raise ContractError(
                    f"{self._owner}: the batch has {key_str(key)}, so that {key_str(key[1:])} is an observation, and"
                    f" not the {name} of an estimator. Name another key, of estimator and loss:"
                    f" set_keys({name}='my_{name}')"
                )

    def end_flags(
        self, td: TensorDictBase, done: Tensor, terminated: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the flags ``done`` and ``terminated`` as bool; a step that is terminated or truncated is done.

        In windows of a replay buffer no return crosses into another window or a repeated row: `done` is true before.

        Flags of a group of agents end where the episode does: ``("next", "done")`` at the root counts too, if it is
        there, and for agents that are not done themselves ``("next", "terminated")`` next to it.

        On a CPU a contradiction raises. Elsewhere, and in compiled code, a check would wait for the device: there
        `done` is completed with the other two.

        Args:
            td: Batch ``[*B]``; ``truncated`` is read if it is there.
            done: Entry of the batch, ``[*B, 1]``.
            terminated: Entry of the batch; `done` if None.
            mask: Mask of valid steps, ``[*B]``.

        Raises:
            ContractError: If a valid step is terminated or truncated, and not done.
        """
        done, terminated = as_flags(done, terminated)
        if self._in_group and (above := leaf_of(td, ("next", DONE))) is not None:
            above = expand_right(above.bool().reshape(td.batch_size), done)
            over = leaf_of(td, ("next", TERMINATED))
            over = above if over is None else above & expand_right(over.bool().reshape(td.batch_size), done)
            terminated, done = terminated | (over & ~done), done | above
        cut = _ends_of_windows(td)
        if cut is not None:
            done = done | expand_right(cut, done)
        checked = done.device.type == "cpu" and not torch.compiler.is_compiling()
        complete = done
        truncated = td.get(self._truncated, None)
        for key, flag in ((self._terminated, terminated), (self._truncated, truncated)):
            if not isinstance(flag, Tensor) or flag is done or flag.shape != done.shape:
                continue
            if not checked:
                complete = complete | flag.bool()
                continue
            wrong = flag.bool() > done
            if mask is not None and mask.ndim == wrong.ndim:  # of agents, whose flags are shared
                mask = mask.any(-1)
            if bool(wrong.any()) and (mask is None or bool((wrong := wrong & expand_right(mask, wrong)).any())):
                raise ContractError(
                    f"{self._owner}: at {wrong.nonzero()[0].tolist()} of {list(done.shape)} {key_str(key)} is true and"
                    f" {key_str(self._done)} is false. Write done = terminated | truncated"
                )
        return complete, terminated


def _observation_of(key: NestedKey) -> NestedKey | None:
    """Return the key that an entry of a replay buffer has under ``next`` if it is an observation; None for others.

    An environment may call an observation ``gamma`` or ``priority_weight``. What it writes is under ``next`` too, what
    replay buffers write is not. An entry under another key, which `set_keys` names, is read in either case.
    """
    return next_key(key) if key in BUFFER_KEYS else None


def _ends_of_windows(td: TensorDictBase) -> Tensor | None:
    """Return the steps before another window, and before and at repeated rows, ``[*B]``; time is the last dimension."""
    cut: Tensor | None = None
    for key in (VALIDITY_MASK, SEQUENCE_ID):
        value: Tensor | None = td.get(key, None)
        if value is None or not td.batch_dims or value.numel() != td.batch_size.numel():
            continue
        if td.get(next_key(key), None) is not None:  # an observation of that name
            continue
        value = value.reshape(td.batch_size)
        now, following = value[..., :-1], value[..., 1:]
        ends = ~(now & following) if key == VALIDITY_MASK else now != following
        ends = torch.nn.functional.pad(ends, (0, 1))
        cut = ends if cut is None else cut | ends
    return cut


def as_flags(done: Tensor, terminated: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return both flags as bool; `terminated` is `done` where it is absent."""
    done = done if done.dtype is torch.bool else done.bool()
    if terminated is None:
        return done, done
    return done, terminated if terminated.dtype is torch.bool else terminated.bool()
