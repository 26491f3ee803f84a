"""Episodes to look at: in a window, as a video, and with keys in place of the policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from tensordict import TensorDictBase

from rl.core.errors import RLError, SpecError
from rl.core.keys import NEXT, leaf_keys
from rl.envs import PixelRenderTransform, Transform, TransformedEnv
from rl.trainers._device import preserved_rng, torch_threads
from rl.trainers._storage import atomic_path, check_video
from rl.trainers.actions import choices, mask_key
from rl.trainers.evaluation import Evaluator, TrainedRun
from rl.trainers.inference import base_of
from rl.trainers.networks import action_of

#: entry of the pictures that are drawn
DRAWN = "drawn"

#: pictures per second of an environment that does not say
FPS = 30

#: steps of an episode in a video
MAX_STEPS = 5_000

#: keys of the first actions, where an environment has two to four
ARROWS = ("left", "down", "right", "up")

#: keys of the actions in their order, where the environment has no table
KEYS = "0123456789abcdefghijklmnopqrstuvwxyz"

Keys = Callable[[], Collection[str]]
"""Function that returns the names of the keys that are held."""


class Screen(Protocol):
    """Where pictures are shown."""

    def show(self, picture: Any, title: str) -> bool:
        """Show a picture, uint8 ``[H, W, 3]``; returns whether the user has ended the play."""
        ...


class Episode(NamedTuple):
    """An episode that was played.

    Attributes:
        total: Its return.
        steps: Its length.
        success: Whether it was a success; None if the environment does not say.
        whole: Whether it was played to its end.
    """

    total: float
    steps: int
    success: bool | None
    whole: bool


def play(
    run: TrainedRun,
    screen: Callable[[float], Screen],
    *,
    episodes: int | None = 1,
    seed: int,
    deterministic: bool = True,
    max_steps: int | None = None,
    keys: Keys | None = None,
) -> Generator[Episode]:
    """Play episodes one after the other, and yield each when it has ended.

    Args:
        run: Run whose policy plays.
        screen: Function that returns where pictures are shown, called once with the pictures per second.
        episodes: Number of episodes; None for no end.
        seed: Seed of the first episode; the others have the following ones.
        deterministic: Whether to take the deterministic action (exploration off) instead of sampling as in training.
        max_steps: Largest number of steps of an episode; None for no limit.
        keys: Function that returns the keys that are held, which act in place of the policy; None for no keys.

    Raises:
        RLError: If the environment cannot be rendered, or has no discrete action for keys.
    """
    with torch_threads(run.config.threads):
        env = drawn_env(run, seed)
        if keys is not None:
            env = TransformedEnv(env, KeyActions(env, keys))
        evaluator = Evaluator(lambda _count, _seed: env, run.policy, deterministic=deterministic)
        shown = screen(_fps(env))
        try:
            for number in islice(count(), episodes):
                watch = _Watch(shown, max_steps, f"{run.recipe.name} on {run.config.env}, episode {number + 1}")
                (total,) = evaluator.run(1, seed=seed + number, watch=watch).tolist()
                success = None if evaluator.successes is None else bool(evaluator.successes[0])
                yield Episode(total, watch.steps, success, watch.whole)
                if watch.ended:
                    return
        finally:
            env.close()


class _Watch:
    """Shows each step of an episode; a true result ends it."""

    def __init__(self, screen: Screen, max_steps: int | None, title: str) -> None:
        self._screen, self._max, self._title = screen, max_steps, title
        self._total = 0.0
        self.steps, self.ended, self.whole = 0, False, False

    def __call__(self, batch: TensorDictBase) -> bool:
        if self.steps == 0:
            self.ended = self._show(batch)
        self.steps += 1
        self._total += float(batch.get((NEXT, "reward")).sum())
        self.whole = bool(batch.get((NEXT, "done")).any())
        self.ended = self._show(batch.get(NEXT)) or self.ended
        return self.ended or self.steps == self._max

    def _show(self, entries: TensorDictBase) -> bool:
        return self._screen.show(entries.get(DRAWN)[0, 0].numpy(force=True), f"{self._title}, return {self._total:.1f}")


def drawn_env(run: TrainedRun, seed: int) -> Any:
    """Return one environment of evaluations that also writes pictures, ``[1, H, W, 3]``.

    The global generators are as before.

    Raises:
        RLError: If it cannot be rendered.
    """
    name = run.config.env
    with preserved_rng():
        try:
            env: Any = run.make_env(1, seed, render_mode="rgb_array")
        except (TypeError, RLError) as error:
            raise RLError(f"{name!r} cannot be rendered: it takes no render_mode ({error})") from error
        try:
            return TransformedEnv(env, PixelRenderTransform([DRAWN], preproc=_one_picture, as_non_tensor=False))
        except Exception as error:  # simulators raise what they like
            env.close()
            raise RLError(f"{name!r} cannot be rendered: {error}{without_screen(error)}") from error


def _one_picture(drawn: Any) -> Any:
    """Return a picture with the batch of one environment in front."""
    return np.asarray(drawn).reshape(1, *np.shape(drawn)[-3:])


def without_screen(error: BaseException) -> str:
    """Return the remedy if OpenGL finds no screen, as MuJoCo does on a server."""
    said = f"{type(error).__name__} {error}".lower()
    signs = ("mujoco_gl", "opengl", "glfw", "gladload", "egl", "display", "framebuffer", "glcontext")
    if not any(sign in said for sign in signs):
        return ""
    return ". Without a screen, MuJoCo renders with MUJOCO_GL=egl rl eval ..., or with MUJOCO_GL=osmesa"


def _fps(env: Any) -> float:
    """Frames per second, as a Gymnasium environment states it."""
    return (getattr(_simulator(env), "metadata", None) or {}).get("render_fps") or FPS


def _simulator(env: Any) -> Any:
    """Return the Gymnasium environment inside, or the environment below all transforms."""
    base = base_of(env)
    simulator = getattr(base, "gym_env", base)
    return simulator[0] if isinstance(simulator, list | tuple) else simulator


# ---- videos


class VideoFile:
    """Screen that writes its pictures into a video.

    Args:
        path: The file, ``.mp4`` or ``.gif``.

    Attributes:
        count: Number of pictures so far.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._writer, self.count = path, None, 0

    def at(self, fps: float) -> VideoFile:
        """Begin the video, with that many pictures per second."""
        from imageio import v2 as imageio

        # The codec needs even sides; by default imageio scales frames to multiples of 16.
        gif = self._path.suffix == ".gif"
        options: dict[str, Any] = {"duration": 1000 / fps, "loop": 0} if gif else {"fps": fps, "macro_block_size": 2}
        self._writer: Any = imageio.get_writer(self._path, **options)
        return self

    def show(self, picture: Any, title: str) -> bool:  # noqa: ARG002 - of the protocol
        """Append a picture."""
        self._writer.append_data(picture)
        self.count += 1
        return False

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def open_video(out: str | Path) -> Generator[VideoFile]:
    """Open a video that is at `out` when the block ends without an error.

    Raises:
        RLError: If it cannot be written.
    """
    try:
        with atomic_path(Path(out)) as path, closing(VideoFile(path)) as file:
            yield file
    except OSError as error:
        raise RLError(f"{out} cannot be written: {error}; free some room, or name another file") from error


def record_video(run: TrainedRun, out: str | Path, *, seed: int, deterministic: bool = True) -> int:
    """Write an episode as a video, headless.

    Args:
        run: Run to show.
        out: The file, ``.mp4`` or ``.gif``; it must not exist.
        seed: Seed of the episode.
        deterministic: Whether to take the deterministic action (exploration off) instead of sampling as in training.

    Returns:
        The number of images.

    Raises:
        RLError: If the environment cannot be rendered, or the file exists.
        MissingExtraError: If imageio is not installed.
    """
    check_video(out)
    with open_video(out) as file:
        list(play(run, file.at, seed=seed, deterministic=deterministic, max_steps=MAX_STEPS))
    return file.count


# ---- keys


def keys_of(env: Any) -> dict[frozenset[str], int]:
    """Return the action of each key, or keys held together: those of the simulator, or digits, letters and arrows.

    Raises:
        SpecError: If the environment has no single discrete action.
    """
    actions = leaf_keys(env.full_action_spec)
    classes = choices(action_of(env)[1]) if len(actions) == 1 else []
    if len(classes) != 1:
        raise SpecError(
            f"--keyboard is for environments with one discrete action; this one has {', '.join(map(str, actions))}:"
            " leave it out"
        )
    table = getattr(getattr(_simulator(env), "unwrapped", None), "get_keys_to_action", None)
    if table is not None:
        return {frozenset(map(_key_name, keys)): int(action) for keys, action in table().items() if keys}
    number = classes[0]
    found = {frozenset((key,)): action for action, key in enumerate(KEYS[:number])}
    arrows = ("left", "right") if number == 2 else ARROWS[:number] if number <= len(ARROWS) else ()
    return {**{frozenset((key,)): action for action, key in enumerate(arrows)}, **found}


def _key_name(key: Any) -> str:
    """Return the name of a key that Gymnasium states as a character or as a code of pygame."""
    code = ord(key) if isinstance(key, str) else key
    names = {ord(" "): "space", ord("\r"): "return"}
    if code < 128:
        return names.get(code, chr(code))
    import pygame

    return pygame.key.name(code)


def describe_keys(env: Any) -> str:
    """Return the table of keys as lines, with the names that a simulator gives its actions."""
    meanings = getattr(getattr(_simulator(env), "unwrapped", None), "get_action_meanings", list)()
    lines: dict[int, list[str]] = {}
    for keys, action in keys_of(env).items():
        lines.setdefault(action, []).append("+".join(sorted(keys)))
    width = max(len(" or ".join(keys)) for keys in lines.values())
    return "".join(
        f"  {' or '.join(keys):<{width}}  {meanings[action] if action < len(meanings) else f'action {action}'}\n"
        for action, keys in sorted(lines.items())
    )


class KeyActions(Transform):
    """Takes the action of the keys that are held in place of that of the policy; an illegal one is not taken.

    Args:
        env: Environment that it is for.
        keys: Function that returns the names of the keys that are held.

    Raises:
        SpecError: If the environment has no single discrete action.
    """

    leafwise = True

    def __init__(self, env: Any, keys: Keys) -> None:
        super().__init__(in_keys_inv=[leaf_keys(env.full_action_spec)[0]])
        self._table: Mapping[frozenset[str], int] = keys_of(env)
        self._keys, self._mask = keys, mask_key(env)
        self._one_hot = bool(action_of(env)[1].shape)

    def _inv(self, root: Any) -> Any:
        names = frozenset().union(*self._table)
        action = self._table.get(frozenset(self._keys()) & names)
        mask = None if self._mask is None else root.get(self._mask, None)
        if action is not None and (mask is None or bool(mask.reshape(-1)[action])):
            (key,) = self.in_keys_inv
            root[key] = self._encode(root[key], action)
        return root

    def _encode(self, value: Any, action: int) -> Any:
        if not self._one_hot:
            return torch.full_like(value, action)
        return torch.zeros_like(value).index_fill(-1, torch.tensor(action, device=value.device), 1)
