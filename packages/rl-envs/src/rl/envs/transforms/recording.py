"""Transforms that record what happens in an environment: pictures, videos, steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase, is_non_tensor
from torch import Tensor

from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Bounded, NonTensor, TensorSpec, Unbounded
from rl.core.state import pack, save
from rl.envs.transforms._base import Transform, check_root_done
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.image import CenterCrop

__all__ = ["PixelRenderTransform", "TensorDictRecorder", "VideoRecorder"]

#: channels of pictures that are drawn: gray, and red, green and blue
CHANNELS = (1, 3)


class VideoRecorder(Transform):
    """Keeps the pictures that an environment writes, and hands them to a logger as a video.

    Reads pictures, uint8 or floats in [0, 1]: ``[*B, H, W, C]`` or ``[*B, C, H, W]`` with one or three channels, or
    ``[H, W]``; writes nothing else. `dump` calls ``logger.log_video(tag, video, step=...)`` with uint8
    ``[1, T, 3, H, W]``. A reset of all elements adds a picture; a reset of some does not, so that the others do not
    stand still. Pictures that are not dumped take memory: `max_frames` is the limit.

    On a batch, `forward` keeps the pictures of its in keys, in order.

    Args:
        logger: Object with ``log_video(name, video, step, **options)``, such as `rl.trainers.CSVLogger`; None for none.
        tag: Name of the video.
        in_keys: Pictures; ``["pixels"]`` if None.
        skip: Number of steps for each picture that is kept; if None 2 in an environment without a batch, else 1.
        center_crop: Side of the square in the middle that is kept; None for all.
        make_grid: Whether the pictures of a batch are one picture, as tiles; else they follow each other. If None, true
            in an environment.
        out_keys: Keys that it writes, with the values of `in_keys`; `in_keys` if None.
        fps: Pictures per second of the video; None for what the logger takes.
        max_frames: Maximum number of pictures between two dumps; later ones are dropped. None for no limit.
        dump_on_done: Whether to `dump` when an episode ends, of any element.
        options: Further arguments of ``log_video``.

    Attributes:
        obs: Pictures since the last dump, uint8 ``[3, H, W]``.

    Raises:
        ArgumentError: If a number is below 1.
        SpecError: If an entry is no picture, or smaller than `center_crop`.

    Example:
        >>> from tensordict import TensorDict
        >>> class Shapes:
        ...     def log_video(self, name, video, step, **options):
        ...         print(name, tuple(video.shape), step, options)
        >>> recorder = VideoRecorder(Shapes(), "walk", fps=10)
        >>> batch = recorder(TensorDict(pixels=torch.zeros(5, 8, 8, 3, dtype=torch.uint8)))
        >>> recorder.dump()
        walk (1, 5, 3, 8, 8) 0 {'fps': 10}
    """

    leafwise = True

    def __init__(
        self,
        logger: Any,
        tag: str | None,
        in_keys: Iterable[NestedKey] | None = None,
        skip: int | None = None,
        center_crop: int | None = None,
        make_grid: bool | None = None,  # noqa: FBT001  as TorchRL has it
        out_keys: Iterable[NestedKey] | None = None,
        fps: float | None = None,
        *,
        max_frames: int | None = None,
        dump_on_done: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.logger, self.tag = logger, tag
        self._skip = None if skip is None else as_integer(skip, "VideoRecorder", "skip", 1)
        self.center_crop, self._make_grid = center_crop, make_grid
        self._crop = None if center_crop is None else CenterCrop(center_crop)
        self.max_frames = None if max_frames is None else as_integer(max_frames, "VideoRecorder", "max_frames", 1)
        self.dump_on_done = dump_on_done
        self.video_kwargs: dict[str, Any] = {**options, **({} if fps is None else {"fps": fps})}
        self.obs: list[Tensor] = []
        self.iter = self.count = 0
        self._paused = False  # during a reset of some elements

    @property
    def skip(self) -> int:
        """Number of steps for each picture that is kept."""
        if self._skip is not None:
            return self._skip
        return 1 if self.parent is None or len(self.parent.batch_size) else 2

    @property
    def make_grid(self) -> bool:
        """Whether the pictures of a batch are one picture."""
        return self.parent is not None if self._make_grid is None else self._make_grid

    def _apply(self, value: Any) -> Any:
        if self._paused:
            return value
        self.count += 1
        if self.count % self.skip == 0:
            pictures = self._pictures(torch.as_tensor(value.data) if is_non_tensor(value) else value)
            room = None if self.max_frames is None else self.max_frames - len(self.obs)
            self.obs += pictures[:room]
        return value

    def _pictures(self, value: Tensor) -> list[Tensor]:
        """Return pictures, uint8 ``[3, H, W]``: one, or one for each element."""
        picture = _channels_first(value)
        if picture is None:
            raise SpecError(
                f"{self!r} draws pictures [*B, H, W, C] or [*B, C, H, W] with one or three channels, got"
                f" {value.dtype} {tuple(value.shape)}"
            )
        if picture.dtype.is_floating_point:
            picture = (picture.clamp(0, 1) * 255).round()
        picture = picture.to("cpu", torch.uint8)
        if self._crop is not None:
            picture = self._crop._apply(picture)  # noqa: SLF001  a transform calls the hook of another
        picture = picture.expand(*picture.shape[:-3], CHANNELS[-1], *picture.shape[-2:])
        flat = picture.reshape(-1, *picture.shape[-3:])
        tiled = self.make_grid and picture.ndim > len(flat.shape[1:])
        return [_tiles(flat)] if tiled else [one.clone() for one in flat]  # simulators may draw into the same memory

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        self._paused = mask is not None and not bool(mask.all())
        try:
            return self._call(root)
        finally:
            self._paused = False

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        outcome = self._call(outcome)
        if self.dump_on_done and bool(outcome["done"].any()):
            self.dump()
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Check that there are pictures.

        Raises:
            SpecError: If the environment does not write them, or has no ``done`` at the root with `dump_on_done`.
        """
        if self.dump_on_done:
            check_root_done(specs, self)
        super().transform_specs(specs)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Keep the pictures of a batch; its in keys are used as they are."""
        return self._call(tensordict.copy())

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:
        """Hand the pictures since the last dump to the logger as a video; nothing if there are none.

        Args:
            suffix: Text after the name of the video and ``_``.
            step: Step of the video; the number of earlier dumps if None.
        """
        if self.obs and self.logger is not None:
            name = self.tag if suffix is None else f"{self.tag}_{suffix}"
            at = self.iter if step is None else step
            self.logger.log_video(name, torch.stack(self.obs).unsqueeze(0), step=at, **self.video_kwargs)
        self.obs, self.count = [], 0
        self.iter += 1

    def clone(self) -> Self:
        """Return a copy without pictures that belongs to no environment; it has the same logger."""
        logger, obs, self.logger, self.obs = self.logger, self.obs, None, []
        try:
            copied = super().clone()
        finally:
            self.logger, self.obs = logger, obs
        copied.logger = logger
        return copied


def _channels_first(value: Tensor) -> Tensor | None:
    """Return pictures as ``[*B, C, H, W]``; None if they are none. Of two readings the channels are the last ones."""
    if value.ndim == 2:
        return value.unsqueeze(0)
    if value.ndim > 2 and value.shape[-1] in CHANNELS:
        return value.movedim(-1, -3)
    return value if value.ndim > 2 and value.shape[-3] in CHANNELS else None


def _tiles(pictures: Tensor) -> Tensor:
    """Return pictures ``[N, C, H, W]`` as one, in about as many rows as columns; the last tiles may be black."""
    count, channels, height, width = pictures.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    black = pictures.new_zeros(rows * columns - count, channels, height, width)
    tiles = torch.cat([pictures, black]).reshape(rows, columns, channels, height, width)
    return tiles.permute(2, 0, 3, 1, 4).reshape(channels, rows * height, columns * width)


class PixelRenderTransform(Transform):
    """Writes what ``env.render()`` returns, after each reset and step.

    Writes ``pixels``: for an array, or a list of one for each element, a tensor ``[*B, ...]``; for one picture of a
    whole batch, non-tensor data. The environment is reset once to find the shape, and then restored if it can be.

    Args:
        out_keys: Key that it writes; ``["pixels"]`` if None.
        preproc: Function of what was drawn that returns what is written.
        as_non_tensor: Whether to write non-tensor data; if None, where it is one picture of a whole batch.
        render_method: Name of the method of the environment.
        pass_tensordict: Whether to call the method with the entries of the reset or step, for environments without a
            state of their own.
        options: Arguments of the method, such as ``mode="rgb_array"``.

    Raises:
        ArgumentError: If there are several out keys, or the environment has no such method.
        RLError: If it draws nothing.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1", render_mode="rgb_array"), PixelRenderTransform())
        >>> env.rollout(3)["pixels"].shape
        torch.Size([3, 400, 600, 3])
        >>> env.close()
    """

    leafwise = True

    def __init__(
        self,
        out_keys: Iterable[NestedKey] | None = None,
        preproc: Callable[[Any], Any] | None = None,
        as_non_tensor: bool | None = None,  # noqa: FBT001  as TorchRL has it
        render_method: str = "render",
        pass_tensordict: bool = False,  # noqa: FBT001, FBT002  as TorchRL has it
        **options: Any,
    ) -> None:
        keys: Any = ["pixels"] if out_keys is None else [out_keys] if isinstance(out_keys, tuple) else out_keys
        super().__init__([], keys)
        if len(self.out_keys) != 1:
            raise ArgumentError(f"PixelRenderTransform writes one entry, got out_keys={self.out_keys}")
        self.preproc, self.as_non_tensor, self.render_method = preproc, as_non_tensor, render_method
        self.pass_tensordict, self.kwargs = pass_tensordict, options
        self._enabled = True
        self._spec: TensorSpec | None = None

    @property
    def enabled(self) -> bool:
        """Whether pictures are drawn."""
        return self._enabled

    def switch(self, mode: str | bool | None = None) -> None:  # noqa: FBT001  as TorchRL has it
        """Turn drawing on or off; without it the environment has no entry for pictures.

        Args:
            mode: State to set, ``"on"``, ``"off"`` or a bool; the other one if None.

        Raises:
            ArgumentError: If `mode` is another text.
        """
        if isinstance(mode, str):
            mode = one_of(mode, "PixelRenderTransform.switch", "mode", ("on", "off")) == "on"
        self._enabled = not self._enabled if mode is None else mode
        if self._parent is not None:
            self._parent.refresh()

    def is_leafwise(self) -> bool:
        return not (self.pass_tensordict or isinstance(self._spec, NonTensor))

    def _call(self, entries: Any) -> Any:
        if self._enabled:
            entries[self.out_keys[0]] = self._value_of(self._draw(entries))
        return entries

    def _draw(self, entries: Any) -> Any:
        """Return what the environment draws, as an array, a tensor, or what `preproc` returns."""
        assert self._parent is not None
        method = getattr(self._parent.base_env, self.render_method, None)
        if not callable(method):
            raise ArgumentError(
                f"{self!r} calls {self.render_method}(), which {type(self._parent.base_env).__name__} does not have;"
                " name another method with render_method="
            )
        drawn = method(entries, **self.kwargs) if self.pass_tensordict else method(**self.kwargs)
        if isinstance(drawn, list | tuple) and not any(one is None for one in drawn):
            drawn = torch.stack([*drawn]) if isinstance(drawn[0], Tensor) else np.stack(drawn)
        if drawn is None or isinstance(drawn, list | tuple):
            raise RLError(
                f"{self.render_method}() of {type(self._parent.base_env).__name__} returned no picture: create it with"
                " render_mode='rgb_array'"
            )
        return drawn if self.preproc is None else self.preproc(drawn)

    def _value_of(self, drawn: Any) -> Any:
        assert self._parent is not None
        if isinstance(self._spec, NonTensor):
            return NonTensorData(drawn, batch_size=self._parent.batch_size)
        tensor = _as_tensor(drawn)
        return tensor.to(self._parent.device or tensor.device)

    def transform_specs(self, specs: Specs) -> None:
        if not self._enabled:
            return
        if self._spec is None:
            self._spec = self._find_spec(specs)
        specs.add("observation", self.out_keys[0], self._spec, self)

    def _find_spec(self, specs: Specs) -> TensorSpec:
        assert self._parent is not None
        env = self._parent.base_env
        state = env.state_dict()
        drawn = self._draw(env.reset())
        if state.get("restorable", False):
            env.load_state_dict(state)
        batch = tuple(specs.batch_size)
        shape = tuple(np.shape(drawn))
        fits = shape[: len(batch)] == batch and len(shape) >= len(batch)
        single = bool(batch) and (not fits or len(shape) == len(batch) + 2) and shape[-1:] == (CHANNELS[-1],)
        if single if self.as_non_tensor is None else self.as_non_tensor:
            return NonTensor((), example_data=drawn)
        if not fits:
            raise SpecError(f"{self!r} draws the shape {shape} in an environment of batch {batch}: pass preproc=")
        value = _as_tensor(drawn)
        element = shape[len(batch) :]
        if value.dtype == torch.uint8:
            return Bounded(0, 255, shape=element, dtype=torch.uint8, device=specs.device)
        return Unbounded(element, dtype=value.dtype, device=specs.device)

    def set_parent(self, parent: Any) -> None:
        super().set_parent(parent)
        if parent is None:
            self._spec = None

    def clone(self) -> Self:
        """Return a copy that belongs to no environment."""
        copied = super().clone()
        copied._spec = None  # noqa: SLF001  of this class
        return copied


def _as_tensor(drawn: Any) -> Tensor:
    return drawn if isinstance(drawn, Tensor) else torch.as_tensor(np.ascontiguousarray(drawn))


class TensorDictRecorder(Transform):
    """Keeps what an environment writes in its steps, and writes it to a file.

    `dump` writes a TensorDict ``[*B, T]`` of the kept steps, without pickle, to
    ``{out_file_base}_tensordict.safetensors``: the whole file, or nothing and the old one stays. `rl.core.state.unpack`
    of what `rl.core.state.load` reads returns it.

    Args:
        out_file_base: Path and beginning of the name of the file.
        skip_reset: Whether to leave out what resets write.
        skip: Number of steps for each one that is kept.
        in_keys: Entries that are kept; all if None.

    Raises:
        ArgumentError: If `skip` is below 1.

    Example:
        >>> import tempfile
        >>> from rl.core.state import load, unpack
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> recorder = TensorDictRecorder("swing", skip=2, in_keys=["observation", "reward"])
        >>> env = TransformedEnv(PendulumEnv(batch_size=[3]), recorder)
        >>> data = env.rollout(10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recorder.out_file_base = f"{folder}/swing"
        ...     file = env.transform.dump()
        ...     steps = unpack(load(f"{folder}/swing_tensordict.safetensors"), "swing")
        >>> steps["observation"].shape
        torch.Size([3, 5, 3])
    """

    leafwise = False

    def __init__(
        self,
        out_file_base: str | Path,
        skip_reset: bool = True,  # noqa: FBT001, FBT002  as TorchRL has it
        skip: int = 4,
        in_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(() if in_keys is None else in_keys)
        self.out_file_base, self.skip_reset = out_file_base, skip_reset
        self.skip = as_integer(skip, "TensorDictRecorder", "skip", 1)
        self.td: list[TensorDictBase] = []
        self.iter = self.count = 0

    def _call(self, entries: Any) -> Any:
        self.count += 1
        if self.count % self.skip == 0:
            kept = entries.select(*self.in_keys, strict=False) if self.in_keys else entries.exclude("_reset")
            self.td.append(kept.clone())
        return entries

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        return root if self.skip_reset or not (mask is None or bool(mask.all())) else self._call(root)

    def transform_specs(self, specs: Specs) -> None:
        """Check that the entries exist.

        Raises:
            SpecError: If one does not.
        """
        for key in self.in_keys:
            specs.written(key, self)

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:  # noqa: ARG002 - of the interface
        """Write the steps since the last dump; nothing if there are none.

        Args:
            suffix: Text after `out_file_base` and ``_``.
            step: Ignored.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        if self.td:
            base = f"{self.out_file_base}{'' if suffix is None else f'_{suffix}'}"
            kept: list[Any] = self.td
            steps = torch.stack(kept, len(self.td[0].batch_size))
            save(f"{base}_tensordict.safetensors", pack(steps, type(self).__name__))
        self.td, self.count = [], 0
        self.iter += 1

    def __repr__(self) -> str:
        keys = f", in_keys={[key_str(key) for key in self.in_keys]}" if self.in_keys else ""
        return f"{type(self).__name__}({str(self.out_file_base)!r}{keys})"
