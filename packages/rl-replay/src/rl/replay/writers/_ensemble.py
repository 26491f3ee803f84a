"""Writers of several storages as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, final

from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage, Writer
from rl.replay._state import Apply, Stateful
from rl.replay.storages._ensemble import load_all

__all__ = ["WriterEnsemble"]


@final
class WriterEnsemble(Stateful):
    """The writers of the members of an ensemble, which is read only itself: write to a member.

    Args:
        writers: one for each storage.
    """

    def __init__(self, *writers: Writer) -> None:
        self.writers: Final = writers

    def claim(self, storage: Storage, count: int) -> NoReturn:
        """Refuse.

        Raises:
            ContractError: always.
        """
        raise ContractError(
            f"WriterEnsemble: {count} rows for an ensemble of {len(storage)} rows, which is read only: write to one of"
            " its members, ensemble[0].extend(batch) for example"
        )

    def extended(self, index: Tensor, data: Any) -> None:
        """Do nothing: no row is written here."""

    def empty(self) -> None:
        """Start each member again."""
        for writer in self.writers:
            writer.empty()

    def state_dict(self) -> dict[str, Any]:
        """The states of the writers."""
        return {"writers": [one.state_dict() for one in self.writers]}

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:  # noqa: ARG002
        """Validate a state without applying it; see `Stateful.prepare_load`.

        Raises:
            CheckpointError: if `state` is damaged, or of other writers.
        """
        return load_all("WriterEnsemble", "writers", self.writers, state)

    def __repr__(self) -> str:
        return f"WriterEnsemble({', '.join(map(repr, self.writers))})"
