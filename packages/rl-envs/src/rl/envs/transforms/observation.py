"""Transforms of observations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, ClassVar, Literal

import torch
from tensordict import NonTensorStack, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments, one_of
from rl.core.env_specs import describe_entry
from rl.core.errors import ArgumentError, CheckpointError, ContractError, RLError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, next_key, unwrap
from rl.core.mdp import where_reset
from rl.core.registry import load
from rl.core.specs import Bounded, NonTensor, TensorSpec, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform, write_result
from rl.envs.transforms._maps import mapped_spec
from rl.envs.transforms._specs import Specs, as_values

__all__ = [
    "CatFrames",
    "ClipTransform",
    "FiniteTensorDictCheck",
    "Hash",
    "NextObservationDelta",
    "NextStateReconstructor",
    "ObservationIndices",
    "ObservationTransform",
    "TimeMaxPool",
    "UnaryTransform",
    "cat_frames",
]


class FrameMemory(Transform):
    """Base class of transforms that combine the last frames of each episode.

    The frames are held by the transform, so that transforms after it may change what it writes. Elements that a partial
    reset leaves out, or that ``_step`` excludes, keep theirs.

    Args:
        length: Number of frames.
        in_keys: Frames.
        out_keys: Combinations.
        reset_key: Mask of a partial reset, which must be ``_reset``: next to a ``done`` at the root.

    Raises:
        ArgumentError: If the length is below 1, or the mask is another.
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        length: int,
        in_keys: Iterable[NestedKey] | None,
        out_keys: Iterable[NestedKey] | None,
        reset_key: NestedKey | None,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        length = as_integer(length, type(self).__name__, "N", 1)
        if reset_key not in (None, "_reset", ("_reset",)):
            raise ArgumentError(
                f"{type(self).__name__}: reset_key must be '_reset', the mask next to the 'done' at the root, got"
                f" {key_str(reset_key)}"
            )
        self._length = length
        self._frames: dict[NestedKey, list[Tensor]] = {}
        self._device: torch.device | None = None

    def _before(self, first: Tensor) -> Tensor:
        """Return the fill of the frames before the first one."""
        return first

    def _combine(self, frames: list[Tensor]) -> Tensor:
        """Return the value of an out key, for the frames in time order."""
        raise NotImplementedError

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            first = root[key]
            frames = [*[self._before(first)] * (self._length - 1), first]
            held = self._frames.get(key)
            if mask is not None and held is not None:
                frames = [where_reset(mask, new, old) for new, old in zip(frames, held, strict=True)]
            self._frames[key] = frames
            root[out] = self._combine(frames)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        moving = root.get("_step", None)
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            held = self._frames.get(key)
            if held is None:
                raise RLError(f"{self!r} has seen no first frame: reset the environment before the first step")
            frames = [*held[1:], outcome[key]]
            if moving is not None:
                frames = [where_reset(moving, new, old) for new, old in zip(frames, held, strict=True)]
            self._frames[key] = frames
            outcome[out] = self._combine(frames)
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Map the specs of the frames.

        Raises:
            SpecError: If episodes end below the root, or a frame is missing.
        """
        if specs.done_levels() != [()]:
            raise SpecError(f"{self!r} needs a 'done' at the root, the environment has {specs.done_levels()}")
        self._device = specs.device or torch.device("cpu")  # that of the entries here: a later cast may move them
        super().transform_specs(specs)

    def state_dict(self) -> dict[str, Any]:
        """Return the frames, in the order of `in_keys`; none before the first reset."""
        return {"frames": [list(self._frames[key]) for key in self.in_keys if key in self._frames]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: If the number of entries or frames is another.
        """
        saved = state.get("frames", [])
        if saved and (len(saved) != len(self.in_keys) or any(len(one) != self._length for one in saved)):
            raise CheckpointError(
                f"{self!r} holds {self._length} frames of {len(self.in_keys)} entries, the state has"
                f" {[len(one) for one in saved]}: build the same transform"
            )
        self._frames = {
            key: [frame.to(self._device) for frame in frames] for key, frames in zip(self.in_keys, saved, strict=False)
        }


Padding = Literal["same", "constant"]


class CatFrames(FrameMemory):
    """Concatenates the last `N` frames of an episode, the oldest first.

    In an environment it holds the frames; on a batch in time order (``[*B, T]``, also flat slices of a buffer) it finds
    the episodes by ``("next", done)``, and writes the same at the root and under ``next``. A batch that begins within
    an episode is padded there. Mnih et al., "Human-level control through deep reinforcement learning", 2015.

    Reads frames ``[*B, *F]``; writes ``[*B, *F]`` with dimension `dim` `N` times as long, of the same dtype.

    Args:
        N: Number of frames, at least 1.
        dim: Dimension of a frame along which they are concatenated, counted from the end, below 0.
        in_keys: Frames. On a batch also ``("next", key)``: then the stacks of ``next`` go to its out key.
        out_keys: Keys of the stacks; `in_keys` if None.
        padding: Fill of the frames before an episode's first: ``"same"`` repeats the first, ``"constant"`` is
            `padding_value`.
        padding_value: Value for ``padding="constant"``.
        as_inverse: Whether a replay buffer concatenates when a batch is written (`inv`), not when it is sampled.
        reset_key: Mask of a partial reset; only ``_reset`` at the root.
        done_key: End of an episode in a batch, under ``next``.

    Raises:
        ArgumentError: If an argument is out of range.

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
            ContractError: If a frame or ``("next", done)`` is missing.
            ShapeError: If the batch has no time dimension.
        """
        return tensordict if self.as_inverse else self._on_batch(tensordict)

    def unfolding(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Concatenate frames of a batch ``[*B, T]`` in time order, whatever `as_inverse` is; writes into `tensordict`.

        Raises:
            ContractError: If a frame or ``("next", done)`` is missing.
            ShapeError: If the batch has no time dimension.
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
        """Return a transform and a sampler for a replay buffer whose steps hold single frames.

        The sampler draws slices of `N` steps, and the transform returns the last step of each with its frames
        concatenated. The buffer samples all steps: give it ``batch_size=N * batch_size``.

        Args:
            batch_size: Number of steps that are returned.
            sampler_kwargs: Arguments of the slice sampler of rl-replay, besides ``slice_len``.

        Raises:
            UnknownComponentError: If rl-replay is not installed.
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
        tensor: Frames ``[*B, T, *F]``.
        N: Number of frames.
        dim: Dimension along which they are concatenated, below 0; it becomes `N` times as long.
        padding: Fill before an episode's first frame: ``"same"`` repeats the first frame of an episode, ``"constant"``
            puts `padding_value`.
        padding_value: Value for ``padding="constant"``.
        time_dim: The dimension of time, below 0.
        done_mask: Mask bool ``[*B, T, N]`` or ``[*B, T, 1, N]``, true where a frame of the window lies before the
            episode of its last one; one episode if None. Frames before the sequence are padded whatever it says.

    Raises:
        ArgumentError: If an argument is out of range.
        ShapeError: If the mask has another shape or dtype.

    Example:
        >>> cat_frames(torch.arange(3.0).unsqueeze(-1), 2, -1, time_dim=-2).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 2.0]]
    """
    _check_arguments(dim, padding, "cat_frames")
    if time_dim >= 0 or N < 1:
        raise ArgumentError(f"cat_frames: time_dim must be below 0 and N at least 1, got time_dim={time_dim}, N={N}")
    time = tensor.ndim + time_dim
    over = torch.zeros(tensor.shape[: time + 1], dtype=torch.bool, device=tensor.device)
    padded, wanted = _padded(over, N), (*over.shape, N)
    if done_mask is not None:
        if done_mask.shape not in (wanted, (*over.shape, 1, N)) or done_mask.dtype is not torch.bool:
            got = f"{done_mask.dtype} {tuple(done_mask.shape)}"
            raise ShapeError(f"cat_frames: done_mask must be bool of the shape {wanted}, got {got}")
        # The last frame of a window is always in its episode.
        mask = done_mask.reshape(wanted) & (torch.arange(N, device=tensor.device) < N - 1)
        padded = padded | mask
    return torch.cat(_windows(tensor, padded, time, padding, padding_value), dim)


def _check_arguments(dim: int, padding: str, owner: str) -> None:
    if dim >= 0:
        raise ArgumentError(f"{owner}: dim must be below 0, as the number of batch dimensions varies, got {dim}")
    one_of(padding, owner, "padding", ("same", "constant"))


def _padded(over: Tensor, length: int) -> Tensor:
    """Where a window of `length` steps reaches back beyond its episode, ``[*B, T, length]``.

    Args:
        over: End of an episode, bool ``[*B, T]``: true at its last step.
        length: Length of the windows.
    """
    steps = torch.arange(over.shape[-1], device=over.device)
    begins = torch.where(over, steps + 1, 0).cummax(-1).values.roll(1, -1)
    begins = torch.where(steps == 0, 0, begins)  # of the episode of each step
    reached = steps.unsqueeze(-1) + torch.arange(1 - length, 1, device=over.device)
    return reached < begins.unsqueeze(-1)


def _windows(tensor: Tensor, padded: Tensor, time: int, padding: Padding, value: float) -> list[Tensor]:
    """For each step the frames of its window, oldest first.

    Args:
        tensor: Frames ``[*B, T, *F]``.
        padded: Mask of the padding, bool ``[*B, T, N]``.
        time: Position of the dimension of time.
        padding: See `cat_frames`.
        value: See `cat_frames`.
    """
    length = padded.shape[-1]
    steps = torch.arange(padded.shape[-2], device=tensor.device)
    first = padded.sum(-1)  # of the window that is not padded; those that are come before it
    tail = (1,) * (tensor.ndim - time - 1)
    frames: list[Tensor] = []
    for slot in range(length - 1):
        # Where a constant is the padding, a mask need not be of the first frames of a window.
        source = first.clamp(min=slot) if padding == "same" else torch.full_like(first, slot)
        index = (steps + source - (length - 1)).clamp(min=0).reshape(*padded.shape[:-1], *tail)
        frame = tensor.gather(time, index.expand(tensor.shape))
        if padding == "constant":
            frame = torch.where(padded[..., slot].reshape(index.shape), value, frame).to(tensor.dtype)
        frames.append(frame)
    return [*frames, tensor]


class ClipTransform(Transform):
    """Clips entries to an interval.

    Args:
        in_keys: Entries that it reads.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries of the environment's input that get the clipped entries of the caller.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.
        low: Smallest value; no limit if None.
        high: Largest value; no limit if None.

    Raises:
        ArgumentError: If there is no limit, or `low` is above `high`.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), ClipTransform(["observation"], low=0.0, high=1.0))
        >>> env.rollout(5)["observation"].min().item() >= 0
        True
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] = (),
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        low: float | Tensor | None = None,
        high: float | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        none = low is None and high is None
        lows, highs = (
            None if one is None else as_values(one, "ClipTransform", name, infinite=True)
            for name, one in (("low", low), ("high", high))
        )
        if none or (lows is not None and highs is not None and bool((lows > highs).any())):
            raise ArgumentError(f"ClipTransform needs low, high or both, in this order; got {low} and {high}")
        self.low, self.high = low, high

    def _apply(self, value: Tensor) -> Tensor:
        return value.clamp(self.low, self.high)  # pyright: ignore[reportCallIssue, reportArgumentType]

    _inverse = _apply

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if isinstance(spec, Bounded) or self.low is None or self.high is None:
            return mapped_spec(spec, self._apply)
        return Bounded(self.low, self.high, shape=spec.shape, dtype=spec.dtype, device=spec.device)


class FiniteTensorDictCheck(Transform):
    """Raises a ContractError that names the entry if a floating-point entry is NaN or infinite.

    Order: append it last, or behind the transform that you suspect.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> FiniteTensorDictCheck()(TensorDict({"observation": torch.tensor([0.0, torch.inf])}, [2]))
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: 'observation' is not finite in 1 of 2 elements: ...
    """

    leafwise: ClassVar[bool] = True

    def _call(self, entries: Any) -> Any:
        for key in leaf_keys(entries):
            value = entries.get(key)
            if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
                wrong = int((~value.isfinite()).sum())
                raise ContractError(
                    f"{key_str(key)} is not finite in {wrong} of {value.numel()} elements: look at the environment, or"
                    " the transforms before FiniteTensorDictCheck"
                )
        return entries


@foreign_arguments()
class Hash(Transform):
    """Writes the hash of each value: of texts, or of tensors, one for each element of the batch.

    For the inverse keys, the environment gets the value of a hash that was computed before: of those in `repertoire`.

    Args:
        in_keys: Keys of the values.
        out_keys: Keys of the hashes, ``[*B, 32]`` of uint8 by default.
        in_keys_inv: Keys of the environment's input, which get the values.
        out_keys_inv: Keys of the caller, which have the hashes; `in_keys_inv` if None.
        hash_fn: Function from a text or a tensor, and `seed` if there is one, to a tensor; `reproducible_hash` if None.
        seed: Second argument of `hash_fn`.
        repertoire: Values by hash, written with each new value and shared with the caller; a new dictionary where
            there are inverse keys, otherwise none is kept, if None.

    Raises:
        ArgumentError: If `hash_fn` does not return a tensor.
        ContractError: If the inverse finds a hash without a value.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv([2]), Hash(["observation"], ["hash"]))
        >>> env.reset()["hash"].shape
        torch.Size([2, 32])
    """

    leafwise = False

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey],
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        hash_fn: Callable[..., Tensor] | None = None,
        seed: Any = None,
        repertoire: dict[Any, Any] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv or (), out_keys_inv)
        self.hash_fn, self.seed = hash_fn or self.reproducible_hash, seed
        self.repertoire = {} if repertoire is None and self.in_keys_inv else repertoire

    @staticmethod
    def reproducible_hash(value: Any, seed: str | None = None) -> Tensor:
        """Return the SHA-256 digest of a text, of None as of ``""``, or of the bytes of a tensor, uint8 ``[32]``.

        Args:
            value: Text, tensor or None.
            seed: Text before the value.
        """
        if isinstance(value, Tensor):
            data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        else:
            data = ("" if value is None else str(value)).encode()
        digest = hashlib.sha256((seed or "").encode() + data).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8)

    def get_input_from_hash(self, hash_tensor: Tensor) -> Any:
        """Return the value whose hash was computed before.

        Raises:
            ContractError: If there is none.
        """
        name = _name(hash_tensor.tolist())
        if self.repertoire is None or name not in self.repertoire:
            raise ContractError(
                f"{self!r} knows no value of the hash {hash_tensor.tolist()}: hash it before, with in_keys_inv or"
                " repertoire="
            )
        return self.repertoire[name]

    def _digest(self, value: Any) -> Tensor:
        out = self.hash_fn(value) if self.seed is None else self.hash_fn(value, self.seed)
        if not isinstance(out, Tensor):
            raise ArgumentError(f"{self!r}: hash_fn must return a tensor, got {type(out).__name__}")
        return out

    def _hash(self, value: Any) -> Tensor:
        out = self._digest(value)
        if self.repertoire is not None:  # a copy: a tensor here is a part of the batch, which may be written
            self.repertoire[_name(out.tolist())] = value.clone() if isinstance(value, Tensor) else value
        return out

    def _call(self, entries: Any) -> Any:
        size = entries.batch_size
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = entries.get(key, None)
            if value is not None:
                hashes = torch.stack([self._hash(one) for one in _elements(value, len(size))])
                hashes = hashes.reshape(*size, *hashes.shape[1:])
                entries[out] = hashes.to(value.device) if isinstance(value, Tensor) else hashes
        return entries

    def _inv(self, root: Any) -> Any:
        size = root.batch_size
        for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            hashes = root.get(out, None)
            if hashes is None:
                continue
            values = [self.get_input_from_hash(one) for one in _elements(hashes, len(size))]
            if isinstance(values[0], Tensor):
                root[key] = torch.stack(values).reshape(*size, *values[0].shape)
            else:
                root[key] = NonTensorStack(*values).reshape(size) if size else values[0]
        return root

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        out = self._digest("" if isinstance(spec, NonTensor) else spec.zero())
        return Unbounded(out.shape, dtype=out.dtype, device=spec.device)


def _elements(value: Any, batch_dims: int) -> list[Any]:
    """Return the value of each element of the batch."""
    if isinstance(value, Tensor):
        return list(value.flatten(0, batch_dims - 1)) if batch_dims else [value]
    values = value.tolist() if hasattr(value, "tolist") else value
    for _ in range(batch_dims - 1):
        values = [one for row in values for one in row]
    return values if batch_dims else [values]


def _name(numbers: Any) -> Any:
    """Return a hash as key of a dictionary: a number, or nested tuples of numbers."""
    return tuple(map(_name, numbers)) if isinstance(numbers, list) else numbers


class NextObservationDelta(Transform):
    """Stores each next observation in a replay buffer as its difference from the observation, in low precision.

    Appended to a buffer, it replaces ``("next", key)`` of a batch that is written by ``("next", "delta", key)``, and
    writes ``("next", key)``, the sum of the observation and the difference, into samples. Samples are those of a
    buffer without it up to the precision of `delta_dtype`, also at the end of an episode.

    In an environment it takes `in_keys` from the observations and changes nothing: append the same transform to the
    buffer. Batches of a collector have the full next observations.

    Args:
        in_keys: Keys of the observations, without ``next``; all of a floating dtype not among `excluded_dtypes` that
            the environment has, if None.
        delta_dtype: Floating dtype of the differences.
        restore_dtype: Dtype of next observations in samples; ``"root"`` for that of the observation.
        drop_delta: Whether samples are without the differences.
        excluded_dtypes: Dtypes of observations that are left as they are if `in_keys` is None.

    Raises:
        ArgumentError: If a dtype is not of floating-point numbers.
        ContractError: If a batch has no such observation, or one of integers, or a difference exceeds the range of
            `delta_dtype`.
        RLError: If there are neither `in_keys` nor an environment.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(x=torch.tensor([1.0, 2.0]), next=TensorDict(x=torch.tensor([2.0, 2.5])), batch_size=[2])
        >>> delta = NextObservationDelta(["x"])
        >>> stored = delta.inv(batch)
        >>> stored["next", "delta", "x"], delta(stored)["next", "x"]
        (tensor([1.0000, 0.5000], dtype=torch.float16), tensor([2.0000, 2.5000]))
    """

    leafwise = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: torch.dtype | Literal["root"] = "root",
        drop_delta: bool = True,
        excluded_dtypes: Iterable[torch.dtype] = (),
    ) -> None:
        for name, dtype in (("delta_dtype", delta_dtype), ("restore_dtype", restore_dtype)):
            if dtype != "root" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
                raise ArgumentError(f"NextObservationDelta: {name} must be a floating-point dtype, got {dtype!r}")
        super().__init__(() if in_keys is None else in_keys)
        self._every = in_keys is None
        self.delta_dtype, self.restore_dtype, self.drop_delta = delta_dtype, restore_dtype, drop_delta
        self.excluded_dtypes = tuple(excluded_dtypes)

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        return reset, step

    def has_inverse(self) -> bool:
        """Whether it maps what is written to a buffer: always."""
        return True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a sample with next observations."""
        out = tensordict.copy()
        for key in self._keys():
            value, delta = (self._read(tensordict, one) for one in (key, ("next", "delta", *as_tuple(key))))
            dtype = value.dtype if self.restore_dtype == "root" else self.restore_dtype
            out.set(next_key(key), value.to(dtype) + delta.to(dtype))
        return out.exclude(("next", "delta")) if self.drop_delta else out

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch to store, with differences in place of next observations."""
        out = tensordict.copy()
        for key in self._keys():
            value, following = self._read(tensordict, key), self._read(tensordict, next_key(key))
            if following.shape != value.shape or not value.is_floating_point():
                raise ContractError(
                    f"{self!r}: {key_str(key)} is {describe_entry(value)} and its next value"
                    f" {describe_entry(following)}; a difference is that of floating-point numbers of one shape: leave"
                    " it out of in_keys"
                )
            difference = following - value
            delta = difference.to(self.delta_dtype)
            if not torch.equal(delta.isfinite(), difference.isfinite()):
                raise ContractError(
                    f"{self!r}: a difference of {key_str(key)} exceeds the range of {self.delta_dtype}; pass"
                    " delta_dtype=torch.bfloat16, or normalize the observations"
                )
            out.set(("next", "delta", *as_tuple(key)), delta)
        return out.exclude(*[next_key(key) for key in self.in_keys])

    def _keys(self) -> list[NestedKey]:
        if self._every and not self.in_keys:
            raise RLError(f"{self!r} has no observations: pass in_keys=, or append it to the environment before")
        return self.in_keys

    def _read(self, batch: TensorDictBase, key: NestedKey) -> Tensor:
        value: Any = batch.get(key, None)
        if value is None:
            raise ContractError(
                f"{self!r} reads {key_str(key)}, which the batch does not have: it has"
                f" {sorted(map(str, batch.keys(include_nested=True, leaves_only=True)))}"
            )
        return value

    def transform_specs(self, specs: Specs) -> None:
        """Choose the observations, or check that they exist."""
        if self._every:
            found = {key: specs.observation[key].dtype for key in leaf_keys(specs.observation)}
            self.in_keys = [
                key
                for key, dtype in found.items()
                if dtype is not None and dtype.is_floating_point and dtype not in self.excluded_dtypes
            ]
            self.out_keys = list(self.in_keys)
        for key in self.in_keys:
            specs.written(key, self)


class NextStateReconstructor(Transform):
    """Writes the next observation of each step: the observation of the following row, if it is the following step.

    For sampled sequences whose stored steps have no next observations; not for environments. A row has a following step
    in the batch if the next row belongs to the same trajectory, and the row itself does not end one; otherwise
    `fill_value` is written. Losses cannot use such rows with NaN: the last step of each slice, and of each episode.

    Reads the observations ``[*B, T, ...]`` and the three keys below, one value for each row; time is the last dimension
    of the batch. Writes ``("next", key)`` in the shape and dtype of each observation.

    Args:
        keys: Keys of the observations, without ``next``.
        traj_key: Key of the trajectory id of each row; None for one trajectory.
        done_key: Key of the end of a trajectory, or of a slice; None for none.
        step_count_key: Key of the number of steps, which has to grow by 1 from a row to the following step; None for
            no such condition.
        fill_value: Value where there is no following step; an integer for integer observations.
        strict: Whether a key that the batch does not have is an error, otherwise its condition is left out.

    Raises:
        ContractError: If a batch has no such observation, or lacks a key while `strict`.
        SpecError: If `fill_value` is NaN for an observation of integers.
        ShapeError: If the batch has no time dimension.
        RLError: If it is appended to an environment.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(observation=torch.arange(4.0), episode=torch.tensor([0, 0, 1, 1]), batch_size=[4])
        >>> NextStateReconstructor(traj_key="episode", done_key=None)(batch)["next", "observation"].tolist()
        [1.0, nan, 3.0, nan]
    """

    def __init__(
        self,
        keys: Iterable[NestedKey] = ("observation",),
        *,
        traj_key: NestedKey | None = ("collector", "traj_ids"),
        done_key: NestedKey | None = ("next", "done"),
        step_count_key: NestedKey | None = None,
        fill_value: float = float("nan"),
        strict: bool = True,
    ) -> None:
        super().__init__(keys)
        self.keys = list(self.in_keys)
        self.traj_key, self.done_key, self.step_count_key = (
            None if key is None else unwrap(key) for key in (traj_key, done_key, step_count_key)
        )
        self.fill_value, self.strict = fill_value, strict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch with the next observations."""
        if not tensordict.ndim:
            raise ShapeError(f"{self!r} reads a batch [*B, T] in time order, got a single step without batch")
        time, follows = tensordict.ndim - 1, self._follows(tensordict)
        out = tensordict.copy()
        for key in self.keys:
            value = tensordict.get(key, None)
            if value is None:
                raise ContractError(f"{self!r} reads {key_str(key)}, which the batch does not have")
            if not value.is_floating_point() and self.fill_value != self.fill_value:
                raise SpecError(
                    f"{self!r} cannot write NaN as next value of {key_str(key)}, which is {value.dtype}: pass"
                    " fill_value="
                )
            mask = follows.to(value.device).reshape(*follows.shape, *[1] * (value.ndim - follows.ndim))
            out.set(next_key(key), value.roll(-1, time).masked_fill(~mask, self.fill_value))
        return out

    def _follows(self, batch: TensorDictBase) -> Tensor:
        """Whether the next row is the following step, bool ``[*B, T]``."""
        follows = torch.ones(batch.batch_size, dtype=torch.bool, device=batch.device)
        follows[..., -1:] = False
        for key, holds in (
            (self.traj_key, lambda one: one.roll(-1, -1) == one),
            (self.done_key, lambda one: ~one.bool()),
            (self.step_count_key, lambda one: one.roll(-1, -1) == one + 1),
        ):
            if key is None:
                continue
            marker = batch.get(key, None)
            if marker is not None:
                follows = follows.to(marker.device) & holds(marker.reshape(*batch.batch_size, -1)[..., 0])
            elif self.strict:
                raise ContractError(
                    f"{self!r} finds the steps that follow by {key_str(key)}, which the batch does not have: name the"
                    " entry with traj_key=, done_key= or step_count_key=, or pass None there, or strict=False"
                )
        return follows

    def transform_specs(self, specs: Specs) -> None:
        """Reject an environment.

        Raises:
            RLError: Always.
        """
        del specs
        raise RLError(f"{self!r} reads sequences: append it to the replay buffer, an environment writes 'next' itself")


class ObservationIndices(Transform):
    """Selects elements of a vector, as to hide the velocities from the policy.

    Args:
        indices: Positions of the selected elements, from 0, in the order of the result.
        in_keys: Keys of the vectors; ``["observation"]`` if None.
        out_keys: Keys of the results; `in_keys` if None.

    Shapes: ``[*B, n]`` to ``[*B, len(indices)]``, of the same dtype.

    Raises:
        ArgumentError: if an index is no integer of at least 0.
        SpecError: if the environment has no such entry, or it is no vector, or it has fewer elements.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> env = TransformedEnv(CartPoleEnv(seed=0), ObservationIndices([0, 2]))  # position and angle, no velocities
        >>> env.reset()["observation"].shape
        torch.Size([2])
    """

    def __init__(
        self,
        indices: Iterable[int],
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys)
        self.indices = [as_integer(index, "ObservationIndices", "an index", least=0) for index in indices]
        self._index = torch.tensor(self.indices, dtype=torch.int64)

    def _apply(self, value: Tensor) -> Tensor:
        if self._index.device != value.device:  # once: a copy at each step would wait for the device
            self._index = self._index.to(value.device)
        return value.index_select(-1, self._index)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) != 1:
            raise SpecError(f"{self!r} selects elements of a vector, got {type(spec).__name__} {list(spec.shape)}")
        if max(self.indices, default=0) >= spec.shape[0]:
            raise SpecError(
                f"{self!r} selects {self.indices} of a vector with {spec.shape[0]} elements, which are numbered from 0"
                f" to {spec.shape[0] - 1}"
            )
        return spec[self._index.to(spec.device)]


class ObservationTransform(Transform):
    """Base class of transforms of the observation: `Transform` whose `in_keys` are ``["observation"]`` by default.

    Args:
        in_keys: Entries that it reads; ``observation`` if None.
        out_keys: Entries that it writes; `in_keys` if None.
        in_keys_inv: See `Transform`.
        out_keys_inv: See `Transform`.

    Example:
        >>> ObservationTransform().in_keys
        ['observation']
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)


class TimeMaxPool(FrameMemory):
    """Takes the elementwise maximum of the last `T` frames of an episode, against sprites that flicker.

    Reads frames; writes their maximum, of the same shape and dtype. The first frame of an episode stands alone.
    Mnih et al., "Human-level control through deep reinforcement learning", 2015, methods.

    Args:
        in_keys: Frames.
        out_keys: Keys of the maximum; `in_keys` if None.
        T: Number of frames, at least 1.
        reset_key: Mask of a partial reset; only ``_reset`` at the root.

    Raises:
        ArgumentError: If `T` is below 1.

    Order: before `FrameSkipTransform`, to see the frames that it skips.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> data = TransformedEnv(PendulumEnv(), TimeMaxPool(["observation"], ["highest"], T=2)).rollout(3)
        >>> bool((data["next", "highest"] == data["observation"].maximum(data["next", "observation"])).all())
        True
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        T: int = 1,  # noqa: N803  # the name of the concept that users know
        reset_key: NestedKey | None = None,
    ) -> None:
        super().__init__(as_integer(T, "TimeMaxPool", "T", 1), in_keys, out_keys, reset_key)
        self.T = T

    def _combine(self, frames: list[Tensor]) -> Tensor:
        return reduce(torch.maximum, frames) if len(frames) > 1 else frames[0].clone()


@foreign_arguments()
class UnaryTransform(Transform):
    """Applies a function to each of its entries. Results have unbounded specs, whose shape a run on zeros shows.

    Args:
        in_keys: Entries that it reads.
        out_keys: Entries that it writes.
        in_keys_inv: Entries of the environment's input that `inv_fn` writes.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.
        fn: Function from tensor to tensor, with any batch in front.
        inv_fn: The same, for the inverse keys.

    Raises:
        ArgumentError: If there are keys without their function.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), UnaryTransform(["observation"], ["square"], fn=lambda x: x * x))
        >>> env.observation_spec["square"].shape
        torch.Size([3])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        fn: Callable[[Any], Any] | None = None,
        inv_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if (fn is None and self.in_keys) or (inv_fn is None and self.in_keys_inv):
            raise ArgumentError("UnaryTransform needs fn for in_keys, and inv_fn for in_keys_inv")
        self.fn, self.inv_fn = fn, inv_fn

    def _apply(self, value: Any) -> Any:
        assert self.fn is not None
        return self.fn(value)

    def _inverse(self, value: Any) -> Any:
        assert self.inv_fn is not None
        return self.inv_fn(value)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.fn is None:
            return spec
        example = self.fn(spec.zero())
        return Unbounded(example.shape, dtype=example.dtype, device=example.device)
