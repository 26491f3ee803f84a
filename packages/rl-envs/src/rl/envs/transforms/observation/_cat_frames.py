"""`CatFrames`: the last frames of an episode as one entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str
from rl.core.registry import load
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.transforms._base import write_result
from rl.envs.transforms._frames import FrameMemory

__all__ = ["CatFrames", "cat_frames"]

Padding = Literal["same", "constant"]


class CatFrames(FrameMemory):
    """Concatenates the last `N` frames of an episode, the oldest first.

    In an environment it holds the frames; on a batch in time order (``[*B, T]``, also flat slices of a buffer) it finds
    the episodes by ``("next", done)``, and writes the same at the root and under ``next``. A batch that begins within
    an episode is padded there. Mnih et al., "Human-level control through deep reinforcement learning", 2015.

    Reads frames ``[*B, *F]``; writes ``[*B, *F]`` with dimension `dim` `N` times as long, of the same dtype.

    Args:
        N: number of frames, at least 1.
        dim: dimension of a frame along which they are concatenated, counted from the end, below 0.
        in_keys: frames. On a batch also ``("next", key)``: then the stacks of ``next`` go to its out key.
        out_keys: where the stacks go; `in_keys` if None.
        padding: what stands for frames before an episode's first: ``"same"`` repeats the first, ``"constant"`` is
            `padding_value`.
        padding_value: for ``padding="constant"``.
        as_inverse: in a replay buffer, concatenate when a batch is written (`inv`), not when it is sampled.
        reset_key: mask of a partial reset; only ``_reset`` at the root.
        done_key: end of an episode in a batch, under ``next``.

    Raises:
        SpecError: if an argument is out of range.

    Order: after transforms of single frames, such as `Resize`.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), CatFrames(N=4, dim=-1, in_keys=["observation"]))
        >>> env.reset()["observation"].shape
        torch.Size([12])
    """

    def __init__(
        self,
        N: int,  # noqa: N803  # the name of the concept that users know
        dim: int,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        padding: Padding = "same",
        padding_value: float = 0,
        *,
        as_inverse: bool = False,
        reset_key: NestedKey | None = None,
        done_key: NestedKey | None = None,
    ) -> None:
        super().__init__(N, in_keys, out_keys, reset_key)
        _check_arguments(dim, padding, "CatFrames")
        self.N, self.dim = N, dim
        self.padding: Padding = padding
        self.padding_value = padding_value
        self.as_inverse = as_inverse
        self.reset_key = reset_key
        self.done_key: NestedKey = "done" if done_key is None else done_key

    def _before(self, first: Tensor) -> Tensor:
        return first if self.padding == "same" else torch.full_like(first, self.padding_value)

    def _combine(self, frames: list[Tensor]) -> Tensor:
        return torch.cat(frames, self.dim)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) < -self.dim:
            raise SpecError(
                f"{self!r} concatenates along dimension {self.dim}, a frame has the shape {tuple(spec.shape)}"
            )
        if not isinstance(spec, Bounded):
            shape = torch.cat([spec.zero()] * self.N, self.dim).shape
            return Unbounded(shape, dtype=spec.dtype, device=spec.device)
        low, high = spec.space.low, spec.space.high
        lows, highs = [low] * self.N, [high] * self.N
        if self.padding == "constant":
            lows[:-1] = [low.clamp(max=self.padding_value)] * (self.N - 1)
            highs[:-1] = [high.clamp(min=self.padding_value)] * (self.N - 1)
        return Bounded(torch.cat(lows, self.dim), torch.cat(highs, self.dim), dtype=spec.dtype, device=spec.device)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Concatenate frames of a batch ``[*B, T]`` in time order; nothing with `as_inverse`.

        Raises:
            ContractError: if a frame or ``("next", done)`` is missing.
            ShapeError: if the batch has no time dimension.
        """
        return tensordict if self.as_inverse else self._on_batch(tensordict)

    def unfolding(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Concatenate frames of a batch ``[*B, T]`` in time order, whatever `as_inverse` is; writes into `tensordict`.

        Raises:
            ContractError: if a frame or ``("next", done)`` is missing.
            ShapeError: if the batch has no time dimension.
        """
        return write_result(tensordict, self._on_batch(tensordict))

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """With `as_inverse`, the same as `forward` without it."""
        return self._on_batch(tensordict) if self.as_inverse else tensordict

    def _on_batch(self, batch: TensorDictBase) -> TensorDictBase:
        if not batch.ndim:
            raise ShapeError(f"{self!r} reads a batch [*B, T] in time order, got a single step without batch")
        over = batch.get(("next", *as_tuple(self.done_key)), None)
        if over is None:
            raise ContractError(
                f"{self!r} finds episodes by {key_str(('next', *as_tuple(self.done_key)))}, which the batch does not"
                " have: keep it, or name another flag as done_key"
            )
        time = batch.ndim - 1
        over = over.reshape(*batch.batch_size, -1).any(-1)
        padded = _padded(over, self.N)
        named = [as_tuple(key) for key in self.in_keys]
        out = batch.copy()
        for given, name in zip(self.in_keys, self.out_keys, strict=True):
            only_next = as_tuple(given)[0] == "next"  # the frames before those of `next` are at the root
            key = as_tuple(given)[1:] if only_next else as_tuple(given)
            value = batch.get(key, None)
            if value is None:
                raise ContractError(f"{self!r} reads {key_str(key)}, which the batch does not have at the root")
            if value.ndim - batch.ndim < -self.dim:
                raise ShapeError(
                    f"{self!r} concatenates along dimension {self.dim}, a frame of {key_str(key)} has the shape"
                    f" {tuple(value.shape[batch.ndim :])}"
                )
            frames = _windows(value, padded, time, self.padding, self.padding_value)
            if not only_next:
                out.set(name, torch.cat(frames, self.dim))
            following = batch.get(("next", *key), None)
            if only_next and following is None:
                raise ContractError(f"{self!r} reads {key_str(given)}, which the batch does not have")
            if following is not None and (only_next or ("next", *key) not in named):
                target = as_tuple(name) if only_next else ("next", *as_tuple(name))
                out.set(target, torch.cat([*frames[1:], following], self.dim))
        return out

    def make_rb_transform_and_sampler(
        self, batch_size: int, **sampler_kwargs: Any
    ) -> tuple[Callable[[TensorDictBase], TensorDictBase], Any]:
        """A transform and a sampler for a replay buffer whose steps hold single frames.

        The sampler draws slices of `N` steps, and the transform returns the last step of each with its frames
        concatenated. The buffer samples all steps: give it ``batch_size=N * batch_size``.

        Args:
            batch_size: number of steps that are returned.
            sampler_kwargs: for the slice sampler of rl-replay, besides ``slice_len``.

        Raises:
            UnknownComponentError: if rl-replay is not installed.
        """
        sampler: Any = load("sampler", "slices")
        own = type(self)(
            self.N,
            self.dim,
            list(self.in_keys),
            list(self.out_keys),
            self.padding,
            self.padding_value,
            done_key=self.done_key,
        )
        return _LastOfSlices(own, batch_size), sampler(slice_len=self.N, **sampler_kwargs)


class _LastOfSlices:
    """The last step of each slice of `CatFrames.N` steps, with its frames concatenated."""

    def __init__(self, frames: CatFrames, batch_size: int) -> None:
        self._frames, self._batch_size = frames, batch_size

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        length = self._frames.N
        if batch.numel() != length * self._batch_size:
            raise ShapeError(
                f"{self!r} reads {self._batch_size} slices of {length} steps, got a batch {tuple(batch.batch_size)}:"
                f" give the buffer batch_size={length * self._batch_size}"
            )
        return self._frames.forward(batch.reshape(self._batch_size, length))[:, -1]

    def __repr__(self) -> str:
        return f"LastOfSlices({self._frames!r}, batch_size={self._batch_size})"


def cat_frames(
    tensor: Tensor,
    N: int,  # noqa: N803  # the name of the concept that users know
    dim: int,
    *,
    padding: Padding = "same",
    padding_value: float = 0.0,
    time_dim: int = -1,
    done_mask: Tensor | None = None,
) -> Tensor:
    """Concatenate each frame of a sequence with those before it, the oldest first.

    Args:
        tensor: frames ``[*B, T, *F]``.
        N: number of frames.
        dim: dimension along which they are concatenated, below 0; it becomes `N` times as long.
        padding: ``"same"`` repeats the first frame of an episode, ``"constant"`` puts `padding_value`.
        padding_value: for ``padding="constant"``.
        time_dim: the dimension of time, below 0.
        done_mask: bool ``[*B, T, N]``, true where a frame of the window lies before the episode of its last one; one
            episode if None.

    Raises:
        SpecError: if an argument is out of range.
        ShapeError: if the mask has another shape.

    Example:
        >>> cat_frames(torch.arange(3.0).unsqueeze(-1), 2, -1, time_dim=-2).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 2.0]]
    """
    _check_arguments(dim, padding, "cat_frames")
    if time_dim >= 0 or N < 1:
        raise SpecError(f"cat_frames: time_dim must be below 0 and N at least 1, got time_dim={time_dim}, N={N}")
    time = tensor.ndim + time_dim
    if done_mask is None:
        over = torch.zeros(tensor.shape[: time + 1], dtype=torch.bool, device=tensor.device)
        done_mask = _padded(over, N)
    elif done_mask.shape != (*tensor.shape[: time + 1], N):
        raise ShapeError(
            f"cat_frames: done_mask must have the shape {(*tensor.shape[: time + 1], N)}, got {tuple(done_mask.shape)}"
        )
    return torch.cat(_windows(tensor, done_mask, time, padding, padding_value), dim)


def _check_arguments(dim: int, padding: str, owner: str) -> None:
    if dim >= 0:
        raise SpecError(f"{owner}: dim must be below 0, as the number of batch dimensions varies, got {dim}")
    if padding not in ("same", "constant"):
        raise SpecError(f"{owner}: padding must be 'same' or 'constant', got {padding!r}")


def _padded(over: Tensor, length: int) -> Tensor:
    """Where a window of `length` steps reaches back beyond its episode, ``[*B, T, length]``.

    Args:
        over: bool ``[*B, T]``, the last step of each episode.
        length: of the windows.
    """
    steps = torch.arange(over.shape[-1], device=over.device)
    begins = torch.where(over, steps + 1, 0).cummax(-1).values.roll(1, -1)
    begins = torch.where(steps == 0, 0, begins)  # of the episode of each step
    reached = steps.unsqueeze(-1) + torch.arange(1 - length, 1, device=over.device)
    return reached < begins.unsqueeze(-1)


def _windows(tensor: Tensor, padded: Tensor, time: int, padding: Padding, value: float) -> list[Tensor]:
    """For each step the frames of its window, oldest first.

    Args:
        tensor: frames ``[*B, T, *F]``.
        padded: bool ``[*B, T, N]``.
        time: position of the dimension of time.
        padding: see `cat_frames`.
        value: see `cat_frames`.
    """
    length = padded.shape[-1]
    steps = torch.arange(padded.shape[-2], device=tensor.device)
    first = padded.sum(-1)  # of the window that is not padded; those that are come before it
    tail = (1,) * (tensor.ndim - time - 1)
    frames: list[Tensor] = []
    for slot in range(length - 1):
        index = (steps + first.clamp(min=slot) - (length - 1)).reshape(*padded.shape[:-1], *tail)
        frame = tensor.gather(time, index.expand(tensor.shape))
        if padding == "constant":
            frame = torch.where(padded[..., slot].reshape(index.shape), value, frame).to(tensor.dtype)
        frames.append(frame)
    return [*frames, tensor]
