"""`ActionChunkTransform`: the next actions of each step as one entry."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl.core.arguments import as_integer
from rl.core.errors import ContractError, RLError, ShapeError
from rl.core.keys import NestedKey, key_str, next_key, unwrap
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["ActionChunkTransform"]


class ActionChunkTransform(Transform):
    """Writes the next `chunk_size` actions of each step: the target of a policy that predicts several actions at once.

    For batches in time order, also those that a replay buffer samples; not for environments. Past the end of an episode
    or of the batch, its last action is repeated. Zhao et al., "Learning fine-grained bimanual manipulation with
    low-cost hardware", 2023, section IV.

    Reads the action ``[*B, T, n]`` and, if there, ``("next", done_key)`` bool ``[*B, T]`` or ``[*B, T, 1]``. Writes
    ``chunk_key`` ``[*B, T, chunk_size, n]`` and ``pad_key`` (bool ``[*B, T, chunk_size]``, true where an action is such
    a repetition). A flat batch ``[T]`` of slices needs the flag at the last step of each, as `SliceSampler` writes it.

    Args:
        chunk_size: Number of actions, the present one included, at least 1.
        action_key: Key of the action.
        chunk_key: Key of the actions that follow.
        pad_key: Key of the mask of repetitions.
        time_dim: Dimension of time in the action, which comes right before that of the action.
        done_key: Key of the end of an episode, without ``next``; None for one episode in each row.

    Raises:
        SpecError: if the number is below 1.
        ContractError: if a batch has no action.
        ShapeError: if the action has no time, or time is elsewhere, or the flag has another shape.
        RLError: if it is appended to an environment.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(action=torch.arange(3.0).reshape(1, 3, 1), batch_size=[1, 3])
        >>> out = ActionChunkTransform(2)(batch)
        >>> out["vla_action", "chunk"][0, :, :, 0].tolist(), out["action_is_pad"][0, :, 1].tolist()
        ([[0.0, 1.0], [1.0, 2.0], [2.0, 2.0]], [False, False, True])
    """

    def __init__(
        self,
        chunk_size: int,
        *,
        action_key: NestedKey = "action",
        chunk_key: NestedKey = ("vla_action", "chunk"),
        pad_key: NestedKey = "action_is_pad",
        time_dim: int = -2,
        done_key: NestedKey | None = "done",
    ) -> None:
        super().__init__([action_key], [chunk_key, pad_key])
        self.chunk_size = as_integer(chunk_size, "ActionChunkTransform", "chunk_size", 1)
        self.action_key, self.chunk_key, self.pad_key = unwrap(action_key), unwrap(chunk_key), unwrap(pad_key)
        self.time_dim = time_dim
        self.done_key = None if done_key is None else unwrap(done_key)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch with the chunks and their mask."""
        action = tensordict.get(self.action_key, None)
        if action is None:
            raise ContractError(f"{self!r} reads {key_str(self.action_key)}, which the batch does not have")
        time = action.ndim - 2
        if time < 0 or self.time_dim not in {-2, time}:
            raise ShapeError(
                f"{self!r} reads {key_str(self.action_key)} of shape [*B, T, n], with time right before the last"
                f" dimension, got {tuple(action.shape)} with time_dim={self.time_dim}"
            )
        lead, steps = action.shape[: time + 1], torch.arange(action.shape[time], device=action.device)
        key = None if self.done_key is None else next_key(self.done_key)
        done = None if key is None else tensordict.get(key, None)
        if key is None or done is None:
            last = torch.full_like(steps, len(steps) - 1).expand(lead)
        elif done.shape in {lead, (*lead, 1)}:
            ends = torch.where(done.reshape(lead), steps, len(steps) - 1)
            last = ends.flip(-1).cummin(-1).values.flip(-1)  # step of the next end, [*B, T]
        else:
            raise ShapeError(
                f"{self!r} reads {key_str(key)} of shape {(*lead, 1)}, got {tuple(done.shape)};"
                " give done_key=None to take each row as one episode"
            )
        window = steps.unsqueeze(-1) + torch.arange(self.chunk_size, device=action.device)  # [T, chunk_size]
        index = window.minimum(last.unsqueeze(-1)).flatten(-2).unsqueeze(-1)
        chunk = action.gather(time, index.expand(*index.shape[:-1], action.shape[-1]))
        out = tensordict.copy()
        out.set(self.chunk_key, chunk.unflatten(time, window.shape))
        return out.set(self.pad_key, window > last.unsqueeze(-1))

    def transform_specs(self, specs: Specs) -> None:
        """Refuse an environment.

        Raises:
            RLError: always.
        """
        del specs
        raise RLError(
            f"{self!r} makes targets from batches: append it to the replay buffer. MultiStepActorWrapper of rl-modules"
            " executes several actions of a policy one after the other"
        )

    def __repr__(self) -> str:
        return f"ActionChunkTransform({self.chunk_size}, action_key={key_str(self.action_key)})"
