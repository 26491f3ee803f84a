"""How long slices are and which trajectories serve: the arguments of slice samplers."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from rl.core.errors import ContractError
from rl.replay._arguments import whole
from rl.replay._slices.draw import Span
from rl.replay._slices.index_set import Longs

__all__ = ["SliceOptions"]


class SliceOptions:
    """What slices are asked for.

    Args:
        who: for messages.
        num_slices: slices in a batch; exactly one of this and `slice_len`.
        slice_len: steps of a slice.
        strict: only trajectories that are long enough.
        pad: shorter slices are filled up.
        span: what of a slice may lie outside of its trajectory.

    Raises:
        ContractError: if an argument is out of its range.
    """

    def __init__(
        self, who: str, num_slices: Any, slice_len: Any, *, strict: bool, pad: bool, span: Any = False
    ) -> None:
        if (num_slices is None) == (slice_len is None):
            raise ContractError(
                f"{who}: give exactly one of num_slices and slice_len, got num_slices={num_slices!r} and"
                f" slice_len={slice_len!r}: the batch size says the other"
            )
        for name, value in (("num_slices", num_slices), ("slice_len", slice_len)):
            if value is not None and whole(value) is None:
                raise ContractError(f"{who}: {name} must be a whole number of at least 1, got {value!r}")
        self._who: Final = who
        self.num_slices: Final[int | None] = whole(num_slices)
        self.slice_len: Final[int | None] = whole(slice_len)
        self.strict: Final = strict
        self.pad: Final = pad
        self._span: Final = self._pair(span)
        self._spans: dict[int, Span] = {}
        self.whole: Final = strict and not any(self._span)  # every slice has all of its steps
        if self.slice_len is not None:
            self.span(self.slice_len)

    def split(self, batch_size: int) -> tuple[int, int]:
        """Number of slices, and steps of each, in a batch of `batch_size` rows.

        Raises:
            ContractError: if that is not a whole number of both.
        """
        given, name = (self.slice_len, "slice_len") if self.num_slices is None else (self.num_slices, "num_slices")
        assert given is not None
        if batch_size % given:
            raise ContractError(
                f"{self._who}: batch_size={batch_size} is no multiple of {name}={given}: the batch is made of whole"
                f" slices of one length; take {max(batch_size // given, 1) * given}, for example"
            )
        other = batch_size // given
        return (other, given) if self.num_slices is None else (given, other)

    def span(self, length: int) -> Span:
        """How many steps of a slice of `length` may lie before and behind its trajectory.

        Raises:
            ContractError: if that is all of them.
        """
        known = self._spans.get(length)
        if known is not None:
            return known
        left, right = (length - 1 if side is True else int(side) for side in self._span)
        if max(left, right) >= length:
            raise ContractError(
                f"{self._who}: span={max(left, right)} leaves nothing of a slice of {length} steps: it must be less"
            )
        self._spans[length] = left, right
        return left, right

    def refuse_short(self, length: int, lengths: Longs) -> NoReturn:
        """Say that no trajectory is long enough.

        Raises:
            ContractError: always.
        """
        longest = int(lengths.max()) if lengths.size else 0
        raise ContractError(
            f"{self._who}: none of the {lengths.size} stored trajectories has {length} steps, the longest has"
            f" {longest}; ask for shorter slices, or allow shorter ones with strict_length=False"
        )

    def __repr__(self) -> str:
        given = f"slice_len={self.slice_len}" if self.num_slices is None else f"num_slices={self.num_slices}"
        return f"{given}, strict_length={self.strict}, pad_output={self.pad}, span={self._span}"

    def _pair(self, span: Any) -> tuple[bool | int, bool | int]:
        pair = tuple(span) if isinstance(span, (tuple, list)) else (span, span)
        if len(pair) != 2 or not all(isinstance(side, bool) or side == 0 or whole(side) is not None for side in pair):
            raise ContractError(
                f"{self._who}: span is True, False, a number of steps, or a pair of these (before, behind), got"
                f" {span!r}"
            )
        return pair[0], pair[1]
