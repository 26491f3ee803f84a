"""What a sampler may have beside the protocol; looked up by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rl.core.interfaces import Sampler, Storage

__all__ = ["Extra"]


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Extra:
    """The optional members of a sampler; what is absent does nothing.

    Args:
        attach: told the storage, once, before anything is written through the buffer.
        admit: shown a batch before it is written; raises if it cannot be served.
        draw: as `Sampler.sample`, of which it is another form: it leaves to `mark` what needs the rows.
        mark: given the rows of a draw, a TensorDict, and its info, writes into both.

    Example:
        >>> from rl.replay import RandomSampler
        >>> Extra.of(RandomSampler(), marks=True).admit(None)
    """

    attach: Callable[[Storage], None]
    admit: Callable[[Any], None]
    draw: Callable[..., tuple[Tensor, dict[Any, Any]]]
    mark: Callable[[Any, dict[Any, Any]], None]

    @classmethod
    def of(cls, sampler: Sampler, *, marks: bool) -> Extra:
        """Those of `sampler`; without `marks`, its `draw` and `mark` are passed by."""
        attach, admit = (getattr(sampler, name, _nothing) for name in ("attach", "admit"))
        draw, mark = getattr(sampler, "draw", None), getattr(sampler, "mark", None)
        if draw is None or mark is None or not marks:
            return cls(attach, admit, sampler.sample, _nothing)
        return cls(attach, admit, draw, mark)
