"""Data sets as replay buffers, against what their library reads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import (
    ArgumentError,
    ContractError,
    DuplicateComponentError,
    MissingExtraError,
    RLError,
    SpecError,
    UnknownComponentError,
)
from rl.replay import SliceSampler
from rl.replay.datasets import DatasetBuffer, MinariExperienceReplay, load_dataset, register_dataset


@pytest.fixture
def minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("RL_DATASETS", str(tmp_path / "rows"))
    return pytest.importorskip("minari")


def write(minari, name="test/walk-v0", episodes=4, nested=False):
    """A data set of Minari with episodes of 3, 4, 5 ... steps."""
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    rng, space = np.random.default_rng(0), gymnasium.spaces.Box(-10, 10, (3,), np.float32)
    buffers = []
    for number in range(episodes):
        steps = 3 + number
        seen = rng.normal(size=(steps + 1, 3)).astype(np.float32)
        ends = np.arange(steps) == steps - 1
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations={"place": seen, "goal": seen * 2} if nested else seen,
                actions=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
                rewards=list(rng.normal(size=steps)),
                terminations=list(ends & (number % 2 == 0)),
                truncations=list(ends & (number % 2 == 1)),
            )
        )
    spaces = gymnasium.spaces.Dict({"place": space, "goal": space}) if nested else space
    return minari.create_dataset_from_buffers(
        name,
        buffers,
        observation_space=spaces,
        action_space=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    )


@pytest.mark.filterwarnings("ignore")
def test_rows_are_the_steps_of_the_data_set(minari):
    written = write(minari)
    buffer = MinariExperienceReplay("test/walk-v0", batch_size=8)
    assert len(buffer) == written.total_steps == 3 + 4 + 5 + 6
    rows, begin = buffer[:], 0
    for number, episode in enumerate(written.iterate_episodes()):
        part = rows[begin : begin + len(episode.rewards)]
        np.testing.assert_array_equal(part["observation"].numpy(), episode.observations[:-1])
        np.testing.assert_array_equal(part["next", "observation"].numpy(), episode.observations[1:])
        np.testing.assert_array_equal(part["action"].numpy(), episode.actions)
        np.testing.assert_allclose(part["next", "reward"][:, 0].numpy(), episode.rewards, rtol=1e-6)
        assert part["next", "terminated"][:, 0].tolist() == episode.terminations.tolist()
        assert part["next", "truncated"][:, 0].tolist() == episode.truncations.tolist()
        assert part["next", "done"][-1]
        assert (part["episode"] == number).all()
        begin += len(part)
    assert buffer.sample().shape == (8,)
    with pytest.raises(ContractError, match="fixed dataset"):
        buffer.extend(rows[:1])


@pytest.mark.filterwarnings("ignore")
def test_slices_dictionaries_and_names(minari):
    write(minari, nested=True)
    buffer = load_dataset("minari:test/walk-v0", batch_size=12, sampler=SliceSampler(slice_len=3))
    sample = buffer.sample().reshape(4, 3)
    assert {"place", "goal", "episode"} <= set(sample.keys())
    assert (sample["episode"] == sample["episode"][:, :1]).all()
    torch.testing.assert_close(sample["next", "place"][:, :-1], sample["place"][:, 1:])
    with pytest.raises(UnknownComponentError, match="did you mean minari:test"):
        load_dataset("minary:test/walk-v0")
    register_dataset("list", lambda name, **settings: (name, settings))
    assert load_dataset("list:a", batch_size=1) == ("a", {"batch_size": 1})
    with pytest.raises(DuplicateComponentError, match="replace=True"):
        register_dataset("list", print)
    register_dataset("list", "builtins:str", replace=True)
    assert load_dataset("list:a") == "a"


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_that_was_written_again_is_prepared_again(minari):
    write(minari)
    assert len(MinariExperienceReplay("test/walk-v0")) == 18
    minari.delete_dataset("test/walk-v0")
    write(minari, episodes=2)
    assert len(MinariExperienceReplay("test/walk-v0")) == 7


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_or_absent_data_set_is_refused(minari, tmp_path):
    with pytest.raises(RLError, match=r"cannot open 'test/none-v0'.*[^.]\. `minari list local`.*download=True"):
        MinariExperienceReplay("test/none-v0")
    write(minari)
    file = next((tmp_path / "minari").rglob("main_data.hdf5"))
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(RLError, match=r"test/walk-v0"):
        MinariExperienceReplay("test/walk-v0")
    assert not list((tmp_path / "rows").rglob("meta.json"))


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_with_damaged_or_foreign_entries_is_refused(minari, tmp_path):
    h5py = pytest.importorskip("h5py")
    write(minari)
    path = next((tmp_path / "minari").rglob("main_data.hdf5"))
    whole, secret = path.read_bytes(), tmp_path / "secret.hdf5"
    secret.write_bytes(whole)
    with h5py.File(path, "a") as file:
        del file["episode_1/rewards"]
        file["episode_1"].create_group("rewards")
    with pytest.raises(RLError, match=r"episode 1 of 'test/walk-v0' cannot be read .*expected"):
        MinariExperienceReplay("test/walk-v0")
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        del file["episode_1/observations"]
        file["episode_1/observations"] = h5py.ExternalLink(str(secret), "episode_0/observations")
    with pytest.raises(RLError, match=r"episode_1/observations is an external link in .*main_data\.hdf5"):
        MinariExperienceReplay("test/walk-v0")
    assert not list((tmp_path / "rows").rglob("meta.json"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("largest", [2**63 - 1, 2**63])
def test_integers_that_torch_cannot_hold_are_refused(minari, tmp_path, largest):
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    space = gymnasium.spaces.Box(0, 2**64 - 1, (1,), np.uint64)
    seen = np.array([[0], [7], [largest]], np.uint64)
    episode = EpisodeBuffer(
        id=0,
        observations={"place": seen},
        actions=np.zeros(2, np.int64),
        rewards=[0.0, 0.0],
        terminations=[False, True],
        truncations=[False, False],
    )
    spaces = {"observation_space": gymnasium.spaces.Dict(place=space), "action_space": gymnasium.spaces.Discrete(2)}
    minari.create_dataset_from_buffers("test/wide-v0", [episode], **spaces)
    if largest < 2**63:
        rows = MinariExperienceReplay("test/wide-v0")[:]
        assert rows["next", "place"].flatten().tolist() == [7, largest]
        return
    with pytest.raises(SpecError, match=r"place has values above int64, the widest integers of torch"):
        MinariExperienceReplay("test/wide-v0")
    assert not list((tmp_path / "rows").rglob("meta.json"))


def rows(number, steps):
    return TensorDict(x=torch.arange(steps) + 100 * number, episode=torch.full((steps,), number), batch_size=[steps])


def test_a_folder_is_prepared_once_and_only_as_a_whole(tmp_path):
    calls = []

    def episodes():
        for number in range(3):
            calls.append(number)
            yield rows(number, 4)

    folder = tmp_path / "deep" / "set"
    assert len(DatasetBuffer(folder, 12, episodes)) == 12
    again = DatasetBuffer(folder, 12, episodes, batch_size=3)
    assert calls == [0, 1, 2]
    assert again[5]["x"] == 101
    mapped = again.preprocess(lambda part: part.set("x", part["x"] * 2), tmp_path / "mapped", batch_size=4)
    assert mapped[:]["x"].tolist() == [2 * (100 * number + row) for number in range(3) for row in range(4)]
    assert len(mapped.preprocess(lambda part: part[part["x"] < 200], tmp_path / "mapped")) == 4
    mapped.delete()
    assert not (tmp_path / "mapped").exists()
    for stated in (11, 13):
        other = tmp_path / "new" / "source" / str(stated)
        with pytest.raises(ContractError, match=f"the source states {stated} rows"):
            DatasetBuffer(other, stated, episodes)
        assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads /proc")
def test_memory_stays_small_while_a_folder_is_prepared(tmp_path):
    width, steps, count = 1000, 250, 200  # 200 MB in all, 1 MB an episode

    def episodes():
        for number in range(count):
            yield TensorDict(x=torch.full((steps, width), float(number)), batch_size=[steps])

    before = _anonymous()
    buffer = DatasetBuffer(tmp_path / "large", steps * count, episodes)
    assert buffer[steps * 7]["x"][0] == 7
    assert _anonymous() - before < 40e6


def _anonymous():
    """Bytes of this process that are no file."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rl-replay\[minari\]'"):
        MinariExperienceReplay("test/walk-v0")


@pytest.mark.parametrize(("source", "make"), [("a:b", dict), ("", dict), ("mine", 3), ("mine", "module")])
def test_a_source_that_could_not_be_loaded_is_not_registered(source, make):
    with pytest.raises(ArgumentError, match="register_dataset"):
        register_dataset(source, make)
