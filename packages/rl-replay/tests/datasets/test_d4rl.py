"""Files of D4RL, written with h5py, against a loop over their steps."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, ContractError, MissingExtraError, RLError
from rl.replay import SliceSampler, check_slices
from rl.replay.datasets import D4RLExperienceReplay, load_dataset

h5py = pytest.importorskip("h5py")

LENGTHS = (5, 1, 7, 1, 4)


def steps(total=18, seed=0):
    """Episodes of `LENGTHS`, which end by turns with a terminal step and a timeout."""
    rng = np.random.default_rng(seed)
    ends = np.zeros((2, total), bool)
    for number, row in enumerate(np.cumsum(LENGTHS) - 1):
        ends[number % 2, row] = True
    return {
        "observations": rng.normal(size=(total, 3)).astype(np.float32),
        "actions": rng.normal(size=(total, 2)).astype(np.float32),
        "rewards": rng.normal(size=total).astype(np.float32),
        "terminals": ends[0],
        "timeouts": ends[1],
    }


def write(path, arrays, **infos):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        for name, array in infos.items():
            file[f"infos/{name}"] = array
        file["metadata/algorithm"] = "SAC"
    return path


def test_steps_that_time_out_are_left_out_where_what_follows_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rl.replay.datasets._d4rl._CHUNK", 48
    )  # parts of 4 steps that end within episodes, and at their ends
    data = steps()
    path = write(tmp_path / "walk.hdf5", data, qpos=np.arange(18.0))
    buffer = D4RLExperienceReplay(path, 4, root=tmp_path)
    expected = []
    for row in range(18):
        if data["terminals"][row]:
            expected.append((row, np.zeros(3), True, False))
        elif not data["timeouts"][row] and row < 17:
            expected.append((row, data["observations"][row + 1], False, bool(data["timeouts"][row + 1])))
    rows = buffer[:]
    assert len(rows) == len(expected) == 16
    for found, (row, following, terminated, truncated) in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(found["observation"], data["observations"][row])
        np.testing.assert_array_equal(found["action"], data["actions"][row])
        np.testing.assert_array_equal(found["next", "observation"], following)
        assert found["next", "reward"].item() == data["rewards"][row]
        assert found["next", "terminated"].item() == terminated
        assert found["next", "truncated"].item() == truncated
        assert found["next", "done"].item() == (terminated or truncated)
        assert found["info", "qpos"].item() == row
    assert rows["episode"].tolist() == [0] * 5 + [2] * 7 + [4] * 4
    check_slices(load_dataset(f"d4rl:{path}", batch_size=6, sampler=SliceSampler(slice_len=3), root=tmp_path))


def test_a_file_with_next_observations_keeps_all_steps(tmp_path):
    data = steps()
    data["next_observations"] = data["observations"] + 1
    buffer = D4RLExperienceReplay(write(tmp_path / "walk.hdf5", data), root=tmp_path)
    rows = buffer[:]
    torch.testing.assert_close(rows["next", "observation"], rows["observation"] + 1)
    assert rows["next", "terminated"][:, 0].tolist() == data["terminals"].tolist()
    assert rows["next", "truncated"][:, 0].tolist() == data["timeouts"].tolist()


def test_trajectories_are_split_and_padded(tmp_path):
    path = write(tmp_path / "walk.hdf5", steps())
    flat = D4RLExperienceReplay(path, root=tmp_path)[:]
    buffer = D4RLExperienceReplay(path, 2, split_trajs=True, root=tmp_path)
    rows = buffer[:]
    assert rows.shape == (3, 7)
    mask = rows["collector", "mask"]
    assert mask.sum(1).tolist() == [5, 7, 4]
    torch.testing.assert_close(rows[mask]["observation"], flat["observation"])
    assert not rows["observation"][~mask].any()
    assert buffer.sample().shape == (2, 7)
    assert D4RLExperienceReplay(path, split_trajs=True, root=tmp_path).data.shape == (3, 7)


def test_episodes_without_timeouts_need_a_limit(tmp_path):
    data = steps()
    del data["timeouts"]
    path = write(tmp_path / "walk.hdf5", data)
    with pytest.raises(RLError, match=r"has no timeouts\. Pass max_episode_steps"):
        D4RLExperienceReplay(path, root=tmp_path)
    limited = D4RLExperienceReplay(path, max_episode_steps=6, root=tmp_path)[:]
    ends = [row for row in range(len(limited)) if limited["next", "truncated"][row]]
    assert ends == [9]  # steps 5 to 10 time out at row 10, which is left out
    assert D4RLExperienceReplay(path, max_episode_steps=0, root=tmp_path)[:]["next", "truncated"].sum() == 0


def test_a_changed_file_is_prepared_again(tmp_path):
    path = write(tmp_path / "walk.hdf5", steps())
    first = D4RLExperienceReplay(path, root=tmp_path)[:]
    write(path, steps(seed=1))
    assert not torch.equal(D4RLExperienceReplay(path, root=tmp_path)[:]["action"], first["action"])
    assert len(list((tmp_path / "d4rl").iterdir())) == 1


def test_damaged_and_foreign_files_are_refused_and_leave_nothing(tmp_path):
    path, root = write(tmp_path / "walk.hdf5", steps()), tmp_path / "rows"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RLError, match=r"cannot open .*walk\.hdf5"):
        D4RLExperienceReplay(path, root=root)
    path.write_bytes(b"no file of HDF5")
    with pytest.raises(RLError, match="complete HDF5 files"):
        D4RLExperienceReplay(path, root=root)
    write(path, {"x": np.arange(3)})
    with pytest.raises(RLError, match=r"has no observations, actions, rewards, terminals \(it has metadata, x\)"):
        D4RLExperienceReplay(path, root=root)
    write(path, {**steps(), "rewards": np.zeros(3)})
    with pytest.raises(RLError, match="differ in length"):
        D4RLExperienceReplay(path, root=root)
    write(path, {name: array[:0] for name, array in steps().items()})
    with pytest.raises(ContractError, match="it is not complete"):
        D4RLExperienceReplay(path, root=root)
    with pytest.raises(RLError, match=r"no existing file.*download=True"):
        D4RLExperienceReplay("hopper-medium-v2", root=root)
    with pytest.raises(ArgumentError, match="neither an existing path nor a name"):
        D4RLExperienceReplay("../hopper", root=root)
    assert not [file for file in root.rglob("*") if file.is_file()]


def test_arguments_of_torchrl_are_accepted_or_answered(tmp_path):
    path = write(tmp_path / "walk.hdf5", steps())
    accepted = {"from_env": True, "direct_download": True, "use_truncated_as_done": True, "num_procs": 3}
    assert len(D4RLExperienceReplay(path, root=tmp_path, **accepted)) == 16
    with pytest.raises(ArgumentError, match=r"num_slices=4: use sampler=SliceSampler"):
        D4RLExperienceReplay(path, root=tmp_path, num_slices=4)
    with pytest.raises(ArgumentError, match="terminate_on_end=True: not available yet"):
        D4RLExperienceReplay(path, root=tmp_path, terminate_on_end=True)


def external_storage(file, data, secret):
    file.create_dataset("observations", (18, 3), "f4", external=[(secret, 0, 216)])


def virtual(file, data, secret):
    layout = h5py.VirtualLayout((18, 3), "f4")
    layout[:] = h5py.VirtualSource(secret, "observations", (18, 3))
    file.create_virtual_dataset("observations", layout)


def external_link(file, data, secret):
    file["observations"] = h5py.ExternalLink(secret, "observations")


def soft_link_through_an_external_one(file, data, secret):
    file["metadata/other"] = h5py.ExternalLink(secret, "/")
    file["observations"] = h5py.SoftLink("/metadata/other/observations")


def external_infos(file, data, secret):
    file["observations"] = data["observations"]
    file["infos"] = h5py.ExternalLink(secret, "/")


@pytest.mark.parametrize(
    "refer", [external_storage, virtual, external_link, soft_link_through_an_external_one, external_infos]
)
def test_a_file_that_refers_to_another_one_is_refused(tmp_path, refer):
    data = steps()
    secret, path = str(write(tmp_path / "secret.hdf5", data)), tmp_path / "walk.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("actions", "rewards", "terminals", "timeouts"):
            file[name] = data[name]
        refer(file, data, secret)
    with pytest.raises(RLError, match=r"(external|virtual).* in .*walk\.hdf5, which reads another file"):
        D4RLExperienceReplay(path, root=tmp_path / "rows")
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".hdf5"]


def test_references_inside_of_a_file_are_read(tmp_path):
    data, path = steps(), tmp_path / "walk.hdf5"
    write(path, {name: array for name, array in data.items() if name not in ("observations", "actions")})
    with h5py.File(path, "a") as file:
        file["kept/seen"] = data["observations"]
        file["kept/acts"] = data["actions"].astype(">f4")
        file["actions"] = h5py.SoftLink("/kept/acts")
        layout = h5py.VirtualLayout((18, 3), "f4")
        layout[:] = h5py.VirtualSource(file["kept/seen"])
        file.create_virtual_dataset("observations", layout)
    rows = D4RLExperienceReplay(path, root=tmp_path)[:]
    np.testing.assert_array_equal(rows["observation"][:4], data["observations"][:4])
    np.testing.assert_array_equal(rows["action"][:4], data["actions"][:4])


def test_damaged_bytes_raise_an_error_that_names_the_file(tmp_path):
    path = write(tmp_path / "walk.hdf5", {**steps(), "next_observations": np.zeros((18, 3), np.float32)}, q=np.ones(18))
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for number in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=rng.choice([1, 8, 64])):
            damaged[place] = rng.integers(256)
        path.write_bytes(bytes(damaged))
        try:
            D4RLExperienceReplay(path, root=tmp_path / str(number), progress=False)
        except RLError as error:
            refused += 1
            assert "walk.hdf5" in str(error)  # noqa: PT017  # most of the damage is in numbers, which any value fits
    assert refused > 20


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("observations", "words", r"observations of .*walk\.hdf5 is not an array of numbers, \[steps, \.\.\.\], got"),
        ("observations", 1.0, r"got an array \[\] of float64"),
        ("actions", {"x": np.ones(18)}, r"actions of .*, got none"),
        ("rewards", np.ones((18, 2)), r"rewards of .* is not an array of numbers, \[steps\], got an array \[18, 2\]"),
        ("terminals", np.array([b"no"] * 18), r"terminals of .*of \|S2"),
        ("timeouts", {}, r"timeouts of .*, got none"),
        ("next_observations", np.dtype("f4"), r"next_observations of .*, got none"),
    ],
)
def test_an_entry_of_another_kind_is_named_with_what_is_expected(tmp_path, name, wrong, message):
    path = tmp_path / "walk.hdf5"
    with h5py.File(path, "w") as file:
        for key, value in {**steps(), name: wrong}.items():
            if isinstance(value, dict):
                file.create_group(key).attrs["size"] = len(value)
            else:
                file[key] = value
    with pytest.raises(RLError, match=message):
        D4RLExperienceReplay(path, root=tmp_path / "rows")


@pytest.fixture
def server(tmp_path, monkeypatch):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    folder = tmp_path / "served" / "gym_mujoco_v2"
    folder.mkdir(parents=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder.parent)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        monkeypatch.setattr("rl.replay.datasets._d4rl._SITE", f"http://127.0.0.1:{running.server_port}/")
        yield folder
        running.shutdown()


def test_names_are_downloaded(tmp_path, server):
    write(server / "hopper_medium_replay-v2.hdf5", steps())
    load = partial(D4RLExperienceReplay, "hopper-medium-replay-v2", root=tmp_path / "rows")
    with pytest.raises(RLError, match="download=True"):
        load()
    first = load(download=True, progress=False)[:]
    write(server / "hopper_medium_replay-v2.hdf5", steps(seed=1))
    for download in (True, False):  # prepared already
        assert torch.equal(load(download=download)[:]["action"], first["action"])
    assert not torch.equal(load(download="force")[:]["action"], first["action"])
    assert [path.name for path in (tmp_path / "rows" / "d4rl").iterdir()] == ["hopper-medium-replay-v2"]
    with pytest.raises(RLError, match=r"cannot download http://.*hopper_expert-v2\.hdf5: HTTP Error 404"):
        D4RLExperienceReplay("hopper-expert-v2", root=tmp_path / "rows", download=True)
    with pytest.raises(RLError, match="knows no address of 'hopper-superb-v2'"):
        D4RLExperienceReplay("hopper-superb-v2", root=tmp_path / "rows", download=True)


def test_progress_is_shown_by_tqdm(tmp_path, capsys, monkeypatch):
    path = write(tmp_path / "walk.hdf5", steps())
    D4RLExperienceReplay(path, root=tmp_path / "a", progress=True)
    assert "16.0/16.0" in capsys.readouterr().err
    D4RLExperienceReplay(path, root=tmp_path / "b")
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(MissingExtraError, match=r"rl-replay\[progress\]"):
        D4RLExperienceReplay(path, root=tmp_path / "c", progress=True)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"rl-replay\[d4rl\]"):
        D4RLExperienceReplay(path, root=tmp_path / "c")


LIMITED = """
import resource, sys
from pathlib import Path
import h5py, torch
from rl.replay.datasets import D4RLExperienceReplay
path, root = sys.argv[1:]
D4RLExperienceReplay(path + ".small", 8, root=root).sample()  # what is imported lazily
lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
used = int(lines["VmData"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + int(100e6), used + int(100e6)))
buffer = D4RLExperienceReplay(path, 64, root=root)
print(len(buffer), buffer.sample()["observation"].sum().item() / 64 / 1000)
try:
    torch.zeros(60_000_000)
except RuntimeError:
    print("limited")
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads /proc")
def test_a_file_larger_than_the_allowed_memory_is_loaded(tmp_path):
    path = tmp_path / "large.hdf5"
    for file, rows in ((path, 60_000), (tmp_path / "large.hdf5.small", 200)):  # 240 MB, for 100 MB of memory
        with h5py.File(file, "w") as data:
            data.create_dataset("observations", (rows, 1000), "f4", fillvalue=2.0)
            for start in range(0, rows, 1000):
                data["observations"][start : start + 1000] = 2.0
            data["actions"], data["rewards"] = np.zeros((rows, 1), np.float32), np.zeros(rows, np.float32)
            data["terminals"] = np.arange(rows) % 1000 == 999
            data["timeouts"] = np.zeros(rows, bool)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "60000 2.0\nlimited\n", done.stderr
