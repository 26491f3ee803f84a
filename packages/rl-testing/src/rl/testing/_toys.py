"""The smallest implementations of protocols, and Ctrl-C at a chosen line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import same_shape
from rl.core.errors import BackendError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.recurrent import RecurrentOptions, keep_modes
from rl.core.specs import Binary, Categorical, Composite, Unbounded
from rl.testing._recurrent_backend import recurrent_reference

FLAGS = ("done", "terminated", "truncated")


class CountingEnv:
    """Counts the steps of an episode and terminates it at `length`; for tests, and as an example of the protocol.

    It is an `rl.core.interfaces.Env` without inheriting from anything. ``observation`` is the number of steps since
    the reset, the reward is the action.

    Args:
        length: Steps of an episode, >= 1. A list gives each element of the batch its own.
        batch_size: Batch size of the environment.

    Keys: writes ``observation`` float32 ``[*B, 1]``; reads ``action`` int64 ``[*B]`` in {0, 1}; writes under
    ``next`` the observation, ``reward`` float32 ``[*B, 1]`` and the done flags bool ``[*B, 1]``.

    Example:
        >>> env = CountingEnv(length=2)
        >>> root = env.reset()
        >>> root["action"] = torch.tensor(1)
        >>> _, root = env.step_and_maybe_reset(root)
        >>> root["observation"]
        tensor([1.])
    """

    def __init__(self, length: int | list[int] = 3, batch_size: tuple[int, ...] = ()) -> None:
        self.batch_size = torch.Size(batch_size)
        self.device = torch.device("cpu")
        self._length = (
            torch.as_tensor(length, dtype=torch.float32).reshape(-1, 1) if isinstance(length, list) else length
        )
        shape = (*batch_size, 1)
        self.observation_spec = Composite(observation=Unbounded(shape), shape=batch_size)
        self.full_action_spec = Composite(action=Categorical(2, shape=batch_size), shape=batch_size)
        self.full_reward_spec = Composite(reward=Unbounded(shape), shape=batch_size)
        flag = Binary(shape=shape, dtype=torch.bool)
        self.full_done_spec = Composite(dict.fromkeys(FLAGS, flag), shape=batch_size)
        self.closed = False

    @property
    def action_spec(self) -> Categorical:
        """The action's spec."""
        return self.full_action_spec["action"]

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """See `rl.core.interfaces.LeafEnv`."""
        start = torch.zeros((*self.batch_size, 1))
        flags = {flag: torch.zeros(start.shape, dtype=torch.bool) for flag in FLAGS}
        if mask is None or current is None:
            return {"observation": start, **flags}
        kept: Leaves = {"observation": torch.where(mask, start, current["observation"])}
        return kept | {flag: current[flag] & ~mask for flag in FLAGS}

    def step_leaves(self, root: Leaves) -> Leaves:
        """See `rl.core.interfaces.LeafEnv`."""
        count = root["observation"] + 1
        ended = count >= self._length
        return {
            "observation": count,
            "reward": root["action"].to(torch.float32).unsqueeze(-1),
            "done": ended,
            "terminated": ended.clone(),
            "truncated": torch.zeros_like(ended),
        }

    def lowered(self) -> LeafEnv:
        """Return the leaf form: the environment itself."""
        return self

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """See `rl.core.interfaces.Env`."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if tensordict is None or mask is None:
            return TensorDict(self.reset_leaves(), batch_size=self.batch_size)  # pyright: ignore[reportArgumentType]
        root: Leaves = {key: tensordict[key] for key in ("observation", *FLAGS)}
        return tensordict.exclude("_reset").update(self.reset_leaves(root, mask))

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See `rl.core.interfaces.Env`."""
        outcome = self.step_leaves({key: tensordict[key] for key in ("observation", "action")})
        return tensordict.set("next", TensorDict(outcome, batch_size=self.batch_size))  # pyright: ignore[reportArgumentType]

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """See `rl.core.interfaces.Env`."""
        self.step(tensordict)
        root = tensordict["next"].exclude("reward")
        done = root["done"]
        return tensordict, self.reset(root.set("_reset", done)) if bool(done.any()) else root

    def set_seed(self, seed: int) -> int:
        """Nothing here is random."""
        return seed + 1

    def state_dict(self) -> dict[str, Any]:
        """Everything is in the root entries."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def close(self) -> None:
        """Set `closed`."""
        self.closed = True


class ToyPriorityTree:
    """A priority tree that is an array: every draw adds up all priorities.

    Args:
        capacity: Number of leaves, at least 1.
        device: Device of the priorities.
        dtype: Dtype of the priorities.

    Example:
        >>> tree = ToyPriorityTree(4)
        >>> tree.update(torch.tensor([1, 3]), torch.tensor([1.0, 3.0]))
        >>> tree.total()
        tensor(4., dtype=torch.float64)
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.capacity, self.device, self.dtype = capacity, torch.device(device), dtype
        self._priority = torch.zeros(capacity, device=self.device, dtype=dtype)

    def update(self, index: Tensor, priority: Tensor) -> None:
        same_shape(index=index, priority=priority)
        outside = (index < 0) | (index >= self.capacity)
        if outside.any():
            raise IndexError(f"index {index[outside][0].item()} is outside [0, {self.capacity})")
        wrong = ~(priority.isfinite() & (priority >= 0))
        if wrong.any():
            raise ValueError(f"a priority is finite and not negative, got {priority[wrong][0].item()}")
        for i, p in zip(index.tolist(), priority, strict=True):
            self._priority[i] = p

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        cumulated = self._priority.double().cumsum(0)
        if cumulated[-1] == 0:
            raise ValueError("nothing can be drawn: all priorities are zero")
        u = torch.rand(n, generator=generator, device=self.device, dtype=torch.float64)
        if stratified:
            u = (u + torch.arange(n, device=self.device)) / n
        # The first leaf whose cumulated priority exceeds the mark: one with priority above zero.
        last = self._priority.nonzero()[-1]
        index = torch.searchsorted(cumulated, u * cumulated[-1], right=True).minimum(last)
        return index, self.get(index)

    def get(self, index: Tensor) -> Tensor:
        return self._priority[index]

    def total(self) -> Tensor:
        return self._priority.double().sum()

    def min(self) -> Tensor:
        above = torch.where(self._priority > 0, self._priority, torch.inf)
        return above.min()

    def max(self) -> Tensor:
        return self._priority.max()


class ToyRecurrentBackend:
    """The reference recurrence as a back end.

    Args:
        name: Name by which it is selected.
    """

    def __init__(self, name: str = "toy") -> None:
        self.name = name

    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: tuple[Tensor, ...],
        is_init: Tensor,
        reset_state: tuple[Tensor, ...] | None = None,
        options: RecurrentOptions = RecurrentOptions(),  # noqa: B008  frozen
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if options != RecurrentOptions(recompute=options.recompute):  # it keeps nothing that could be recomputed
            raise BackendError(f"{self.name} computes in the type of its inputs; it was asked for {options}")
        return recurrent_reference(module, inputs, state, is_init, reset_state)


class ToyRowGather:
    """Copies of rows, by stacking them.

    Example:
        >>> ToyRowGather([torch.arange(4)]).rows(4, torch.tensor([2, 0]))
        [tensor([2, 0])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        return self.runs(written, index, 1)

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        first: list[int] = begin.tolist()
        for row in first:
            if row < 0 or row + steps > written:
                raise IndexError(f"index {row} is outside [0, {written - steps + 1})")
        return [
            torch.cat([tensor[row : row + steps] for row in first]) if first else tensor[:0].clone()
            for tensor in self._tensors
        ]


def toy_linear_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """``x_t = d_t + c_t * x_{t+1}``, one step after the other.

    Args:
        d: Addend of each step.
        c: Weight of the step that follows; same shape.
        time_dim: Dimension of time.

    Example:
        >>> toy_linear_recurrence(torch.ones(3), torch.full((3,), 0.5), 0)
        tensor([1.7500, 1.5000, 1.0000])
    """
    same_shape(d=d, c=c)
    adds, weights = d.movedim(time_dim, 0), c.movedim(time_dim, 0)
    rows = list(adds.unbind(0))
    for t in range(len(rows) - 2, -1, -1):
        rows[t] = adds[t] + weights[t] * rows[t + 1]  # out of place: the gradient needs the old value
    return torch.stack(rows).movedim(0, time_dim)


def interrupt_at(call: Callable[[], object], line: int, sources: Iterable[str]) -> bool:
    """Call a function with Ctrl-C at one line of some sources: a test that counts up tries each of them.

    Args:
        call: Function that is interrupted, in the main thread.
        line: Number of the line, counted as lines are executed, from 1.
        sources: Parts of paths; lines of other files are not counted.

    Returns:
        Whether the line was reached.

    Example:
        >>> from rl.core import arguments
        >>> interrupt_at(lambda: arguments.as_integer(3, "example", "count", least=1), 1, ["core/arguments"])
        True
        >>> interrupt_at(lambda: arguments.as_integer(3, "example", "count", least=1), 999, ["core/arguments"])
        False
    """
    left, parts = line, tuple(sources)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in parts):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with keep_modes():
            call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0
