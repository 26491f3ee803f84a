"""Recorders: which pictures and steps are kept, how they are tiled, and what is handed over."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.env_specs import check_env_specs
from rl.core.errors import ArgumentError, CheckpointError, RLError, SpecError
from rl.core.state import load, unpack
from rl.envs import (
    Compose,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    PendulumEnv,
    PixelRenderTransform,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictRecorder,
    ToTensorImage,
    TransformedEnv,
    VideoRecorder,
)


class Clock(gymnasium.Env):
    """Pictures of one colour: ten times the number of the step, plus that of the environment; ends after `length`."""

    observation_space = gymnasium.spaces.Dict(pixels=gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, number=0, length=5, render_mode="rgb_array"):
        self.number, self.length, self.render_mode = number, length, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), 1.0, self.steps == self.length, False, {}

    def render(self):
        return None if self.render_mode is None else self._seen()["pixels"]

    def _seen(self):
        return {"pixels": np.full((4, 6, 3), 10 * self.steps + self.number, np.uint8)}


def clock(**kwargs):
    return GymWrapper(Clock(**kwargs))


class Taken:
    def __init__(self):
        self.calls = []

    def log_video(self, name, video, step=None, **options):
        self.calls.append((name, video, step, options))

    @property
    def shades(self):
        """The value of each picture of the last video, whose pictures have one colour."""
        video = self.calls[-1][1]
        assert video.shape[2:] == (3, 4, 6)
        assert (video == video[:, :, :1, :1, :1]).all()
        return video[0, :, 0, 0, 0].tolist()


@pytest.fixture
def taken():
    return Taken()


def test_a_video_has_the_pictures_of_an_episode(taken):
    env = TransformedEnv(clock(), VideoRecorder(taken, "walk", skip=1, fps=7, format="mp4"))
    env.rollout(20)
    env.transform.dump()
    env.transform.dump()  # nothing is left
    assert [(name, step, options) for name, _, step, options in taken.calls] == [
        ("walk", 0, {"format": "mp4", "fps": 7})
    ]
    assert taken.calls[0][1].dtype == torch.uint8
    assert taken.shades == [0, 10, 20, 30, 40, 50]


def test_every_second_picture_is_kept_without_a_batch(taken):
    env = TransformedEnv(clock(), VideoRecorder(taken, "walk"))
    env.rollout(20)
    env.transform.dump(suffix="late", step=300)
    assert taken.shades == [10, 30, 50]
    assert taken.calls[0][0] == "walk_late"
    assert taken.calls[0][2] == 300


@pytest.mark.parametrize("skip", [1, 3])
def test_the_elements_of_a_batch_are_tiles(skip, taken):
    env = TransformedEnv(GymWrapper([Clock(number) for number in range(3)]), VideoRecorder(taken, "walk", skip=skip))
    env.rollout(20)
    env.transform.dump()
    (video,) = taken.calls[0][1]
    steps = range(6)[skip - 1 :: skip]
    assert video.shape == (len(steps), 3, 8, 12)
    for picture, step in zip(video, steps, strict=True):
        assert picture.unique().tolist() == sorted({0, 10 * step, 10 * step + 1, 10 * step + 2})
        assert (picture[:, :4, :6] == 10 * step).all()
        assert (picture[:, :4, 6:] == 10 * step + 1).all()
        assert (picture[:, 4:, :6] == 10 * step + 2).all()
        assert (picture[:, 4:, 6:] == 0).all()


def test_elements_that_are_not_reset_do_not_stand_still(taken):
    env = TransformedEnv(GymWrapper([Clock(0, 2), Clock(1, 3)]), VideoRecorder(taken, "walk"))
    env.rollout(6, break_when_any_done=False)
    env.transform.dump()
    (video,) = taken.calls[0][1]
    assert video[:, 0, 0, 0].tolist() == [0, 10, 20, 10, 20, 10, 20]
    assert video[:, 0, 0, 6].tolist() == [1, 11, 21, 31, 11, 21, 31]


def test_without_a_grid_the_elements_follow_each_other(taken):
    env = TransformedEnv(GymWrapper([Clock(0), Clock(1)]), VideoRecorder(taken, "walk", make_grid=False))
    env.rollout(1)
    env.transform.dump()
    assert taken.shades == [0, 1, 10, 11]


@pytest.mark.parametrize(
    "shape", [(4, 6), (4, 6, 1), (1, 4, 6), (4, 6, 3), (3, 4, 6), (2, 3, 4, 6), (2, 4, 6, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_all_forms_of_pictures_are_drawn(shape, dtype, taken):
    seen = torch.full(shape, 51, dtype=torch.uint8)
    seen = seen.float() / 255 if dtype.is_floating_point else seen
    recorder = VideoRecorder(taken, "data", in_keys=[("next", "seen")])
    recorder(TensorDict(next=TensorDict(seen=seen)))
    recorder.dump()
    assert taken.shades == [51] * (2 if len(shape) == 4 else 1)


def test_pictures_of_networks_are_drawn_as_they_were(taken):
    env = TransformedEnv(clock(), Compose(ToTensorImage(), VideoRecorder(taken, "walk", skip=1)))
    env.rollout(3)
    env.transform.dump()
    assert taken.shades == [0, 10, 20, 30]


def test_the_middle_is_kept(taken):
    picture = torch.arange(24, dtype=torch.uint8).reshape(1, 4, 6)
    recorder = VideoRecorder(taken, "data", center_crop=2)
    recorder(TensorDict(pixels=picture))
    recorder.dump()
    assert taken.calls[0][1][0, 0].tolist() == [[[8, 9], [14, 15]]] * 3
    with pytest.raises(SpecError, match="outside of an image of 4 x 6"):
        VideoRecorder(taken, "data", center_crop=5)(TensorDict(pixels=picture))


def test_what_is_no_picture_is_rejected():
    with pytest.raises(SpecError, match=r"draws pictures \[\*B, H, W, C\].*got torch.float32 \(5,\)"):
        VideoRecorder(None, None)(TensorDict(pixels=torch.zeros(5)))
    with pytest.raises(SpecError, match="'pixels', which the environment does not write"):
        TransformedEnv(PendulumEnv(), VideoRecorder(None, None))
    for name in ("skip", "max_frames", "center_crop"):
        with pytest.raises(ArgumentError):
            VideoRecorder(None, None, **{name: 0})


def test_memory_is_limited_between_dumps(taken):
    recorder = VideoRecorder(taken, "walk", skip=1, max_frames=3)
    env = TransformedEnv(clock(), recorder)
    env.rollout(20)
    assert len(recorder.obs) == 3
    recorder.dump()
    assert taken.shades == [0, 10, 20]
    env.rollout(1)
    recorder.dump()
    assert taken.shades == [0, 10]
    assert taken.calls[-1][2] == 1


def test_each_episode_is_a_video(taken):
    env = TransformedEnv(clock(length=3), VideoRecorder(taken, "walk", skip=1, dump_on_done=True))
    env.rollout(7, break_when_any_done=False)
    assert [step for *_, step, _ in taken.calls] == [0, 1]
    assert taken.shades == [0, 10, 20, 30]
    assert len(env.transform.obs) == 2  # of the third


def test_a_copy_has_the_same_logger_and_no_pictures(taken):
    recorder = VideoRecorder(taken, "walk", skip=1)
    env = TransformedEnv(clock(), recorder)
    env.rollout(3)
    copied = recorder.clone()
    assert copied.logger is taken
    assert copied.obs == []
    assert len(recorder.obs) == 4
    assert copied.parent is None


def test_a_recorder_changes_nothing_that_the_environment_writes(taken):
    plain = GymWrapper([Clock(0, 2), Clock(1, 3)])
    torch.manual_seed(0)
    expected = plain.rollout(6, break_when_any_done=False)
    recorder = VideoRecorder(taken, "walk", out_keys=["shown"])
    env = TransformedEnv(GymWrapper([Clock(0, 2), Clock(1, 3)]), recorder)
    check_env_specs(env)
    torch.manual_seed(0)
    data = env.rollout(6, break_when_any_done=False)
    assert (data.exclude("shown", ("next", "shown")) == expected).all()
    assert torch.equal(data["shown"], data["pixels"])


def test_dump_of_a_chain_reaches_every_transform(taken):
    env = TransformedEnv(clock(), Compose(RewardSum(), VideoRecorder(taken, "a"), VideoRecorder(taken, "b")))
    env.rollout(3)
    env.transform.dump(step=4)
    assert [(name, step) for name, _, step, _ in taken.calls] == [("a", 4), ("b", 4)]


# ---- PixelRenderTransform


def cartpole(**kwargs):
    return GymEnv("CartPole-v1", render_mode="rgb_array", **kwargs)


@pytest.mark.parametrize("several", [None, 2])
def test_pictures_are_those_of_the_simulator(several):
    env = TransformedEnv(cartpole(num_envs=several), PixelRenderTransform())
    check_env_specs(env)
    env.set_seed(3)
    torch.manual_seed(0)
    data = env.rollout(4)
    assert data["pixels"].dtype == torch.uint8
    assert data["pixels"].shape == (*env.batch_size, 4, 400, 600, 3)
    now = env.base_env.render()
    assert torch.equal(data[..., -1]["next", "pixels"], torch.as_tensor(np.stack(now) if several else now))
    plain = cartpole(num_envs=several)
    plain.set_seed(3)
    torch.manual_seed(0)
    assert torch.equal(plain.rollout(4)["observation"], data["observation"])  # the look at the shape changed nothing


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_members_draw_for_themselves(kind, taken):
    def make():
        return TransformedEnv(clock(), PixelRenderTransform(["drawn"]))

    with closing(TransformedEnv(kind(2, make), VideoRecorder(taken, "walk", in_keys=["drawn"]))) as env:
        env.rollout(3)
        env.transform.dump()
    assert taken.calls[0][1].shape == (1, 4, 3, 4, 12)
    assert taken.calls[0][1][0, :, 0, 0, 0].tolist() == [0, 10, 20, 30]


def test_processes_are_drawn_from_outside(taken):
    drawing = Compose(PixelRenderTransform(["drawn"]), VideoRecorder(taken, "walk", ["drawn"]))
    with closing(TransformedEnv(ParallelEnv(2, clock), drawing)) as env:
        env.rollout(3)
        env.transform.dump()
    assert taken.calls[0][1].shape == (1, 4, 3, 4, 12)


def test_one_picture_of_a_batch_is_no_tensor(taken):
    env = TransformedEnv(
        SerialEnv(2, [clock, clock]), Compose(PixelRenderTransform(["drawn"]), VideoRecorder(taken, "walk", ["drawn"]))
    )
    env.rollout(3)
    env.transform.dump()
    assert taken.shades == [0, 10, 20, 30]


def test_drawing_can_be_turned_off(taken):
    drawing = PixelRenderTransform(["drawn"])
    env = TransformedEnv(clock(), drawing)
    drawing.switch()
    assert not drawing.enabled
    assert "drawn" not in env.rollout(2).keys()
    check_env_specs(env)
    drawing.switch("on")
    assert "drawn" in env.rollout(2).keys()
    with pytest.raises(ArgumentError):
        drawing.switch("of")


def test_what_is_drawn_can_be_changed():
    env = TransformedEnv(clock(), PixelRenderTransform(["drawn"], preproc=lambda picture: picture[::2, ::3] / 255))
    data = env.rollout(3)
    assert data["drawn"].shape == (3, 2, 2, 3)
    assert torch.allclose(data["next", "drawn"][:, 0, 0, 0], torch.tensor([10.0, 20, 30], dtype=torch.float64) / 255)


class Stateless(PendulumEnv):
    def draw(self, entries, size):
        return (entries["observation"][..., :1, None] > 0).to(torch.uint8).expand(*self.batch_size, size, size) * 255


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_an_environment_without_a_state_draws_entries(batch):
    drawing = PixelRenderTransform(["drawn"], render_method="draw", pass_tensordict=True, size=4)
    env = TransformedEnv(Stateless(batch, seed=0), drawing)
    data = env.rollout(4)
    assert data["drawn"].shape == (*batch, 4, 4, 4)
    assert torch.equal(data["drawn"][..., 0, 0] == 255, data["observation"][..., 0] > 0)


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(ArgumentError, match=r"calls render\(\), which PendulumEnv does not have"):
        TransformedEnv(PendulumEnv(), PixelRenderTransform())
    with pytest.raises(RLError, match=r"returned no picture: create it with render_mode='rgb_array'"):
        TransformedEnv(clock(render_mode=None), PixelRenderTransform(["drawn"]))
    with pytest.raises(SpecError, match="'pixels', which exists already"):
        TransformedEnv(clock(), PixelRenderTransform())
    with pytest.raises(ArgumentError, match="writes one entry"):
        PixelRenderTransform(["a", "b"])


# ---- TensorDictRecorder


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_kept_steps_are_those_of_a_rollout(batch, tmp_path):
    recorder = TensorDictRecorder(tmp_path / "new" / "swing", skip=2)
    env = TransformedEnv(PendulumEnv(batch, seed=0), Compose(StepCounter(5), recorder))
    data = env.rollout(9, break_when_any_done=False)
    env.transform.dump("first")
    kept = unpack(load(tmp_path / "new" / "swing_first_tensordict.safetensors"), "swing")
    assert kept.batch_size == (*batch, 4)
    assert (kept == data["next"][..., 1::2]).all()


def test_resets_are_kept_if_wanted(tmp_path):
    recorder = TensorDictRecorder(tmp_path / "swing", skip_reset=False, skip=1, in_keys=["observation"])
    env = TransformedEnv(PendulumEnv(seed=0), recorder)
    data = env.rollout(3)
    recorder.dump()
    kept = unpack(load(tmp_path / "swing_tensordict.safetensors"), "swing")
    assert list(kept.keys()) == ["observation"]
    assert torch.equal(kept["observation"], torch.cat([data["observation"][:1], data["next", "observation"]]))


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    recorder = TensorDictRecorder(tmp_path / "swing", skip=1)
    env = TransformedEnv(PendulumEnv(seed=0), recorder)
    env.rollout(2)
    recorder.dump()
    before = (tmp_path / "swing_tensordict.safetensors").read_bytes()
    recorder.dump()  # nothing is left
    env.rollout(3)
    (tmp_path / "file").write_text("")
    recorder.out_file_base = tmp_path / "file" / "swing"
    with pytest.raises(CheckpointError, match="cannot be written"):
        recorder.dump()
    assert (tmp_path / "swing_tensordict.safetensors").read_bytes() == before
    assert len(recorder.td) == 3  # for another try
    assert [one.name for one in tmp_path.iterdir()].count("swing_tensordict.safetensors") == 1
    with pytest.raises(SpecError, match="'speed', which the environment does not write"):
        TransformedEnv(PendulumEnv(), TensorDictRecorder("swing", in_keys=["speed"]))
