"""Any sequence of calls, good and bad ones, against plain arrays, and byte for byte against rl-native."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl.prio_cuda import CudaPriorityTree

EPS, ALPHA = 0.01, 0.7

_value = st.one_of(st.just(0.0), st.floats(2.0**-60, 2.0**60, width=32), st.floats(0, 2, width=32))
_good = st.tuples(st.integers(0, 10**9), _value)
_batch = st.lists(_good, min_size=1, max_size=12).flatmap(  # some of them repeated until they need several launches
    lambda batch: st.sampled_from([1, 1, 1, 130]).map(lambda times: batch * times)
)
_call = st.one_of(
    st.tuples(st.just("update"), _batch),
    st.tuples(st.just("errors"), _batch),
    st.tuples(
        st.just("bad"), st.tuples(_batch, st.sampled_from(["index", "rows", "priority", "error"]), st.integers(0))
    ),
    st.tuples(st.just("sample"), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8)),
    st.tuples(st.sampled_from(["rebuild", "copy", "state", "file"]), st.none()),
)


class Plain:
    """What a tree is to hold: a list for each of its tensors."""

    def __init__(self, capacity, dtype):
        self.rows = max(1, capacity - 2)
        self.priority, self.raw, self.largest = [0.0] * capacity, torch.zeros(capacity, dtype=dtype), 0.5

    def write(self, index, error):
        for i, e in zip(index, error.tolist(), strict=True):
            self.priority[i], self.raw[i] = (abs(e) + EPS) ** ALPHA, e
            self.largest = max(self.largest, abs(e))


class Case:
    """A tree, its tensors beside it, and what they are to hold."""

    def __init__(self, make, capacity, dtype, folder):
        self.tree, self.plain, self.dtype = make(capacity, dtype), Plain(capacity, dtype), dtype
        self.device, self.file = self.tree.device, folder / "tree"
        self.raw = torch.zeros(capacity, dtype=dtype, device=self.device)
        self.largest = torch.full((), 0.5, dtype=dtype, device=self.device)

    def tensors(self, batch, limit):
        """Indices and values of a batch; of values every second is negative where they are errors."""
        return torch.tensor([i % limit for i, _ in batch]), torch.tensor([x for _, x in batch], dtype=self.dtype)

    def errors(self, index, error):
        self.tree.update_from_errors(
            index.to(self.device),
            error.to(self.device),
            EPS,
            ALPHA,
            raw=self.raw,
            largest=self.largest,
            rows=self.plain.rows,
        )

    def call(self, name, what):
        getattr(self, f"_{name}")(what)

    def _update(self, batch):
        index, value = self.tensors(batch, self.tree.capacity)
        self.tree.update(index.to(self.device), value.to(self.device))
        for i, x in zip(index.tolist(), value.tolist(), strict=True):
            self.plain.priority[i] = x

    def _errors(self, batch):
        index, error = self.tensors(batch, self.plain.rows)
        error[::2] *= -1
        self.errors(index, error)
        self.plain.write(index.tolist(), error)

    def _bad(self, what):
        batch, wrong, place = what
        index, value = self.tensors(batch, self.plain.rows)
        place %= len(batch)
        if wrong in {"index", "rows"}:
            index[place] = self.tree.capacity if wrong == "index" else self.plain.rows
        else:
            value[place] = -1 if wrong == "priority" else math.nan
        if wrong in {"index", "priority"}:
            self.tree.update(index.to(self.device), value.to(self.device))
        else:
            self.errors(index, value)
        with pytest.raises(IndexError if wrong in {"index", "rows"} else ValueError, match=f"position {place} "):
            self.tree.check()

    def _sample(self, u):
        index, weight = self.tree.sample_weighted(
            len(u), 0.4, u=torch.tensor(u, dtype=torch.float64, device=self.device)
        )
        if not any(self.plain.priority):
            with pytest.raises(ValueError, match="zero"):
                self.tree.check()
            return
        least, ends = min(p for p in self.plain.priority if p > 0), torch.tensor(self.plain.priority).double().cumsum(0)
        for i, w, x in zip(index.tolist(), weight.tolist(), u, strict=True):
            drawn = self.plain.priority[i]
            assert drawn > 0
            assert w == pytest.approx((drawn / least) ** -0.4, rel=1e-5)
            assert ends[i] - drawn * (1 + 1e-5) <= x * ends[-1] * (1 + 1e-5) <= ends[i] * (1 + 3e-5)

    def _rebuild(self, _):
        self.tree.rebuild()

    def _copy(self, _):
        self.tree = CudaPriorityTree.from_buffer(self.tree.buffer.clone())

    def _state(self, _):
        state = self.tree.state_dict()
        self.tree = type(self.tree)(self.tree.capacity, dtype=self.dtype, device=self.device)
        self.tree.load_state_dict(state)

    def _file(self, _):
        self.tree.save(self.file)
        self.tree = CudaPriorityTree.load(self.file, device=self.device)

    def compare(self):
        self.tree.check()
        rel = 1e-6 if self.dtype == torch.float32 else 1e-12
        held = self.tree.get(torch.arange(self.tree.capacity, device=self.device)).tolist()
        assert held == pytest.approx(self.plain.priority, rel=rel, abs=0)
        self.plain.priority = held  # to the last bit: what is drawn is compared with it
        assert torch.equal(self.raw.cpu(), self.plain.raw)
        assert self.largest.item() == self.plain.largest
        assert self.tree.total().item() == pytest.approx(math.fsum(held), rel=1e-13)
        assert self.tree.max().item() == max(held)
        assert self.tree.min().item() == min((p for p in held if p > 0), default=math.inf)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([1, 3, 16, 130, 1030]),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(_call, min_size=1, max_size=10),
)
def test_any_sequence_of_calls_equals_plain_arrays(make, tmp_path, capacity, dtype, calls):
    case = Case(make, capacity, dtype, tmp_path)
    for name, what in calls:
        case.call(name, what)
        case.compare()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([1, 16, 130, 1030]),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(st.tuples(st.sampled_from(["here", "there", "rebuild"]), _batch), min_size=1, max_size=8),
)
def test_a_tree_that_moves_between_both_packages_keeps_its_bytes(make, capacity, dtype, calls):
    """Updates here and there by turns, on the same bytes, against one that stays in rl-native."""
    native = pytest.importorskip("rl.native").NativePriorityTree
    tree, moving, stays = make(capacity, dtype), None, native(capacity, dtype=dtype)
    for name, batch in calls:
        index, value = torch.tensor([i % capacity for i, _ in batch]), torch.tensor([x for _, x in batch], dtype=dtype)
        if name == "rebuild":
            tree.rebuild()
            stays.rebuild()
        elif name == "there":
            moving = native.from_buffer(tree.buffer.cpu().clone())
            moving.update(index, value)
            stays.update(index, value)
            tree = CudaPriorityTree.from_buffer(moving.buffer.to(tree.device, copy=True))
        else:
            tree.update(index.to(tree.device), value.to(tree.device))
            stays.update(index, value)
        assert torch.equal(tree.buffer.cpu(), stays.buffer), name
    tree.check()
