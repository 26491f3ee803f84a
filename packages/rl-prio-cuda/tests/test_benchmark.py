"""The benchmark where there is no GPU: all of it runs, with a computer in the place of the GPU."""

import json
import re
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from rl.prio_cuda import CudaPriorityTree
from rl.prio_cuda._layout import layout

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """Its files, which are no package."""
    monkeypatch.syspath_prepend(str(FOLDER))


class Event:
    """Of torch, without a GPU."""

    def record(self):
        self.at = time.perf_counter()

    def query(self):
        return False

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


@pytest.fixture
def computer(on_host):
    """The CPU as a `Gpu`: nothing is asynchronous, a graph is the call itself."""
    from prio_gpu import Gpu

    answers = {
        "says": lambda self: "a computer",
        "cache": lambda self: 2**14,
        "synchronize": lambda self: None,
        "event": lambda self: Event(),
        "hold": lambda self, microseconds: None,
        "capture": lambda self, call: call(),
        "aside": lambda self: nullcontext(),
        "allocated": lambda self: 0,
        "forget": lambda self: None,
    }
    asked = {name for name in vars(Gpu) if not name.startswith("_")}
    assert set(answers) == asked  # all of it, so that nothing here reaches for CUDA
    answers["capture"] = lambda self, call: (call(), call)[1]
    return type("Computer", (Gpu,), answers)(torch.device("cpu"))


def _follow(places, at, steps):
    for _ in range(steps % 50):
        at.copy_(places[at])


def test_all_of_it_runs(computer, on_host, capsys):
    from prio_sides import AbsentError, ours, sides
    from tree import Plan, run

    def absent(rows, device):
        raise AbsentError("no GPU is here")

    makes = sides() | {"triton": absent, "warps": absent}
    assert makes["cuda"].__qualname__ == ours(CudaPriorityTree).__qualname__
    plan = Plan((3000, 200), (8, 64), rounds=2, seconds=1e-4, draws=2000, repeats=1, copied=2**16)
    found = run(computer, plan, makes, {"library": CudaPriorityTree}, _follow, on_host.rl_prio_single)
    assert set(found.cells) == {(rows, size) for rows in plan.rows for size in plan.sizes}
    for times in found.cells.values():
        kinds = {(side, kind) for side in ("cuda", "cpu", "sums", "torch") for kind in ("sample", "update")}
        kinds |= {("graph", kind) for kind in ("draw", "sample", "update", "both")} | {("cuda", "draw")}
        assert set(times) == kinds
        assert all(each.gpu > 0 and each.host > 0 for each in times.values())
    assert not any(found.checks.values())
    assert set(found.absent) == {"triton", "warps", "torchrl"}
    assert not found.left_out
    said = capsys.readouterr().out
    assert "TorchRL is left out: no build of its CUDA trees is here" in said
    assert len(re.findall(r"^(?:hit |MISS|----)  ", said, re.MULTILINE)) == len(found.goals())
    again = json.loads(json.dumps(found.as_json()))
    assert len(again["times"]) == sum(map(len, found.cells.values()))
    assert again["machine"]["bandwidth"] > 0


def test_what_does_not_fit_into_the_minutes_is_said(computer, on_host, capsys):
    from prio_sides import sides
    from tree import Plan, run

    plan = Plan((200,), (8,), rounds=1, seconds=1e-4, draws=2000, repeats=1, copied=2**16, minutes=0)
    found = run(computer, plan, sides(), {"library": CudaPriorityTree}, None, on_host.rl_prio_single)
    assert not found.cells
    assert not found.machine.chased
    said = capsys.readouterr().out
    assert "left out: 200 rows, for lack of time" in said
    assert "not measured: left out of this run" in said


def test_a_capacity_that_does_not_fit_into_memory_is_left_out(computer, capsys):
    from prio_gpu import Machine
    from prio_sides import ours
    from tree import Found, Plan, compare

    def small(rows, device):
        if rows > 100:
            raise torch.cuda.OutOfMemoryError
        return ours(CudaPriorityTree)(rows, device)

    found = Found(machine=Machine(1.0, 1.0, 1e6))
    compare(computer, Plan((200, 100), (8,), rounds=1, seconds=1e-4), found, {"cuda": small}, lambda: False)
    assert set(found.cells) == {(100, 8)}
    assert found.left_out == ["200 rows, for lack of memory"]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    from tree import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--quick"]) == 1
    assert capsys.readouterr().out.startswith("This measures a GPU, and torch sees none")


def test_without_triton_the_rest_is_measured(monkeypatch, capsys):
    import prio_sides
    import tree

    for module in (prio_sides, tree):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert tree.follow_of() is None
    assert "Triton is not installed" in capsys.readouterr().out
    for name in ("triton", "warps"):
        with pytest.raises(prio_sides.AbsentError, match="Triton is not installed"):
            prio_sides.sides()[name](10, torch.device("cpu"))


def test_the_command_line():
    from tree import ROWS, SIZES, parse

    plan, path = parse([])
    assert (plan.rows, plan.sizes, plan.minutes, path) == (ROWS, SIZES, 8, None)
    assert sorted(plan.rows) == [10**4, 10**5, 10**6, 10**7, 10**8]
    assert {32, 256, 65_536} <= set(plan.sizes)
    plan, path = parse(["--quick", "--minutes", "2", "--json", "all.json"])
    assert (plan.rows, plan.minutes, path) == ((10**6,), 2, Path("all.json"))


def test_a_ring_goes_through_every_line():
    from prio_gpu import ring

    places, here, seen = ring(100, torch.device("cpu")), 0, []
    for _ in range(100):
        seen.append(here)
        here = places[here].item()
    assert here == 0
    assert sorted(seen) == list(range(0, 1600, 16))


def test_medians_and_spread():
    from prio_gpu import Time, middle

    got = middle([Time(float(x), 2.0 * x, 3.0 * x) for x in (5, 1, 2, 4, 3)])
    assert (got.gpu, got.host, got.cpu) == (3, 6, 9)
    assert got.spread == pytest.approx((4.6 - 1.4) / 3)
    assert got.whole == 6
    assert middle([Time(7, 1, 1)]) == Time(7, 1, 1)


def _machine(**given):
    from prio_gpu import Machine

    return Machine(
        **({"gap": 2.0, "graph_gap": 1.0, "bandwidth": 4e6, "near": 0.2, "far": 0.5, "cache": 60 * 2**20} | given)
    )


def test_the_launches_that_an_update_takes_leave_room_for_the_goals():
    from prio_report import DESIGN, floor

    for (kind, batch), estimate in DESIGN.items():
        got = floor(_machine(gap=2.3, near=0.22), 10**6, batch, "draw" if kind == "sample" else kind)
        assert 0.5 * estimate < got < 1.5 * estimate, (kind, batch)


def test_a_floor_by_hand():
    from prio_report import floor, launches, waits

    # 10^6 rows: six levels and the leaves; 65536 entries take elect, write, two wide levels and the top.
    assert waits(_machine(), 10**6) == pytest.approx(7 * 0.2)
    assert [launches(10**6, n, "update") for n in (1024, 1025)] == [1, 5]
    assert [launches(10**6, 32, kind) for kind in ("draw", "sample")] == [1, 2]
    assert floor(_machine(), 10**6, 65_536, "update") == pytest.approx(5 * 2 + 2 * 7 * 0.2 + 65_536 * 64 * 4 / 8e6)
    # 10^8 rows are about 510 MB: the leaves and the lowest level do not fit into the cache.
    plan = layout(10**8, 32)
    assert plan.at[0] < 60 * 2**20 < plan.leaves
    assert waits(_machine(), 10**8) == pytest.approx((len(plan.at) - 1) * 0.2 + 2 * 0.5)


def test_goals_are_hit_missed_or_not_known():
    from prio_gpu import Time
    from prio_report import goals

    def times(mine, theirs):
        each = {"sample": Time(mine, 1, 1), "update": Time(mine, 1, 1)}
        found = {("cuda", kind): time for kind, time in each.items()}
        return found | ({("torchrl", kind): Time(theirs, 1, 1) for kind in each} if theirs else {})

    cells = {(10**6, 256): times(6.0, 60.0), (10**6, 65_536): times(16.0, None)}
    found = {goal.what: goal for goal in goals(cells, {"draws": "", "events": "late"}, {"torchrl": "no build"})}
    said = {what: str(goal)[:4] for what, goal in found.items()}
    near = "at 10^6 rows, time of the GPU"
    assert said == {
        f"sample of 256 {near}": "hit ",  # 1.5 times 4
        f"sample of 2,048 {near}": "----",
        f"sample of 65,536 {near}": "MISS",
        f"update of 256 {near}": "hit ",
        f"update of 2,048 {near}": "----",
        f"update of 65,536 {near}": "hit ",
        f"update of 256 {near} beside TorchRL's": "MISS",  # ten times
        f"update of 65,536 {near} beside TorchRL's": "----",
        f"sample of 256 {near} beside TorchRL's": "hit ",
        f"sample of 65,536 {near} beside TorchRL's": "----",
        "draws": "hit ",
        "events": "MISS",
    }
    assert "not measured: no build" in str(found[f"update of 65,536 {near} beside TorchRL's"])
    assert "left out of this run" in str(found[f"sample of 2,048 {near}"])
    assert str(found["draws"]) == "hit   draws"
    assert str(found["events"]) == "MISS  events: late"


@pytest.mark.parametrize(
    ("one", "several", "last"),
    [({32: 5, 64: 6}, {32: 6, 64: 6}, 64), ({32: 7, 64: 1}, {32: 6, 64: 6}, 0), ({64: 9, 32: 1}, {32: 2, 64: 8}, 32)],
)
def test_the_crossover_is_the_last_batch_before_one_block_is_slower(one, several, last):
    from prio_report import crossover

    assert crossover(one, several) == last


def test_draws_that_are_not_in_proportion_are_seen(computer):
    from prio_checks import draws

    class Narrow(CudaPriorityTree.__mro__[1]):
        """Draws with 12 bits."""

        twin = False

        def sample(self, n):
            u = torch.rand(n, dtype=torch.float64).mul(2**12).floor().div(2**12)
            return super().sample(n, u=u)

    assert draws(computer, CudaPriorityTree, rows=20_000, count=10**5) == ""
    assert "standard deviations" in draws(computer, Narrow, rows=20_000, count=10**5)


def test_repeated_indices_are_judged_by_an_array():
    from prio_checks import last_of

    index, value = torch.randint(50, (400,)), torch.rand(400)
    array = torch.zeros(60)
    for i, x in zip(index.tolist(), value, strict=True):
        array[i] = x
    assert torch.equal(last_of(index, value, 60), array)


class Broken(CudaPriorityTree.__mro__[1]):
    """Updates nothing."""

    twin = False

    def update(self, index, priority):
        pass

    update_from_errors = update


def test_memory_that_is_kept_is_seen(computer):
    from prio_checks import memory

    class Hoarder(CudaPriorityTree.__mro__[1]):
        twin, kept = False, []

        def update_from_errors(self, index, *others):
            self.kept.append(index)

    computer.allocated = lambda: sum(index.nbytes for index in Hoarder.kept)
    assert "bytes were kept" in memory(computer, Hoarder)
    Hoarder.kept.clear()
    assert memory(computer, CudaPriorityTree) == ""


@pytest.mark.parametrize("name", ["repeated", "streams", "events", "errors"])
def test_a_tree_that_does_nothing_fails_the_checks(computer, name):
    import prio_checks

    assert getattr(prio_checks, name)(computer, Broken)
    assert getattr(prio_checks, name)(computer, CudaPriorityTree) == ""


def test_a_side_that_is_absent_or_too_large_is_left_out(capsys):
    from prio_sides import AbsentError, Side, made

    def never(rows, device):
        raise AbsentError("never built")

    def small(rows, device):
        if rows > 10:
            raise torch.cuda.OutOfMemoryError
        return Side(None, None)

    absent = {}
    assert list(made({"triton": never, "torch": small}, 100, torch.device("cpu"), absent)) == []
    assert list(made({"triton": never, "torch": small}, 10, torch.device("cpu"), absent)) == ["torch"]
    assert absent == {"triton": "never built"}
    assert capsys.readouterr().out.count("left out") == 2
