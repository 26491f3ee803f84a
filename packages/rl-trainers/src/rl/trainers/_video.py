"""Videos of a policy; needs the extra ``video``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core import ExplorationType, set_exploration_type, states_of
from rl.core.errors import RLError
from rl.core.keys import DONE, IS_INIT, NEXT
from rl.core.mdp import step_mdp
from rl.trainers._device import preserved_rng, seed_everything
from rl.trainers._storage import atomic_path, check_video
from rl.trainers.evaluation import TrainedRun

#: images per second of an environment that does not say
FPS = 30


def record_video(
    run: TrainedRun, out: str | Path, *, seed: int, deterministic: bool = True, max_steps: int = 5_000
) -> int:
    """Write one episode as a video, headless.

    Args:
        run: Run to show.
        out: The file, ``.mp4`` or ``.gif``; it must not exist.
        seed: Seed of the environment.
        deterministic: Whether to take the deterministic action (exploration off) instead of sampling as in training.
        max_steps: Largest number of steps.

    Returns:
        The number of images.

    Raises:
        RLError: If the environment cannot be rendered, or the file exists.
        MissingExtraError: If imageio is not installed.
    """
    imageio = check_video(out)
    try:
        env: Any = run.make_env(1, seed, render_mode="rgb_array")
    except (TypeError, RLError) as error:
        raise RLError(f"{run.config.env!r} cannot be rendered: it takes no render_mode ({error})") from error
    how = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    images: list[Any] = []
    with preserved_rng(), torch.no_grad(), set_exploration_type(how):
        seed_everything(seed)
        td = _begun(env.reset(), run.policy)
        images.append(_render(env, run.config.env))
        for _ in range(max_steps):
            td = env.step(run.policy(td))
            images.append(_render(env, run.config.env))
            if bool(td.get((NEXT, DONE)).any()):
                break
            td = _going_on(step_mdp(td))
    fps = _fps(env)
    env.close()
    # The codec needs even sides; by default imageio scales frames to multiples of 16.
    options = {"duration": 1000 / fps, "loop": 0} if Path(out).suffix == ".gif" else {"fps": fps, "macro_block_size": 2}
    try:
        with atomic_path(Path(out)) as path:
            imageio.imwrite(path, images, **options)
    except OSError as error:
        raise RLError(f"{out} cannot be written: {error}; free some room, or name another file with --video") from error
    return len(images)


def _begun(td: TensorDictBase, policy: Any) -> TensorDictBase:
    """Return the root of a first step, with the start of what a policy carries."""
    states = states_of(policy)
    for state in states:
        td.set(state.name, state.start(tuple(td.batch_size), td.device))
    return td.set(IS_INIT, torch.ones_like(td.get(DONE))) if states else td


def _going_on(td: TensorDictBase) -> TensorDictBase:
    """Return the root of a following step: the policy has written its states under ``next``."""
    return td if td.get(IS_INIT, None) is None else td.set(IS_INIT, torch.zeros_like(td.get(DONE)))


def _fps(env: Any) -> float:
    """Frames per second, as a Gymnasium environment states it."""
    simulator = getattr(env, "gym_env", env)
    simulator = simulator[0] if isinstance(simulator, (list, tuple)) else simulator
    return (getattr(simulator, "metadata", None) or {}).get("render_fps") or FPS


def _without_screen(error: BaseException) -> str:
    """Return the remedy if OpenGL finds no screen, as MuJoCo does on a server."""
    said = f"{type(error).__name__} {error}".lower()
    signs = ("mujoco_gl", "opengl", "glfw", "gladload", "egl", "display", "framebuffer", "glcontext")
    if not any(sign in said for sign in signs):
        return ""
    return ". Without a screen, MuJoCo renders with MUJOCO_GL=egl rl eval ..., or with MUJOCO_GL=osmesa"


def _render(env: Any, name: str) -> Any:
    try:
        image = env.render()
    except Exception as error:  # simulators raise what they like
        raise RLError(f"{name!r} cannot be rendered: {error}{_without_screen(error)}") from error
    if image is None:
        raise RLError(f"{name!r} rendered nothing; it knows no render_mode 'rgb_array'")
    return image[0] if isinstance(image, (list, tuple)) else image
