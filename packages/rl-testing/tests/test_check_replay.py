"""The conformance kit of replay catches what breaks a promise, and passes what keeps all."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.testing import check_sampler, check_storage, check_writer


class Rows:
    """A storage that keeps every promise."""

    def __init__(self, max_size):
        self.max_size, self.rows, self.data = max_size, 0, None

    def __len__(self):
        return self.rows

    def count(self, data):
        return len(data)

    def get(self, index):
        if isinstance(index, slice):
            index = torch.arange(*index.indices(self.rows))
        places = torch.as_tensor(index).reshape(-1)
        if not bool(((places >= 0) & (places < self.rows)).all()):
            raise IndexError("outside")
        return self.data[index].clone()

    def set(self, index, data):
        places = torch.arange(*index.indices(self.max_size)) if isinstance(index, slice) else index
        cells = dict(data.items(include_nested=True, leaves_only=True))
        form = {key: (value.dtype, value.shape[1:]) for key, value in cells.items()}
        if not len(data) or len(data) != len(places) or (self.data is not None and form != self.form):
            raise ContractError("other rows")
        new = sorted(place for place in places.tolist() if place >= self.rows)
        if (
            min(places.tolist()) < 0
            or new != list(range(self.rows, self.rows + len(new)))
            or max(places) >= self.max_size
        ):
            raise IndexError("outside, or a gap")
        if self.data is None:
            self.form, self.data = form, torch.zeros_like(data[:1]).expand(self.max_size).clone()
        self.data[places] = data
        self.rows += len(new)

    def empty(self):
        self.rows = 0

    def state_dict(self):
        if self.data is None:
            return {}
        return {"rows": self.rows, "data": {".".join(k): v for k, v in self._cells()}}

    def _cells(self):
        for key, value in self.data.items(include_nested=True, leaves_only=True):
            yield (key,) if isinstance(key, str) else key, value.clone()

    def load_state_dict(self, state):
        self.rows, self.data = state.get("rows", 0), None
        if state:
            cells = {tuple(key.split(".")): value.clone() for key, value in state["data"].items()}
            self.data = TensorDict(cells, batch_size=[self.max_size])
            self.form = {k: (v.dtype, v.shape[1:]) for k, v in self.data.items(include_nested=True, leaves_only=True)}


class Gaps(Rows):
    def set(self, index, data):
        rows, self.rows = self.rows, self.max_size  # every place counts as written
        try:
            super().set(index, data)
        finally:
            places = torch.arange(*index.indices(self.max_size)) if isinstance(index, slice) else index
            self.rows = max(rows, min(int(places.max()) + 1, self.max_size)) if len(places) == len(data) else rows


class IgnoresStep(Rows):
    def get(self, index):
        return super().get(slice(index.start, index.stop) if isinstance(index, slice) else index)


class IntAnywhere(Rows):
    def get(self, index):
        return self.data[index].clone() if isinstance(index, int) else super().get(index)


class ForgetsForm(Rows):
    def empty(self):
        self.rows, self.data = 0, None


def test_a_right_storage_passes():
    check_storage(Rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Gaps, "with a gap before it"),
        (IgnoresStep, "every other row"),
        (IntAnywhere, r"get\(3\) is accepted"),
        (ForgetsForm, "other rows after empty"),
    ],
)
def test_a_wrong_storage_is_caught(make, message):
    with pytest.raises(AssertionError, match=message):
        check_storage(make)


class Uniform:
    ran_out = False

    def sample(self, storage, batch_size, *, generator=None):
        if not len(storage) or batch_size < 1:
            raise ContractError("nothing to draw")
        return self.draw(len(storage), batch_size, generator), {}

    def draw(self, rows, count, generator):
        return torch.randint(rows, (count,), generator=generator)

    def extended(self, index, data):
        pass

    def update_priority(self, index, priority):
        raise ContractError("no priorities")

    def restart(self):
        pass

    def empty(self):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class NeverLast(Uniform):
    def draw(self, rows, count, generator):
        return torch.randint(rows - 1, (count,), generator=generator)


class Unfinished(Uniform):
    def update_priority(self, index, priority):
        raise NotImplementedError


class Remembers(Uniform):
    """Draws among the most rows that it ever saw."""

    most = 0

    def draw(self, rows, count, generator):
        self.most = max(self.most, rows)
        return super().draw(self.most, count, generator)


class Reusing(Uniform):
    """Draws into one tensor."""

    def draw(self, rows, count, generator):
        self.index = getattr(self, "index", torch.zeros(count, dtype=torch.int64))
        return torch.randint(rows, (count,), generator=generator, out=self.index)


class Weighted(Uniform):
    """Draws in proportion to priority."""

    def __init__(self):
        self.priority = torch.zeros(0)

    def draw(self, rows, count, generator):
        return torch.multinomial(self.priority[:rows], count, replacement=True, generator=generator)

    def extended(self, index, data):
        self.priority = torch.ones(len(index))

    def update_priority(self, index, priority):
        self.priority[index] = priority

    def state_dict(self):
        return {"priority": self.priority.clone()}

    def load_state_dict(self, state):
        self.priority = state["priority"].clone()


class ForgetsPriorities(Weighted):
    def state_dict(self):
        return {"rows": len(self.priority)}

    def load_state_dict(self, state):
        self.priority = torch.ones(state["rows"])


class WeighsByNothing(Uniform):
    def sample(self, storage, batch_size, *, generator=None):
        index, _ = super().sample(storage, batch_size, generator=generator)
        return index, {"priority_weight": torch.full((batch_size,), torch.nan)}


def test_a_right_sampler_passes():
    check_sampler(Uniform)
    check_sampler(Weighted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NeverLast, r"rows \[22\] of 23 are never sampled"),
        (Unfinished, "update_priority raises NotImplementedError"),
        (Remembers, "indices outside of the 7 rows"),
        (Reusing, r"^reuses its buffer: indices .* \(Reusing\)"),
        (ForgetsPriorities, "^the state_dict is incomplete: samples differ after load_state_dict"),
        (WeighsByNothing, "^info 'priority_weight' is not finite"),
    ],
)
def test_a_wrong_sampler_is_caught(make, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(make)


class Ring:
    def __init__(self):
        self.cursor = 0

    def claim(self, storage, count):
        if not 1 <= count <= storage.max_size:
            raise ContractError("no such number of rows")
        return (torch.arange(count) + self.cursor) % storage.max_size

    def extended(self, index, data):
        self.cursor = int(index[-1]) + 1

    def empty(self):
        self.cursor = 0

    def state_dict(self):
        return {"cursor": self.cursor}

    def load_state_dict(self, state):
        self.cursor = state["cursor"]


class Stuck(Ring):
    def extended(self, index, data):
        pass


class GoesOn(Ring):
    def empty(self):
        pass


def test_a_right_writer_passes():
    check_writer(Ring)


@pytest.mark.parametrize(
    ("make", "message"), [(Stuck, "overwrites rows while slots are free"), (GoesOn, "leaves a gap")]
)
def test_a_wrong_writer_is_caught(make, message):
    with pytest.raises(AssertionError, match=message):
        check_writer(make)
