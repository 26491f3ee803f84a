"""Slices that run from one environment into another are noticed by what is stored; nothing else is taken for that."""

import math

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)

NAMES = ("collector", "traj_ids")


def walks(lanes: int, steps: int, *, dtype: torch.dtype = torch.float32, sizes: int = 3) -> TensorDict:
    """Random walks side by side, ``[lanes, steps]``, none of which ends."""
    path = torch.randn(lanes, steps + 1, sizes).cumsum(1).to(dtype)
    shape = [lanes, steps]
    flags = torch.zeros(lanes, steps, 1, dtype=torch.bool)
    after = TensorDict(observation=path[:, 1:], done=flags, truncated=flags.clone(), batch_size=shape)
    return TensorDict(observation=path[:, :-1], next=after, batch_size=shape).clone()


def filled(data: TensorDict, *, ndim: int = 1, **options) -> TensorDictReplayBuffer:
    options = {"sampler": SliceSampler(slice_len=8), "batch_size": 256, **options}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4096, ndim=ndim), **options)
    buffer.extend(data)
    return buffer


def is_silent(buffer: ReplayBuffer, draws: int = 20) -> None:
    for _ in range(draws):
        buffer.sample()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("sampler", [SliceSampler, SliceSamplerWithoutReplacement])
def test_environments_one_behind_the_other_are_refused(sampler):
    buffer = filled(walks(4, 100).reshape(-1), sampler=sampler(slice_len=300), batch_size=300)
    with pytest.raises(
        ContractError, match=r"\('next', 'observation'\) of row 99 is not 'observation' of row 100"
    ) as said:
        is_silent(buffer, 40)
    for part in ("ndim=2", "('collector', 'traj_ids')", "('next', 'truncated')"):
        assert part in str(said.value)


@pytest.mark.parametrize(
    "options", [{"pad_output": True, "strict_length": False}, {"strict_length": False}, {"span": 3}]
)
def test_slices_of_every_form_are_looked_at(options):
    with pytest.raises(ContractError, match="not 'observation' of row"):
        is_silent(filled(walks(8, 20).reshape(-1), sampler=SliceSampler(slice_len=8, **options)))


def test_rows_of_other_storages_are_looked_at():
    data = walks(8, 20).reshape(-1)
    listed = ReplayBuffer(storage=ListStorage(4096), sampler=SliceSampler(slice_len=8), batch_size=64)
    listed.extend(list(data.unbind(0)))
    own = filled(data, collate_fn=lambda rows: rows)
    for buffer in (listed, own, filled(data, prefetch=2)):
        with pytest.raises(ContractError, match="not 'observation' of row"):
            is_silent(buffer)


def test_rollouts_one_behind_the_other_are_refused_in_any_storage():
    for ndim, remedy in ((1, "ndim=2"), (2, "before it is stored")):
        buffer = filled(walks(4, 16), ndim=2) if ndim == 2 else filled(walks(1, 16)[0])
        for _ in range(8):  # each begins with a reset, and no flag says that the one before ended
            buffer.extend(walks(4, 16) if ndim == 2 else walks(1, 16)[0])
        with pytest.raises(ContractError, match=remedy):
            is_silent(buffer)


@pytest.mark.parametrize("remedy", ["truncated", "done", "names", "ndim", "episode", "is_init"])
def test_each_remedy_is_one(remedy):
    data, ndim = walks(4, 32), 1
    if remedy in {"truncated", "done"}:
        data["next", remedy][:, -1] = True
    elif remedy == "ndim":
        ndim = 2
    elif remedy == "is_init":  # the state begins anew there: slices over the ends of episodes may be wanted
        data["is_init"] = torch.zeros(4, 32, 1, dtype=torch.bool)
        data["is_init"][:, 0] = True
    else:
        data[NAMES if remedy == "names" else "episode"] = torch.arange(4).unsqueeze(1).expand(4, 32).clone()
    is_silent(filled(data if ndim == 2 else data.reshape(-1), ndim=ndim))


def test_nothing_is_said_of_rows_without_what_comes_next():
    data = walks(8, 20).reshape(-1)
    is_silent(filled(data.exclude(("next", "observation"))))
    is_silent(filled(data.exclude("observation")))


def multi_step(data: TensorDict) -> None:
    """What comes next is what comes three steps later, where that is in the row."""
    path = data["next", "observation"]
    data["next", "observation"] = torch.cat((path[:, 2:], path[:, -1:].expand(-1, 2, -1)), 1)


def cue_alone(data: TensorDict) -> None:
    """An observation that hardly ever changes, and what comes next three steps later."""
    for leaf in (data["observation"], data["next", "observation"]):
        leaf.zero_()
    data["observation"][:, ::20] = 1
    data["next", "observation"][:, 17::20] = 1


def noise(data: TensorDict) -> None:
    data["observation"] += 0.1 * torch.randn_like(data["observation"])


def relabelled(data: TensorDict) -> None:
    """Another goal for each tenth transition, after it was made."""
    goal = torch.ones(*data.shape, 2)
    goal[torch.rand(data.shape) < 0.1] += torch.randn(2)
    data["goal"], data["next", "goal"] = goal, goal.clone()


def rounded(data: TensorDict) -> None:
    """Computed twice, with another order of sums now and then."""
    some = torch.rand(data.shape) < 0.1
    data["observation"][some] *= 1 + 2.0**-22


def refreshed(data: TensorDict) -> None:
    """States of some rows are computed anew."""
    state = torch.randn(data.shape[0], data.shape[1] + 1, 4)
    data["h"], data["next", "h"] = state[:, :-1].clone(), state[:, 1:].clone()
    data["h"][torch.rand(data.shape) < 0.1] = 0.5


def missing(data: TensorDict) -> None:
    """Sensors that are silent at times; the same in both places."""
    gaps = torch.rand(*data.shape[:1], data.shape[1] + 1, 3) < 0.3
    data["observation"][gaps[:, :-1]] = math.nan
    data["next", "observation"][gaps[:, 1:]] = math.nan


def still(data: TensorDict) -> None:
    """Nothing ever changes, and each environment shows its own number."""
    for leaf in (data["observation"], data["next", "observation"]):
        leaf[:] = torch.arange(len(data)).reshape(-1, 1, 1)


def other_type(data: TensorDict) -> None:
    data["next", "observation"] = data["next", "observation"].half()


@pytest.mark.parametrize(
    "change", [None, multi_step, cue_alone, noise, relabelled, rounded, refreshed, missing, other_type]
)
def test_steps_that_follow_each_other_are_never_refused(change):
    data = walks(1, 3000)
    if change is not None:
        change(data)
    is_silent(filled(data[0]))
    ended = walks(1, 3000)
    ended["next", "done"][:, 9::10] = True  # what comes next is the end, and the next row a beginning
    ended["observation"][:, 10::10] = 0
    if change is not None:
        change(ended)
    is_silent(filled(ended[0], sampler=SliceSampler(slice_len=8)))


@pytest.mark.parametrize("change", [noise, multi_step, still])
def test_rows_that_never_show_what_follows_are_no_evidence(change):
    data = walks(8, 20)
    change(data)
    is_silent(filled(data.reshape(-1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64])
def test_every_type_is_compared(dtype):
    one = walks(1, 3000, sizes=2)
    many = walks(8, 20, sizes=2)
    for data in (one, many):
        for key in ("observation", ("next", "observation")):
            data[key] = (8 * data[key]).to(dtype) if dtype.is_floating_point else (8 * data[key]).long().to(dtype)
    is_silent(filled(one[0]))
    with pytest.raises(ContractError, match="not 'observation' of row"):
        is_silent(filled(many.reshape(-1)))


def test_gaps_in_what_is_seen_hide_nothing():
    data = walks(8, 20)
    missing(data)
    data["full"], data["next", "full"] = data["observation"].nan_to_num(), data["next", "observation"].nan_to_num()
    with pytest.raises(ContractError, match="'full'"):
        is_silent(filled(data.reshape(-1)))


def test_pictures_are_compared():
    frames = torch.randint(0, 256, (4, 33, 3, 20, 20), dtype=torch.uint8)
    flags = torch.zeros(4, 32, 1, dtype=torch.bool)
    after = TensorDict(pixels=frames[:, 1:], done=flags, batch_size=[4, 32])
    data = TensorDict(pixels=frames[:, :-1], next=after, batch_size=[4, 32]).clone()
    is_silent(filled(data, ndim=2))
    with pytest.raises(ContractError, match="'pixels'"):
        is_silent(filled(data.reshape(-1)))


def test_what_a_transform_makes_of_a_sample_is_no_evidence():
    def blank_some(sample):
        for key in ("observation", ("next", "observation")):
            sample[key][torch.rand(len(sample)) < 0.05] = 0
        return sample

    is_silent(filled(walks(1, 3000)[0], transform=blank_some))


def test_only_the_first_batches_are_looked_at():
    buffer = filled(walks(1, 2000)[0], batch_size=2048)
    is_silent(buffer, 40)
    assert buffer.sampler._core.marks.borders.left <= 0
    buffer.empty()  # other rows may come
    buffer.extend(walks(8, 20).reshape(-1))
    with pytest.raises(ContractError):
        is_silent(buffer)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.uint16, torch.complex64, torch.bool])
def test_types_that_torch_hardly_knows_are_compared_in_a_dataset(dtype):
    for lanes, steps in ((1, 400), (8, 20)):
        data = walks(lanes, steps, sizes=16).reshape(-1)
        for key in ("observation", ("next", "observation")):
            data[key] = data[key] > 0 if dtype is torch.bool else data[key].abs().to(dtype)
        buffer = TensorDictReplayBuffer(storage=TensorStorage(data), sampler=SliceSampler(slice_len=8), batch_size=64)
        if lanes == 1:
            is_silent(buffer)
        else:
            with pytest.raises(ContractError, match="not 'observation' of row"):
                is_silent(buffer)


def test_far_from_zero_is_no_rounding():
    """Prices, times, coordinates of a map: they move by little of what they are."""
    path = 4000 + torch.randn(8, 17, 2).cumsum(1)
    data = walks(8, 16)
    data["observation"], data["next", "observation"] = path[:, :-1].clone(), path[:, 1:].clone()
    is_silent(filled(data, ndim=2))
    with pytest.raises(ContractError, match="not 'observation' of row"):
        is_silent(filled(data.reshape(-1)))


@pytest.mark.parametrize("sampler", [SliceSampler, SliceSamplerWithoutReplacement])
def test_rows_of_a_saved_buffer_are_looked_at(sampler):
    used, saved = (filled(walks(1, 2000)[0], sampler=sampler(slice_len=8)) for _ in range(2))
    is_silent(used, 1)
    used.sampler._core.marks.borders.left = 0  # as after many draws
    saved.empty()
    saved.extend(walks(8, 20).reshape(-1))
    used.load_state_dict(saved.state_dict())
    with pytest.raises(ContractError, match="not 'observation' of row"):
        is_silent(used)


def test_batches_that_were_normalised_one_by_one_can_say_that_they_are_one_trajectory():
    data = walks(4, 128)
    for at in range(8):
        for key in ("observation", ("next", "observation")):
            data[key][:, at * 16 : at * 16 + 16] /= at + 1
    with pytest.raises(ContractError, match="one trajectory all the same") as said:
        is_silent(filled(data, ndim=2))
    assert "init_key" in str(said.value)
    data[NAMES] = torch.arange(4).unsqueeze(1).expand(4, 128).clone()
    is_silent(filled(data, ndim=2))


def test_a_beginning_may_have_a_name_of_its_own():
    data = walks(8, 20)
    data["is_first"] = torch.zeros(8, 20, 1, dtype=torch.bool)
    data["is_first"][:, 0] = True
    is_silent(filled(data.reshape(-1), sampler=SliceSampler(slice_len=8, init_key="is_first")))
    with pytest.raises(ContractError, match="init_key"):
        is_silent(filled(data.reshape(-1)))
