"""Sampler that prefers rows of recent policies."""

from __future__ import annotations

from collections.abc import Callable
from math import nextafter
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Storage
from rl.core.keys import NestedKey, key_str, unwrap
from rl.replay._arguments import check_rows
from rl.replay._indices import distinct
from rl.replay._kinds import batch_shape, stacked
from rl.replay._layout import flatten, leading
from rl.replay._state import Fields
from rl.replay._trajectories import read_columns
from rl.replay.samplers._base import SamplerBase


@final
class StalenessAwareSampler(SamplerBase):
    """Sampler with weights that decay with the age of the policy that took a step.

    The staleness of a row is `consumer_version`, which the training loop sets, minus the stored version of the policy,
    at least 0. A row is sampled in proportion to the weight of its staleness, and not at all if that is above
    `max_staleness`. Batches have different rows, as long as enough rows are fresh enough; larger ones are sampled with
    replacement. The info of a sample has ``staleness``, ``[n]``.

    Reads `version_key` of all rows once after each write, and computes weights once after each change of the version.

    Args:
        max_staleness: Largest staleness of a sampled row; -1 for no limit. May be set later.
        staleness_weight_fn: Function that returns weights ``[n]``, finite and not negative, of staleness ``[n]``; ``1 /
            (staleness + 1)`` if None.
        version_key: Entry of a row with the version of the policy, one integer; `rl.envs.PolicyVersion` writes it.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = StalenessAwareSampler(max_staleness=1)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=4)
        >>> _ = buffer.extend(TensorDict(policy_version=torch.arange(3).repeat_interleave(2), batch_size=[6]))
        >>> sampler.consumer_version = 2
        >>> buffer.sample()["staleness"].sort().values.tolist()
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        max_staleness: int = -1,
        staleness_weight_fn: Callable[[Tensor], Tensor] | None = None,
        version_key: NestedKey = "policy_version",
    ) -> None:
        self.version_key: Final = unwrap(version_key)
        self._weight = _decay if staleness_weight_fn is None else staleness_weight_fn
        self._consumer_version, self._max_staleness = 0, -1
        self._dims = 1  # of a batch, which count rows
        self._writes = 0  # that were reported
        self._versions: tuple[Any, Tensor] | None = None  # of the rows, and of which writes
        self._weights: tuple[Tensor, Tensor, Tensor] | None = None  # see `_weights_of`
        self._able = 0  # rows with a weight above zero
        self.max_staleness = max_staleness

    @property
    def consumer_version(self) -> int:
        """Version of the policy that learns."""
        return self._consumer_version

    @consumer_version.setter
    def consumer_version(self, value: int) -> None:
        self._consumer_version = _integer("consumer_version", value)
        self._weights = None

    def increment_consumer_version(self) -> None:
        """Add one to `consumer_version`."""
        self.consumer_version += 1

    @property
    def max_staleness(self) -> int:
        """Largest staleness of a sampled row; -1 for no limit."""
        return self._max_staleness

    @max_staleness.setter
    def max_staleness(self, value: int) -> None:
        self._max_staleness = _integer("max_staleness", value)
        self._weights = None

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices int64 ``[batch_size]``, with their ``staleness`` ``[batch_size]``.

        Raises:
            ContractError: If the storage is empty, rows have no version, or all are too old.
            ArgumentError: If `batch_size` is below 1.
            ArgumentError: If a weight is negative, infinite or NaN.
        """
        rows = check_rows("StalenessAwareSampler", storage, batch_size)
        weight, total, staleness = self._weights_of(storage, rows)
        below = nextafter(total[-1].item(), 0)  # so that there is a larger sum
        device = "cpu" if generator is None else generator.device

        def draw(n: int) -> Tensor:
            mark = torch.rand(n, dtype=torch.float64, generator=generator, device=device).cpu()
            return torch.searchsorted(total, mark.mul_(below), right=True)

        if batch_size > self._able:
            index = draw(batch_size)
        else:
            index = torch.from_numpy(distinct(draw, batch_size, rounds=4))
            if len(index) < batch_size:  # the next ones are the first arrivals of Poisson processes with these rates
                rate = weight.index_fill(0, index, 0)
                arrival = torch.empty(rows, dtype=torch.float64, device=device).exponential_(generator=generator)
                first = (arrival.cpu() / rate).topk(batch_size - len(index), largest=False).indices
                index = torch.cat((index, first))
        return index, {"staleness": staleness[index]}

    def attach(self, storage: Storage) -> None:
        """Sample rows of `storage`; called by the buffer that owns both."""
        self._dims = getattr(storage, "ndim", 1)

    def admit(self, data: Any) -> None:
        """Check a batch before it is written.

        Raises:
            ContractError: If it has not one version for each row.
        """
        if isinstance(data, list) and all(isinstance(row, TensorDictBase) for row in data):
            for row in data:  # which may differ in shape
                self._check(row.get(self.version_key, None), row.batch_size[: self._dims - 1].numel())
        else:
            batch = stacked(data) if isinstance(data, list) else data
            count = leading(batch_shape(batch, self._dims), self._dims).numel()
            self._check(flatten(batch, self._dims).get(self.version_key), count)

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Read the versions again before the next sample."""
        self._writes += 1

    def empty(self) -> None:
        """Forget the versions of rows; `consumer_version` stays."""
        self._versions = self._weights = None

    def state_dict(self) -> dict[str, Any]:
        """`consumer_version` and `max_staleness`."""
        return {"consumer_version": self._consumer_version, "max_staleness": self._max_staleness}

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002
        fields = Fields("StalenessAwareSampler", state, ("consumer_version", "max_staleness"))
        version, most = (fields.integer(name, low=-(2**62)) for name in ("consumer_version", "max_staleness"))
        self.empty()
        self.consumer_version, self.max_staleness = version, most

    def __repr__(self) -> str:
        return (
            f"StalenessAwareSampler(consumer_version={self.consumer_version}, max_staleness={self.max_staleness},"
            f" version_key={self.version_key!r})"
        )

    def _weights_of(self, storage: Storage, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and their cumulative sum, float64, and staleness of all rows, each ``[rows]``."""
        of = self._writes, rows, getattr(storage, "revision", None)
        if self._versions is None or self._versions[0] != of:
            self._versions, self._weights = (of, self._read(storage, rows)), None
        if self._weights is None:
            staleness = (self._consumer_version - self._versions[1]).clamp_(min=0)
            weight = self._weight(staleness).double()
            if weight.shape != staleness.shape or not bool((weight.isfinite() & (weight >= 0)).all()):
                raise ArgumentError(
                    "StalenessAwareSampler: staleness_weight_fn must return one finite weight of at least 0 for each of"
                    f" {rows} rows, got {list(weight.shape)} from {float(weight.min())} to {float(weight.max())}"
                )
            if self._max_staleness >= 0:
                weight = weight.masked_fill(staleness > self._max_staleness, 0)
            able, total = int(weight.count_nonzero()), weight.cumsum(0)
            if not able:
                raise ContractError(
                    f"StalenessAwareSampler: no row has a weight above zero; staleness is {int(staleness.min())} to"
                    f" {int(staleness.max())}, consumer_version={self._consumer_version} and"
                    f" max_staleness={self._max_staleness}. Allow older rows, or write new ones"
                )
            self._able, self._weights = able, (weight, total, staleness)
        return self._weights

    def _read(self, storage: Storage, rows: int) -> Tensor:
        versions = read_columns(storage, [self.version_key], None).get(self.version_key)
        self._check(versions, rows)
        assert versions is not None
        return versions.reshape(-1).to("cpu", torch.int64)

    def _check(self, versions: Any, rows: int) -> None:
        if not isinstance(versions, Tensor) or versions.numel() != rows or versions.is_complex():
            tensor = isinstance(versions, Tensor)
            found = f"have {versions.dtype} {list(versions.shape)} there" if tensor else "do not have it"
            raise ContractError(
                "StalenessAwareSampler reads one version of the policy for each row under"
                f" {key_str(self.version_key)}, and the {rows} rows {found}; append the transform PolicyVersion to the"
                " environment, or name another entry with version_key="
            )


def _integer(name: str, value: Any) -> int:
    return as_integer(value, "StalenessAwareSampler", name)


def _decay(staleness: Tensor) -> Tensor:
    return 1 / (staleness.double() + 1)
