"""`atari`: the standard stack of transforms for Atari games."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs
from rl.envs.transforms._transformed_env import Compose
from rl.envs.transforms.episode._control import EndOfLifeTransform, FrameSkipTransform, NoopResetEnv
from rl.envs.transforms.image import Resize, luminance
from rl.envs.transforms.observation import CatFrames, TimeMaxPool


def atari(
    *,
    noop_max: int = 30,
    frame_skip: int = 4,
    max_pool: bool = True,
    grayscale: bool = True,
    screen_size: int | None = 84,
    stack: int = 4,
    episodic_life: bool = True,
    clip_reward: bool = True,
    key: NestedKey = "observation",
) -> Compose:
    """Return the standard stack of transforms for Atari games.

    It computes what Gymnasium's ``AtariPreprocessing`` and ``FrameStackObservation`` do, to the last bit, on a full
    batch at a time. Create the environment with ``frameskip=1``, or actions are repeated twice, and with
    ``info_keys=["lives"]`` for `episodic_life`; ``obs_type="grayscale"`` yields the same frames as RGB, and is faster.
    Mnih et al., "Human-level control through deep reinforcement learning", 2015; Machado et al., "Revisiting the Arcade
    Learning Environment", 2018.

    Reads screens uint8 ``[*B, H, W, 3]``, or ``[*B, H, W]`` in gray; writes frames uint8
    ``[*B, stack * channels, screen_size, screen_size]`` under the same key.

    Args:
        noop_max: Most steps without effect at the start of an episode (`NoopResetEnv`); none if 0.
        frame_skip: Number of times that an action is repeated (`FrameSkipTransform`).
        max_pool: Whether to take the maximum of the last two frames (`TimeMaxPool`).
        grayscale: Whether to take the luminance of RGB screens (`GrayScale`).
        screen_size: Height and width of a frame (`Resize`); those of the screen if None.
        stack: Number of frames (`CatFrames`).
        episodic_life: Whether to end an episode with each life (`EndOfLifeTransform`); the game then begins again.
        clip_reward: Whether to take the sign of the reward.
        key: The screens.

    Returns:
        A `Compose`, to be put around an environment or changed further.

    Raises:
        ArgumentError: If an argument is out of range.

    Example:
        >>> from rl.envs.transforms import atari
        >>> len(atari()), len(atari(noop_max=0, clip_reward=False, episodic_life=False))
        (8, 5)
    """
    noop_max = as_integer(noop_max, "atari", "noop_max", 0)
    parts: list[Transform] = []
    if noop_max:
        parts.append(NoopResetEnv(noop_max))
    if episodic_life:
        parts.append(_EpisodicLife())
    parts.append(_Screen(key, grayscale=grayscale))
    if max_pool:
        parts.append(TimeMaxPool([key], T=2))
    if frame_skip != 1:
        parts.append(FrameSkipTransform(frame_skip))
    if screen_size is not None:
        parts.append(Resize(screen_size, interpolation="area", in_keys=[key]))
    if stack != 1:
        parts.append(CatFrames(stack, -3, in_keys=[key]))
    if clip_reward:
        parts.append(_Sign(["reward"]))
    return Compose(*parts)


class _EpisodicLife(EndOfLifeTransform):
    """Ends an episode when a life is lost."""

    leafwise: ClassVar[bool] = True

    def _step(self, root: Any, outcome: Any) -> Any:
        super()._step(root, outcome)
        over = outcome[self.eol_key]
        outcome["terminated"] = outcome["terminated"] | (over & ~outcome["done"])
        outcome["done"] = over.clone()
        return outcome


class _Screen(Transform):
    """Screens ``[*B, H, W, 3]`` or ``[*B, H, W]`` as images with the channels in front."""

    def __init__(self, key: NestedKey, *, grayscale: bool) -> None:
        super().__init__([key])
        self._grayscale = grayscale
        self._colored = False

    def _apply(self, value: Tensor) -> Tensor:
        if not self._colored:
            return value.unsqueeze(-3)
        return luminance(value, -1).movedim(-1, -3) if self._grayscale else value.movedim(-1, -3).contiguous()

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        shape = spec.shape
        if len(shape) not in {2, 3} or (len(shape) == 3 and shape[-1] != 3) or spec.dtype != torch.uint8:
            raise SpecError(
                f"atari reads uint8 screens [H, W, 3] or [H, W] under {self.in_keys[0]!r}, the environment writes"
                f" {spec.dtype} {tuple(shape)}: create it with obs_type='grayscale' or 'rgb'"
            )
        self._colored = len(shape) == 3
        low = self._apply(spec.zero())
        return Bounded(0, 255, shape=low.shape, dtype=torch.uint8, device=spec.device)


class _Sign(Transform):
    """The sign of the reward."""

    def _apply(self, value: Tensor) -> Tensor:
        return value.sign()

    def transform_specs(self, specs: Specs) -> None:
        for key in self.in_keys:
            spec = specs.reward[key]
            specs.reward[key] = (
                Bounded(-1, 1, shape=spec.shape, dtype=spec.dtype, device=spec.device)
                if spec.dtype.is_floating_point
                else Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)
            )
