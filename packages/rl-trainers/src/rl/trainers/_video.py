"""Videos of a policy at work; needs the extra ``video``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rl.core import ExplorationType, set_exploration_type
from rl.core.errors import MissingExtraError, RLError
from rl.core.keys import DONE, NEXT
from rl.core.mdp import step_mdp
from rl.trainers._files import atomic_path
from rl.trainers._loading import TrainedRun
from rl.trainers._rng import preserved_rng, seed_everything

__all__ = ["check_video", "record_video"]

#: pictures per second
FPS = 30


def check_video(out: str | Path) -> Any:
    """The library that writes videos.

    Raises:
        MissingExtraError: if it is not installed.
        RLError: if there is a file at `out`, or its name has no known ending.
    """
    path = Path(out)
    if path.exists():
        raise RLError(f"{path} exists already and is not overwritten; name another file with --video")
    if path.suffix not in (".mp4", ".gif"):
        raise RLError(f"--video writes .mp4 or .gif, got {path.name!r}; name a file like out.mp4")
    try:
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401  # pyright: ignore[reportUnusedImport]  # imageio needs it for mp4
    except ImportError as error:
        raise MissingExtraError(
            f"videos need {error.name}, which is not installed: pip install 'rl-trainers[video]'"
        ) from error
    return imageio


def record_video(
    run: TrainedRun, out: str | Path, *, seed: int, deterministic: bool = True, max_steps: int = 5_000
) -> int:
    """Write one episode as a video, headless.

    Args:
        run: what to show.
        out: the file, ``.mp4`` or ``.gif``; it must not exist.
        seed: of the environment.
        deterministic: act for good, or draw actions as in training.
        max_steps: the video ends after so many steps at the latest.

    Returns:
        The number of pictures.

    Raises:
        RLError: if the environment cannot be rendered, or the file exists.
        MissingExtraError: if imageio is not installed.
    """
    imageio = check_video(out)
    try:
        env: Any = run.make_env(1, seed, render_mode="rgb_array")
    except TypeError as error:
        raise RLError(f"{run.config.env!r} cannot be rendered: it takes no render_mode ({error})") from error
    how = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    pictures: list[Any] = []
    with preserved_rng(), torch.no_grad(), set_exploration_type(how):
        seed_everything(seed)
        td = env.reset()
        pictures.append(_picture(env, run.config.env))
        for _ in range(max_steps):
            td = env.step(run.policy(td))
            pictures.append(_picture(env, run.config.env))
            if bool(td.get((NEXT, DONE)).any()):
                break
            td = step_mdp(td)
    env.close()
    with atomic_path(Path(out)) as path:
        timing = {"duration": 1000 / FPS, "loop": 0} if path.suffix == ".gif" else {"fps": FPS}
        imageio.imwrite(path, pictures, **timing)
    return len(pictures)


def _picture(env: Any, name: str) -> Any:
    picture = env.render()
    if picture is None:
        raise RLError(f"{name!r} rendered nothing; it knows no render_mode 'rgb_array'")
    return picture[0] if isinstance(picture, (list, tuple)) else picture
