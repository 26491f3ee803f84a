"""Whether the rows of slices follow each other, told by what each row says came next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import DONE, IS_INIT, NEXT, TERMINATED, TRAJ_IDS, TRUNCATED, NestedKey, as_tuple, key_str, next_key

__all__ = ["Borders"]

_PAIRS = 1 << 16
"""Rows that are looked at in all: whoever fills a buffer so that slices go wrong does it from the first row on."""
_ENOUGH, _NEARLY_ALL = 16, 3
"""An entry says who follows whom if so many pairs of rows agree, and so many times as many as do not."""
_ELEMENTS = 64  # of an entry that are compared at most, spread over it
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ENDS = (next_key(DONE), next_key(TERMINATED), next_key(TRUNCATED))


@final
class Borders:
    """Finds rows in a slice behind which another trajectory begins, though no flag says so.

    A row has what it observed, and under ``next`` what came of it, which is what the next row observed. Where that is
    so of nearly all neighbours, it is known to hold in this data, and the others are no neighbours. Then rows of
    several environments, or of rollouts that each began anew, lie one behind the other, and a slice over such a place
    hands the state and the return of one to the other. Where it is not so of most, as of steps several apart, of
    observations with noise, nothing is known and nothing is said. Nor is anything where rows have names of
    trajectories, or nothing under ``next`` that they have themselves.

    - An entry counts where it changes in a step: one that stays the same follows everything.
    - Neighbours of which one such entry goes on belong together, whatever others say: a goal may be written anew.
    - A difference is one if it is more than rounding.

    Args:
        who: for messages.
        names: under which rows may have names of trajectories.
        flags: of ends and beginnings, beside the usual ones.

    Example:
        >>> steps = torch.arange(40).reshape(2, 20, 1)
        >>> path = torch.stack((steps * 3, steps * 3 + 3)).float()
        >>> path[:, 1] += 0.5
        >>> here, after = path.reshape(2, 40, 1)
        >>> borders = Borders("SliceSampler", [("collector", "traj_ids")])
        >>> rows = {"x": here, ("next", "x"): after}
        >>> borders.look(rows, torch.arange(40), [20, 40], dims=1)  # two slices, each of one environment
        >>> borders.look(rows, torch.arange(40), [40], dims=1)
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: SliceSampler: ('next', 'x') of row 19 is not 'x' of row 20, ...
    """

    def __init__(self, who: str, names: Iterable[NestedKey], flags: Iterable[NestedKey | None] = ()) -> None:
        self._who: Final = who
        self._names: Final = list(names)
        known = [as_tuple(key) for key in flags if key is not None]
        self._ends: Final = list(dict.fromkeys([*_ENDS, *(key for key in known if key[0] == NEXT)]))
        self._begins: Final = list(dict.fromkeys([(IS_INIT,), *(key for key in known if key[0] != NEXT)]))
        self.forget()

    def forget(self) -> None:
        """Look again from the beginning: other rows may be stored."""
        self.left = _PAIRS
        """Pairs of rows that are still to be looked at."""
        self._seen: dict[tuple[str, ...], tuple[int, int]] = {}

    def look(self, cells: Mapping[NestedKey, Any], index: Tensor, ends: Sequence[int], dims: int) -> None:
        """Look at the rows of a draw, as they are stored.

        Args:
            cells: their entries, ``[*n, ...]`` with `dims` dimensions of rows.
            index: of the rows, int64 ``[*n]``.
            ends: how many rows the slices up to each have together.
            dims: of `index`.

        Raises:
            ContractError: if two of them lie in one slice and do not follow each other; names them and the entry.
        """
        leaves = {as_tuple(key): cell for key, cell in cells.items() if isinstance(cell, Tensor)}
        pairs = [key for key, cell in leaves.items() if _is_like(cell, leaves.get((NEXT, *key)), dims)]
        if not pairs or any(as_tuple(name) in leaves for name in self._names):
            self.left = 0
            return
        rows = index.flatten()
        self.left -= len(rows)
        joined = self._joined(leaves, rows, ends, dims)
        agree, far = torch.zeros_like(joined), torch.zeros_like(joined)
        shown: dict[tuple[str, ...], Tensor] = {}
        for key in pairs:
            here, after = (_flat(leaves[name], dims) for name in (key, (NEXT, *key)))
            differs = _unequal(after[:-1], here[1:]) & joined
            goes_on = _unequal(after[:-1], here[:-1]) & joined & ~differs
            known = self._seen.get(key, (0, 0))
            counts = int(goes_on.sum()), int(differs.sum())
            self._seen[key] = same, other = known[0] + counts[0], known[1] + counts[1]
            if same >= max(_ENOUGH, _NEARLY_ALL * other):
                agree |= goes_on
                if counts[1]:
                    shown[key] = _clearly(differs, after[:-1], here[1:])
                    far |= shown[key]
        wrong = (far & ~agree).nonzero().flatten().tolist()
        if wrong:
            self._refuse(wrong, rows, shown)

    def _joined(self, leaves: Mapping[tuple[str, ...], Tensor], rows: Tensor, ends: Sequence[int], dims: int) -> Tensor:
        """Which rows are followed by one of the same slice, as far as flags say, bool ``[n - 1]``."""
        some = next(iter(leaves.values()))
        joined = (rows[1:] != rows[:-1]).to(some.device)  # no copy of the last row, with which slices are filled up
        joined[torch.tensor(ends[:-1], dtype=torch.int64, device=some.device) - 1] = False
        for keys, part in ((self._ends, slice(None, -1)), (self._begins, slice(1, None))):
            for key in keys:
                flag = leaves.get(key)
                if flag is not None:
                    joined &= ~_flat(flag, dims).bool().any(1)[part]
        return joined

    def _refuse(self, wrong: list[int], rows: Tensor, shown: Mapping[tuple[str, ...], Tensor]) -> None:
        row, follower = rows[wrong[0]].item(), rows[wrong[0] + 1].item()
        key = next(key for key, differs in shown.items() if bool(differs[wrong[0]]))
        same, other = self._seen[key]
        name = key_str(key[0] if len(key) == 1 else key)
        raise ContractError(
            f"{self._who}: {key_str((NEXT, *key))} of row {row} is not {name} of row {follower}, which a slice has"
            f" behind it, as it is of {same} other pairs of rows that were drawn (of {other} it is not): another"
            " trajectory begins there, of another environment or rollout, and no flag says that one ends. Its state"
            " and its returns would run into the other. Store batches [environments, time] with ndim=2, as in"
            f" LazyTensorStorage(n, ndim=2); or keep {key_str(TRAJ_IDS)}, which a collector writes; or set"
            f" {key_str(next_key(TRUNCATED))} at the last step of each rollout before it is stored, as"
            " env.rollout and Collector do with set_truncated=True; flags of other names are known by end_key or"
            " init_key. Rows that are one trajectory all the same, as where each batch was normalised by itself, have"
            f" to say so by {key_str(TRAJ_IDS)}"
        )


def _is_like(here: Tensor, after: Tensor | None, dims: int) -> bool:
    return (
        after is not None and after.dtype is here.dtype and after.shape == here.shape and here[(0,) * dims].numel() > 0
    )


def _flat(cell: Tensor, dims: int) -> Tensor:
    """``[n, elements]``, not too many of them."""
    flat = cell.reshape(cell.shape[:dims].numel(), -1)
    return flat if flat.shape[1] <= _ELEMENTS else flat[:, :: -(-flat.shape[1] // _ELEMENTS)]


def _unequal(one: Tensor, other: Tensor) -> Tensor:
    """Rows that are not the same, bit by bit: what is no number is the same as itself."""
    bits = _BITS.get(one.element_size())
    if bits is not None and not one.dtype.is_complex:
        one, other = one.view(bits), other.view(bits)
    return (one != other).any(1)


def _clearly(differs: Tensor, said: Tensor, found: Tensor) -> Tensor:
    """Those of the rows that differ which do by more than rounding."""
    if not found.dtype.is_floating_point:
        return differs
    wide = torch.float64 if found.dtype is torch.float64 else torch.float32
    low, high = found.to(wide).aminmax(dim=0)
    # Part of what it moves by, not of what it is: a price or a time moves by little of that.
    rounding = 1e-3 * (high - low) + 4 * torch.finfo(found.dtype).eps * torch.maximum(low.abs(), high.abs())
    rows = differs.nonzero().squeeze(1)
    clear = differs.clone()
    clear[rows] = ((said[rows].to(wide) - found[rows].to(wide)).abs() > rounding).any(1)
    return clear
