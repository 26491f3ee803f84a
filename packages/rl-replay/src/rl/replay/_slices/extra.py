"""What a sampler may have beside the protocol; looked up by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Sampler, Storage
from rl.core.keys import INDEX

__all__ = ["Annotated", "Extra"]


class Annotated:
    """Rows that were made with what is known about their draw; to write it into them afterwards costs more."""

    __slots__ = ("data",)

    def __init__(self, data: TensorDictBase) -> None:
        self.data = data


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Extra:
    """The optional members of a sampler; what is absent does nothing.

    Args:
        attach: told the storage, before anything is written through the buffer, and again when a state was loaded.
        admit: shown a batch before it is written; raises if it cannot be served.
        draw: as `Sampler.sample`, of which it is another form: it leaves to `mark` what needs the rows.
        gather: reads the rows of a draw from the storage, in place of `Storage.get`; given the info of the draw, too,
            which it leaves as it is. Where that has ``index``, the rows may have it, and all tensors of the info, as
            `Annotated`.
        mark: given the rows of a draw, a TensorDict, and its info, writes into both.

    Example:
        >>> from rl.replay import RandomSampler
        >>> Extra.of(RandomSampler(), marks=True).admit(None)
    """

    attach: Callable[[Storage], None]
    admit: Callable[[Any], None]
    draw: Callable[..., tuple[Tensor, dict[Any, Any]]]
    gather: Callable[[Storage, Tensor, dict[Any, Any]], Any]
    mark: Callable[[Any, dict[Any, Any]], None]
    reads: bool = False
    """Whether `gather` is the sampler's own."""

    @classmethod
    def of(cls, sampler: Sampler, *, marks: bool) -> Extra:
        """Those of `sampler`; without `marks`, what `sample` says is written into the rows in place of `mark`."""
        attach, admit = (getattr(sampler, name, _nothing) for name in ("attach", "admit"))
        draw, mark = getattr(sampler, "draw", None), getattr(sampler, "mark", None)
        if draw is None or mark is None:
            return cls(attach, admit, sampler.sample, _get, _nothing)
        if not marks:
            return cls(attach, admit, sampler.sample, _get, _write)
        gather = getattr(sampler, "gather", None)
        return cls(attach, admit, draw, _get if gather is None else gather, mark, gather is not None)


def _get(storage: Storage, index: Tensor, info: dict[Any, Any]) -> Any:  # noqa: ARG001  others use it
    return storage.get(index)


def _write(data: Any, info: dict[Any, Any]) -> None:
    """Write all of `info` but the index into a batch that a `collate_fn` made; other batches than TensorDicts stay."""
    if not isinstance(data, TensorDictBase):
        return
    index = info[INDEX]
    if data.numel() != index.numel():
        raise ContractError(
            f"collate_fn made a batch {list(data.batch_size)} of {index.numel()} rows, so that the flags of its slices"
            " cannot be written: let it keep the rows, and change their number in `transform`"
        )
    for key, value in info.items():
        if key != INDEX and isinstance(value, Tensor):
            data.set(key, value.reshape(*data.batch_size, *value.shape[index.dim() :]))
