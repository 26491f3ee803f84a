"""Archives of Gen-DGRL, written with NumPy and tarfile."""

from __future__ import annotations

import os
import tarfile

import numpy as np
import pytest

from rl.core.errors import ContractError, RLError
from rl.replay.datasets import GenDGRLExperienceReplay, load_dataset


def episode(steps, number, done=True):
    rng = np.random.default_rng(number)
    return {
        "observations": rng.integers(0, 255, (steps + 1, 3, 4, 4), dtype=np.uint8),
        "actions": rng.integers(0, 15, steps),
        "rewards": rng.normal(size=steps),
        "dones": np.arange(steps) == (steps - 1 if done else -1),
    }


def write(path, episodes, mode="w:xz"):
    folder = path.with_suffix(".parts")
    folder.mkdir()
    for number, one in enumerate(episodes):
        np.save(folder / f"{number:03d}.npy", one, allow_pickle=True)
    with tarfile.open(path, mode) as archive:
        archive.add(folder, "bigfish")
    return path


@pytest.mark.parametrize("packed", ["w:xz", "w", None])
def test_rows_are_the_steps_of_the_episodes(tmp_path, packed):
    episodes = [episode(3, 0), episode(5, 1, done=False), episode(1, 2)]
    path = write(tmp_path / "data.tar", episodes, packed or "w")
    rows = GenDGRLExperienceReplay(path if packed else tmp_path / "data.parts", root=tmp_path)[:]
    assert len(rows) == 9
    at = 0
    for number, one in enumerate(episodes):
        steps = len(one["actions"])
        part = rows[at : at + steps]
        np.testing.assert_array_equal(part["observation"], one["observations"][:-1])
        np.testing.assert_array_equal(part["next", "observation"], one["observations"][1:])
        np.testing.assert_array_equal(part["action"], one["actions"])
        np.testing.assert_allclose(part["next", "reward"][:, 0], one["rewards"], rtol=1e-6)
        assert part["next", "terminated"][:, 0].tolist() == one["dones"].tolist()
        assert part["next", "truncated"].any().item() == (number == 1)
        assert part["next", "done"][-1]
        assert (part["episode"] == number).all()
        at += steps


class Attack:
    """A pickle that runs a command."""

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_damaged_foreign_and_malicious_files_are_refused_and_leave_nothing(tmp_path):
    root, path = tmp_path / "rows", write(tmp_path / "data.tar.xz", [episode(3, 0)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RLError, match="cannot read"):
        GenDGRLExperienceReplay(path, root=root)
    path.write_bytes(b"no archive")
    with pytest.raises(RLError, match=r"It takes \.npy files of episodes"):
        GenDGRLExperienceReplay(path, root=root)
    attack = Attack()
    attack.path = str(tmp_path / "attacked")
    for name, content, text in (
        ("attack", {**episode(2, 0), "more": attack}, "which is not loaded"),
        ("array", np.zeros(3), "expected a dictionary"),
        ("list", np.array([1, None], object), "expected a dictionary"),
        ("lacks", {"actions": np.zeros(3)}, "has no array of observations, rewards, dones"),
        ("short", {**episode(2, 0), "actions": np.zeros(3)}, "differ in length"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "0.npy", content, allow_pickle=True)
        with pytest.raises(RLError, match=text):
            load_dataset(f"gen-dgrl:{folder}", root=root)
    assert not (tmp_path / "attacked").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ContractError, match=r"no \.npy file"):
        GenDGRLExperienceReplay(tmp_path / "empty", root=root)
    with pytest.raises(RLError, match="no GAME-CATEGORY"):
        GenDGRLExperienceReplay("bigfish", root=root, download=True)
    assert not [file for file in root.rglob("*") if file.is_file()]
