"""A state is validated before any of it is applied: damaged ones are refused, and nothing changes."""

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl.core import state as checkpoint
from rl.core.errors import CheckpointError, SpecError
from rl.replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    LinearScheduler,
    ListStorage,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)


def steps(start, stop, shape=None):
    x = torch.arange(start, stop)
    data = TensorDict(
        {
            "x": x.float(),
            "obs": torch.stack([x, x], 1),
            "text": NonTensorStack(*map(str, x.tolist())),
            ("next", "done"): (x % 5 == 4).unsqueeze(-1),
        },
        batch_size=[len(x)],
    )
    return data if shape is None else data.exclude("text").reshape(shape)


def buffer(storage=None, sampler=None, writer=None, prefetch=0, seed=0):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(20) if storage is None else storage,
        sampler=sampler,
        writer=writer,
        batch_size=6,
        prefetch=prefetch,
        generator=torch.Generator().manual_seed(seed),
    )


def filled(made, shape=None, stop=24):
    count = len(made)
    for start in range(0, stop, 8):
        if not count:
            made.extend(steps(start, start + 8, shape))
        made.sample()
    return made


PRIO = {"max_capacity": 20, "alpha": 0.6, "beta": 0.4, "backend": "torch"}
BUFFERS = {
    "tensor": lambda: filled(buffer()),
    "memmap": lambda: filled(buffer(LazyMemmapStorage(20))),
    "list": lambda: filled(buffer(ListStorage(8)), stop=8),
    "ragged": lambda: filled(buffer(ListStorage(8, ragged=True)), stop=8),
    "dataset": lambda: filled(buffer(TensorStorage(steps(0, 20)), writer=ImmutableDatasetWriter())),
    "prefetch": lambda: filled(buffer(prefetch=2)),
    "passes": lambda: filled(buffer(sampler=SamplerWithoutReplacement())),
    "priorities": lambda: filled(buffer(sampler=PrioritizedSampler(**PRIO))),
    "slices": lambda: filled(buffer(sampler=SliceSampler(slice_len=3))),
    "environments": lambda: filled(buffer(LazyTensorStorage(24, ndim=2), SliceSampler(slice_len=2)), (2, 4)),
    "slice passes": lambda: filled(buffer(sampler=SliceSamplerWithoutReplacement(slice_len=2))),
    "empty": buffer,
}


def same(one, two):
    if isinstance(one, torch.Tensor):
        alike = isinstance(two, torch.Tensor) and one.dtype == two.dtype and one.shape == two.shape
        return alike and bool(((one == two) | (one.isnan() & two.isnan())).all())
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return one == two


def places(value, path=()):
    """Paths and values of everything in a state, without values packed by rl.core.state; a list's first item only."""
    if isinstance(value, dict) and "__state__" in value:
        return
    yield path, value
    if isinstance(value, (dict, list, tuple)):
        for key in value if isinstance(value, dict) else range(min(len(value), 1 + (len(value) < 4))):
            yield from places(value[key], (*path, key))


def changed(state, path, value):
    """A copy of `state` with another value at `path`."""
    if not path:
        return value
    first, *rest = path
    copied = dict(state) if isinstance(state, dict) else list(state)
    copied[first] = changed(copied[first], rest, value)
    return tuple(copied) if isinstance(state, tuple) else copied


def wrong(value):
    """Other values than `value`, by name."""
    found = {"other type": object(), "text": "?", "number": 2.5}
    if isinstance(value, torch.Tensor):
        found |= wrong_tensors(value)
    elif isinstance(value, dict):
        found |= {"extra key": {**value, "surprise": 1}, "list": list(value)}
        for key in value:
            found[f"without {key}"] = {name: item for name, item in value.items() if name != key}
    elif isinstance(value, list) and value:
        found |= {"shorter": value[:-1], "longer": [*value, value[-1]]}
    elif type(value) is int:
        found |= {"negative": -1, "one more": value + 1, "huge": 2**80, "bool": True}
    elif type(value) is float:
        found |= {"NaN": float("nan"), "negative": -1.0, "infinite": float("inf")}
    return found


def wrong_tensors(value):
    found = {
        "dimension": value.unsqueeze(0),
        "dtype": value.to(torch.complex64),
        "meta": value.to("meta"),
        "list": value.tolist(),
    }
    if value.dim() == 2:
        found["sparse"] = value.to_sparse()
    if value.numel() and value.dtype is not torch.bool:
        found |= {"negative": value - 1_000_000, "large": value.clone().fill_(100)}
    if value.numel() and value.is_floating_point():
        found["NaN"] = value * torch.nan
    if value.dim() and len(value):
        found |= {"shorter": value[:-1], "longer": torch.cat([value, value[:1]])}
    return found


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_a_changed_state_is_refused_or_taken_as_it_is(make):
    """No other error than `CheckpointError`, and no third outcome: nothing changed, or all of it is what was given."""
    made = make()
    made.load_state_dict(made.state_dict())
    good = made.state_dict()
    refused = 0
    for path, value in places(good):
        if path == ("batch_size",) and not good["in_flight"]:
            continue  # recorded, and of another buffer perhaps
        for name, other in wrong(value).items():
            state = changed(good, path, other)
            try:
                made.load_state_dict(state)
            except CheckpointError:
                refused += 1
                assert same(made.state_dict(), good), (path, name)
                continue
            assert same(made.state_dict(), state), (path, name)
            made.load_state_dict(good)
    assert refused > 40


def cell(key, change):
    """Change the stored column `key`."""

    def mutate(state):
        cells = state["storage"]["cells"]
        state["storage"]["cells"] = [[k, change(v) if k == key else v] for k, v in cells]

    return mutate


def put(*path, value):
    def mutate(state):
        *parents, last = path
        for key in parents:
            state = state[key]
        state[last] = value

    return mutate


DAMAGES = {
    "missing column": ("tensor", lambda s: s["storage"]["cells"].pop(0), "has columns"),
    "missing rows": ("tensor", cell("x", lambda x: x[:7]), "column 'x' must be float32 .* in each of 20 rows"),
    "one row for all": ("tensor", cell("x", lambda x: x[:1]), "column 'x'"),
    "column of another dtype": (
        "tensor",
        cell("x", torch.Tensor.double),
        "column 'x'.* got a strided tensor of torch.f",
    ),
    "column of another shape": ("tensor", cell("obs", lambda x: x[:, :1]), "column 'obs'"),
    "sparse column": ("tensor", cell("obs", torch.Tensor.to_sparse), "column 'obs'.* got a sparse_coo tensor"),
    "column without values": ("tensor", cell("x", lambda x: x.to("meta")), "column 'x'.* got a meta tensor"),
    "missing texts": ("tensor", cell("text", lambda rows: rows[:3]), "column 'text'"),
    "more rows than room": ("tensor", put("storage", "len", value=21), r"len must be an integer in \[0, 20\], got 21"),
    "too many rows in a list": ("list", lambda s: s["storage"].update(rows=s["storage"]["rows"] * 2), "16 rows"),
    "another row in a list": ("list", put("storage", "rows", 3, value=torch.zeros(2)), "damaged"),
    "negative count": ("tensor", put("write_count", value=-1), "write_count must be an integer at least 0"),
    "count of another type": ("tensor", put("write_count", value="24"), "write_count"),
    "unknown field": ("tensor", put("spell", value=1), "has spell, which this version"),
    "cursor beyond the end": ("tensor", put("writer", "cursor", value=20), r"cursor must be .* in \[0, 19\]"),
    "batches of another kind": ("prefetch", put("in_flight", value=3), "in_flight must be a list"),
    "batch without data": ("prefetch", lambda s: s["in_flight"][1].pop("data"), "lacks data"),
    "index beyond the rows": (
        "prefetch",
        lambda s: s["in_flight"][0]["info"].update(index=torch.tensor([20] * 6)),
        r"outside \[0, 20\)",
    ),
    "random state": ("tensor", lambda s: s["generator"].fill_(255), "generator"),
    "order of rows that are not there": ("passes", lambda s: s["sampler"]["order"].add_(5), "order must be in"),
    "order that repeats": ("passes", lambda s: s["sampler"]["order"].fill_(3), "repeats"),
    "negative priority": ("priorities", lambda s: s["sampler"]["priority"][3].fill_(-1), "negative"),
    "infinite priority": ("priorities", lambda s: s["sampler"]["raw"][3].fill_(torch.inf), "infinite"),
    "priorities of more rows": (
        "priorities",
        lambda s: s["sampler"].update({k: torch.ones(21) for k in ("raw", "priority")}),
        "21 raw priorities",
    ),
    "steps beyond the ring": ("slices", lambda s: s["sampler"]["table"]["lines"][0, 0].add_(3), "not the steps"),
    "trajectories of fewer rows": ("slices", put("sampler", "table", "clock", value=15), "not the steps"),
    "trajectories of another table": ("slice passes", lambda s: s["sampler"]["order"].fill_(0), "repeats"),
}


@pytest.mark.parametrize("disk", [False, True], ids=["state", "folder"])
@pytest.mark.parametrize(("kind", "mutate", "text"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_refused_with_the_field_and_nothing_changes(kind, mutate, text, disk, tmp_path):
    made = BUFFERS[kind]()
    good, state = made.state_dict(), made.state_dict()
    mutate(state)
    if disk:
        if any(word in text for word in ("sparse", "meta")):
            with pytest.raises(CheckpointError, match="a checkpoint holds dense tensors"):
                checkpoint.save(tmp_path / "state.safetensors", state)
            assert not (tmp_path / "manifest.json").exists()
            return
        checkpoint.save(tmp_path / "state.safetensors", state)
    with pytest.raises(CheckpointError, match=text):
        made.loads(tmp_path) if disk else made.load_state_dict(state)
    assert same(made.state_dict(), good)


def test_a_scheduler_refuses_a_damaged_state():
    sampler = PrioritizedSampler(**PRIO)
    scheduler = LinearScheduler(sampler, "beta", 1.0, 3)
    scheduler.step()
    good = scheduler.state_dict()
    for state in ({**good, "steps": 1.5}, {**good, "steps": -1}, {**good, "initial": float("nan")}, {"steps": 1}, []):
        with pytest.raises(CheckpointError, match="LinearScheduler"):
            scheduler.load_state_dict(state)
        assert scheduler.state_dict() == good


class Stubborn:
    """A sampler that checks nothing before it changes, and then fails."""

    ran_out = False

    def __init__(self):
        self.seen = []

    def sample(self, storage, batch_size, *, generator=None):
        return torch.zeros(batch_size, dtype=torch.int64), {}

    def extended(self, index, data):
        self.seen += index.tolist()

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])
        if len(self.seen) > 8:
            raise KeyError("more")


def test_a_part_of_others_is_restored_when_it_fails():
    one, two = buffer(sampler=Stubborn()), buffer(sampler=Stubborn())
    one.extend(steps(0, 10))
    two.extend(steps(0, 3))
    before = two.state_dict()
    with pytest.raises(CheckpointError, match="more"):
        two.load_state_dict(one.state_dict())
    assert same(two.state_dict(), before)


SPARSE = [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, lambda x: x.to("meta")]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage], ids=lambda c: c.__name__)
@pytest.mark.parametrize("change", SPARSE, ids=["coo", "csr", "meta"])
def test_entries_without_dense_values_are_refused_before_a_part_is_written(change, make, first):
    made = buffer(make(20))
    batch = TensorDict({"a": torch.zeros(4, 3), "b": torch.eye(4)}, batch_size=[4])
    if not first:
        made.extend(batch)
    before = made.state_dict()
    with pytest.raises(SpecError, match=r"'b'.*nothing was written"):
        made.extend(TensorDict({"a": torch.ones(4, 3), "b": change(batch["b"])}, batch_size=[4]))
    assert same(made.state_dict(), before)
