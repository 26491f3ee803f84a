"""Conformance of a `rl.core.interfaces.Estimator`."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Estimator
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys
from rl.core.testing._check_contract import check_contract
from rl.core.testing._contracts import seeded
from rl.core.testing._report import Report, require

__all__ = ["check_estimator"]

_FLAGS = ("done", "terminated", "truncated")


def check_estimator(estimator: Estimator, batch: TensorDictBase) -> Report:
    """Check a value estimator on a batch ``[*B, T]`` in time order.

    It passes `check_contract`; what it writes is finite and in the dtype of the reward. Trajectories do not depend on
    each other: neither on other rows of the batch, nor on what follows the end of an episode. Nothing is bootstrapped
    after a terminated step, and something is after a truncated one.

    Args:
        estimator: any callable with a ``contract``.
        batch: holds the keys that are read; several rows, with ends of both kinds inside, exercise everything.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` with the reason first.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.core.contract import Contract, Key
        >>> class RewardAlone:
        ...     contract = Contract((Key(("next", "reward"), (1,)),), (Key("advantage", (1,)),))
        ...     def __call__(self, td):
        ...         return td.set("advantage", td["next", "reward"])
        >>> ends = torch.tensor([[False, True, False, False]] * 2).unsqueeze(-1)
        >>> after = TensorDict(reward=torch.randn(2, 4, 1), done=ends, terminated=ends, batch_size=[2, 4])
        >>> check_estimator(RewardAlone(), TensorDict(next=after, batch_size=[2, 4])).not_exercised
        ['bootstraps after a truncated step: the batch has none']
    """
    owner = type(estimator).__name__
    report = Report(owner)
    out = check_contract(estimator, batch)
    written = estimator.contract.out_keys
    _check_values(out, batch, written, owner)
    shifted = _Shifted(estimator, batch, written, report)
    shifted.check_rows()
    shifted.check_ends()
    shifted.check_bootstraps()
    return report.warn()


def _check_values(out: TensorDictBase, batch: TensorDictBase, written: list[NestedKey], owner: str) -> None:
    rewards = [key for key in leaf_keys(batch) if as_tuple(key)[-1] == "reward"]
    for key in written:
        value = out.get(key)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        require(bool(value.isfinite().all()), f"{key_str(key)} is not finite", owner)
        if rewards:
            dtype = batch.get(rewards[0]).dtype
            require(value.dtype == dtype, f"{key_str(key)} is {value.dtype}, the reward is {dtype}", owner)


class _Shifted:
    """An estimator on a batch of which some entries are changed, compared with its results before."""

    def __init__(self, estimator: Any, batch: TensorDictBase, written: list[NestedKey], report: Report) -> None:
        self._estimator, self._batch, self._written, self._report = estimator, batch, written, report
        self._first = self._run(batch)
        flags = batch.get("next", None)
        self._done, self._terminated, self._truncated = (self._flag(flags, name) for name in _FLAGS)

    def _flag(self, flags: Any, name: str) -> Tensor | None:
        """A flag as ``[*B, T]``."""
        value = None if flags is None else flags.get(name, None)
        return None if value is None else value.reshape(*self._batch.batch_size, -1).any(-1)

    def _run(self, batch: TensorDictBase) -> TensorDictBase:
        with torch.no_grad():
            return seeded(self._estimator, batch).select(*self._written)

    def _changed(self, mask: Tensor, part: str) -> Tensor:
        """Where results differ, ``[*B, T]``, if floating-point entries are shifted where `mask` is true.

        Args:
            mask: bool ``[*B, T]``.
            part: ``"next"`` for what is known of the following state, without rewards; ``"all"`` for all entries.
        """
        other = self._batch.clone()
        for key in leaf_keys(other):
            value, path = other.get(key), as_tuple(key)
            following = path[0] == "next" and path[-1] != "reward"
            if isinstance(value, Tensor) and value.is_floating_point() and (part == "all" or following):
                wide = mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
                other.set(key, torch.where(wide, value + 0.5, value))
        again, differs = self._run(other), torch.zeros_like(mask)
        for key in leaf_keys(again):
            one, two = self._first.get(key), again.get(key)
            far = ~torch.isclose(one, two, rtol=1e-5, atol=1e-6)
            differs |= far.flatten(mask.ndim).any(-1) if far.ndim > mask.ndim else far
        return differs

    def check_rows(self) -> None:
        """Another row has no influence."""
        batch_size = self._batch.batch_size
        if len(batch_size) < 2 or batch_size[:-1].numel() < 2:
            self._report.skip("independence of the rows of a batch: it has one row")
            return
        mask = torch.zeros(batch_size, dtype=torch.bool)
        mask.view(-1, batch_size[-1])[0] = True
        leaked = bool((self._changed(mask, "all") & ~mask).any())
        require(not leaked, "the results of a row depend on another row of the batch", self._report.owner)

    def check_ends(self) -> None:
        """What follows the end of an episode has no influence on it."""
        done = self._done
        if done is None or not bool(done[..., :-1].any()):
            self._report.skip("ends of episodes: the batch has none before its last step")
            return
        ended = done.int().cumsum(-1) - done.int()  # ends before each step
        mask = ended >= 1
        leaked = bool((self._changed(mask, "all") & ~mask).any())
        reason = "what follows the end of an episode has an influence on the results before it"
        require(not leaked, reason, self._report.owner)

    def check_bootstraps(self) -> None:
        """The value of the following state counts after a truncated step, not after a terminated one."""
        if self._terminated is None or not bool(self._terminated.any()):
            self._report.skip("bootstraps after a terminated step: the batch has none")
        else:
            differs = bool(self._changed(self._terminated, "next").any())
            reason = "a terminated step is bootstrapped: the value of the state after it has an influence"
            require(not differs, reason, self._report.owner)
        reads = [as_tuple(key) for key in self._estimator.contract.in_keys]
        done = torch.zeros(self._batch.batch_size, dtype=torch.bool) if self._done is None else self._done
        cut = done if self._terminated is None else done & ~self._terminated
        if not bool(cut.any()):
            self._report.skip("bootstraps after a truncated step: the batch has none")
            return
        if any(path[0] == "next" and path[-1] not in ("reward", *_FLAGS) for path in reads):
            differs = bool((self._changed(cut, "next") & cut).any())
            reason = "a truncated step is not bootstrapped: the value of the state after it has no influence"
            require(differs, reason, self._report.owner)
