"""Transforms of actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments, one_of
from rl.core.env_specs import describe_entry
from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError
from rl.core.keys import NestedKey, key_str, next_key, unwrap
from rl.core.mdp import where_reset
from rl.core.specs import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import RandomTransform, after_batch, from_the_end, mapped_spec
from rl.envs.transforms._specs import Specs, as_values

__all__ = [
    "ActionChunkTransform",
    "ActionClipping",
    "ActionDiscretizer",
    "ActionMask",
    "ActionScaling",
    "DiscreteActionProjection",
    "FlattenAction",
]


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
        ArgumentError: If the number is below 1.
        ContractError: If a batch has no action.
        ShapeError: If the action has no time, or time is elsewhere, or the flag has another shape.
        RLError: If it is appended to an environment.

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
                " pass done_key=None to take each row as one episode"
            )
        window = steps.unsqueeze(-1) + torch.arange(self.chunk_size, device=action.device)  # [T, chunk_size]
        index = window.minimum(last.unsqueeze(-1)).flatten(-2).unsqueeze(-1)
        chunk = action.gather(time, index.expand(*index.shape[:-1], action.shape[-1]))
        out = tensordict.copy()
        out.set(self.chunk_key, chunk.unflatten(time, window.shape))
        return out.set(self.pad_key, window > last.unsqueeze(-1))

    def transform_specs(self, specs: Specs) -> None:
        """Reject an environment.

        Raises:
            RLError: Always.
        """
        del specs
        raise RLError(
            f"{self!r} builds targets from batches: append it to the replay buffer. MultiStepActorWrapper of rl-modules"
            " executes several actions of a policy one after the other"
        )

    def __repr__(self) -> str:
        return f"ActionChunkTransform({self.chunk_size}, action_key={key_str(self.action_key)})"


class ActionClipping(Transform):
    """Accepts actions without bounds, and clips them to the bounds of the environment's action.

    For policies whose distribution has no bounds, such as a normal one: the log-probability is that of the action
    before it is clipped, and a batch contains that action. As `gymnasium.wrappers.ClipAction`.

    Args:
        in_keys_inv: Key of the environment's action; ``["action"]`` if None. One key.
        out_keys_inv: Key of the caller's action; `in_keys_inv` if None.

    Shapes: ``[*B, ...]``, floating-point, as the environment's action.

    Raises:
        ArgumentError: if there are several keys.
        SpecError: if the action is no tensor of bounded floats.
        RLError: if it is called on a batch without an environment.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), ActionClipping())
        >>> env.action_spec.is_in(torch.tensor([9.0]))
        True
    """

    def __init__(
        self, in_keys_inv: Iterable[NestedKey] | None = None, out_keys_inv: Iterable[NestedKey] | None = None
    ) -> None:
        super().__init__(in_keys_inv=["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv=out_keys_inv)
        if len(self.in_keys_inv) != 1:
            raise ArgumentError(f"ActionClipping clips one action, got {self.in_keys_inv}: compose several")
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def _inverse(self, value: Tensor) -> Tensor:
        if self._low is None or self._high is None:
            raise RLError("ActionClipping has no bounds: append it to an environment, which has them")
        if self._low.device != value.device:  # once: a copy at each step would wait for the device
            self._low, self._high = self._low.to(value.device), self._high.to(value.device)
        return value.clamp(self._low, self._high)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if not isinstance(spec, Bounded) or not spec.dtype.is_floating_point:
            raise SpecError(
                f"{self!r} clips bounded floats, and {key_str(self.in_keys_inv[0])} is {describe_entry(spec)}"
            )
        self._low, self._high = spec.low, spec.high
        return Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)


class ActionDiscretizer(Transform):
    """Gives the caller a choice among intervals in place of each element of a bounded action.

    The caller's action is a `MultiCategorical` (a `Categorical` for an action without dimensions), int64 ``[*B, n]``,
    or its one-hot form. The environment gets one value of the chosen interval.

    Args:
        num_intervals: Number of intervals of each element, or one number for all.
        action_key: The environment's action.
        out_action_key: The caller's action; `action_key` if None.
        sampling: Value of the interval: its ``median``, ``low`` or ``high`` end, or a ``random`` one (from
            torch's global generator).
        categorical: Whether actions are numbers, otherwise one-hot vectors.

    Raises:
        ArgumentError: If `sampling` is another, or a number is not positive.
        SpecError: If the action has no finite bounds, or the numbers do not fit its shape.
        RLError: If it is called on a batch without having an environment.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), ActionDiscretizer(5)).action_spec
        MultiCategorical(...
    """

    def __init__(
        self,
        num_intervals: int | Sequence[int] | Tensor,
        action_key: NestedKey = "action",
        out_action_key: NestedKey | None = None,
        sampling: Literal["median", "low", "high", "random"] = "median",
        *,
        categorical: bool = True,
    ) -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=None if out_action_key is None else [out_action_key])
        one_of(sampling, "ActionDiscretizer", "sampling", ("median", "low", "high", "random"))
        found = as_values(num_intervals, "ActionDiscretizer", "num_intervals")
        self.num_intervals = found.long()
        if bool(((self.num_intervals < 1) | (self.num_intervals != found)).any()):
            raise ArgumentError(f"ActionDiscretizer: num_intervals must be positive integers, got {num_intervals}")
        self.sampling, self.categorical = sampling, categorical
        self._low: Tensor | None = None

    def _inverse(self, value: Tensor) -> Tensor:
        if self._low is None:
            raise RLError("ActionDiscretizer has no bounds: append it to an environment, which has them")
        if not self.categorical:
            parts = value.split([int(n) for n in self._counts.reshape(-1)], -1) if self._counts.ndim else [value]
            indices = [part.int().argmax(-1) for part in parts]
            value = torch.stack(indices, -1) if self._counts.ndim else indices[0]
        if self.sampling == "random":
            part: Tensor | float = torch.rand(value.shape, device=value.device)
        else:
            part = {"low": 0.0, "median": 0.5, "high": 1.0}[self.sampling]
        low, width = self._low.to(value.device), self._width.to(value.device)
        return low + width * (value + part).to(low.dtype)

    def transform_specs(self, specs: Specs) -> None:
        """Replace the action by the choice."""
        key = self.in_keys_inv[0]
        found = specs.read(key, self)[0]
        spec = found[key]
        if not isinstance(spec, Bounded) or not (spec.space.low.isfinite() & spec.space.high.isfinite()).all():
            raise SpecError(f"ActionDiscretizer: {key_str(key)} has no finite bounds; clip it with ClipTransform")
        if self.num_intervals.ndim and self.num_intervals.shape != spec.shape:
            raise SpecError(
                f"ActionDiscretizer: {key_str(key)} is {list(spec.shape)}, num_intervals"
                f" {list(self.num_intervals.shape)}"
            )
        if len(spec.shape) > 1:
            raise SpecError(f"ActionDiscretizer: {key_str(key)} is {list(spec.shape)}; flatten it with FlattenAction")
        self._counts = self.num_intervals.expand(spec.shape)
        self._low = spec.space.low
        self._width = (spec.space.high - spec.space.low) / self._counts.to(spec.space.low)
        del found[key]
        found[self.out_keys_inv[0]] = self._choice(specs)

    def _choice(self, specs: Specs) -> TensorSpec:
        if not self._counts.ndim:
            n = int(self._counts)
            return Categorical(n, device=specs.device) if self.categorical else OneHot(n, device=specs.device)
        counts = [int(n) for n in self._counts]
        return (MultiCategorical if self.categorical else MultiOneHot)(counts, device=specs.device)


class ActionMask(Transform):
    """Keeps the mask of legal actions of the action spec up to date, so that ``rand_action`` is legal.

    Reads a mask at every reset and step: bool, true for legal actions, or integers, 1 for legal actions and 0 for the
    others, as those of Gymnasium. It needs a discrete action. Where none is legal, as at the end of a game, the mask
    allows all.

    Args:
        action_key: The action.
        mask_key: The mask.

    Raises:
        SpecError: If the environment has no such entries, or the mask has another dtype.
        ContractError: If a mask of integers has a value other than 0 and 1.

    Example:
        >>> from rl.envs import TicTacToeEnv, TransformedEnv
        >>> env = TransformedEnv(TicTacToeEnv(), ActionMask())
        >>> env.rollout(9)["next", "player0", "reward"].abs().sum().item() <= 1
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, action_key: NestedKey = "action", mask_key: NestedKey = "action_mask") -> None:
        super().__init__()
        self.action_key, self.mask_key = unwrap(action_key), unwrap(mask_key)
        self._sizes: list[int] = []  # numbers of classes, of an action that makes several choices

    @property
    def masked_spec(self) -> Any:
        """Spec of the action in the environment, whose mask is that of the last step."""
        env: Any = self._parent
        return env.full_action_spec[self.action_key]

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        self._update(root, mask)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        self._update(outcome, root.get("_step", None))
        return outcome

    def _legal(self, entries: Any) -> Tensor:
        mask: Tensor = entries[self.mask_key]
        legal = mask != 0
        if mask.dtype is not torch.bool and not bool((mask == legal).all()):
            raise ContractError(
                f"{self!r} reads a mask of 0 and 1, and {key_str(self.mask_key)} has the values"
                f" {mask.unique().tolist()}: name the mask with mask_key="
            )
        return legal

    def _update(self, entries: Any, chosen: Tensor | None) -> None:
        """Take the mask of the chosen elements, all if None; the others keep theirs."""
        assert self._parent is not None
        legal, spec = self._legal(entries), self.masked_spec
        if chosen is not None and spec.mask is not None:
            legal = where_reset(chosen.reshape(*self._parent.batch_size, 1), legal, spec.mask)
        spec.update_mask(self._mask_of(legal))

    def _mask_of(self, legal: Tensor) -> Tensor:
        """Allow all classes of a choice that has no legal one, as at the end of an episode."""
        if len(self._sizes) < 2:
            return legal | ~legal.any(-1, keepdim=True)
        parts = legal.split(self._sizes, -1)
        return torch.cat([part | ~part.any(-1, keepdim=True) for part in parts], -1)

    def transform_specs(self, specs: Specs) -> None:
        """Check that the entries exist."""
        numbers = getattr(specs.read(self.action_key, self)[0][self.action_key], "nvec", None)
        self._sizes = [] if numbers is None else numbers.flatten().tolist()
        for spec in specs.written(self.mask_key, self):
            dtype = spec[self.mask_key].dtype
            if dtype is None or dtype.is_floating_point or dtype.is_complex:
                raise SpecError(
                    f"{self!r} reads a mask of booleans or integers, and {key_str(self.mask_key)} is"
                    f" {describe_entry(spec[self.mask_key])}: name the mask with mask_key="
                )


class ActionScaling(Transform):
    """Gives the caller actions in [-1, 1], or in [0, 1], and maps them affinely to the bounds of the environment.

    ``action * scale + loc`` with ``loc = (high + low) / 2`` and ``scale = (high - low) / 2``.

    Args:
        in_keys_inv: The environment's action; ``["action"]`` if None. One key.
        out_keys_inv: The caller's action; `in_keys_inv` if None.
        in_keys: Actions in a batch that are mapped to the caller's range, as of data that was stored unscaled.
        out_keys: Results; `in_keys` if None.
        loc: Center in place of that of the bounds.
        scale: Half width in place of that of the bounds.
        standard_normal: Whether the caller's range is [-1, 1], otherwise [0, 1].

    Raises:
        SpecError: If the action is not bounded and `loc` or `scale` is missing.
        RLError: If it is called on a batch, and has neither these nor an environment.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), ActionScaling()).action_spec.space.high
        tensor([1.])
    """

    def __init__(
        self,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
        in_keys: Iterable[NestedKey] = (),
        out_keys: Iterable[NestedKey] | None = None,
        *,
        loc: Tensor | float | None = None,
        scale: Tensor | float | None = None,
        standard_normal: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, ["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv)
        if len(self.in_keys_inv) > 1:
            raise ArgumentError(f"ActionScaling scales one action, got {self.in_keys_inv}: compose several")
        self.loc = None if loc is None else torch.as_tensor(loc, dtype=torch.get_default_dtype())
        self.scale = None if scale is None else torch.as_tensor(scale, dtype=torch.get_default_dtype())
        self.standard_normal = standard_normal

    def _inverse(self, value: Tensor) -> Tensor:
        loc, scale = self._bounds()
        unit = value if self.standard_normal else 2 * value - 1
        return unit * scale.to(value) + loc.to(value)

    def _apply(self, value: Tensor) -> Tensor:
        loc, scale = self._bounds()
        scale = scale.where(scale != 0, 1.0)  # a dimension that cannot move is in the middle
        unit = (value - loc.to(value)) / scale.to(value)
        return unit if self.standard_normal else (unit + 1) / 2

    def _bounds(self) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise RLError("ActionScaling has no bounds: append it to an environment, or pass loc= and scale=")
        return self.loc, self.scale

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        low = -1.0 if self.standard_normal else 0.0
        return Bounded(low, 1.0, shape=spec.shape, dtype=spec.dtype, device=spec.device)

    def transform_specs(self, specs: Specs) -> None:
        """Read the bounds, and give the caller's action its own."""
        for key in self.in_keys_inv:
            spec = specs.read(key, self)[0][key]
            if self.loc is None or self.scale is None:
                bounds = spec.space if isinstance(spec, Bounded) else None
                if bounds is None or not (bounds.low.isfinite().all() and bounds.high.isfinite().all()):
                    raise SpecError(f"ActionScaling: {key_str(key)} has no finite bounds; pass loc= and scale=")
                self.loc = (bounds.high + bounds.low) / 2 if self.loc is None else self.loc
                self.scale = (bounds.high - bounds.low) / 2 if self.scale is None else self.scale
            found = specs.read(key, self)[0]
            del found[key]
            found[self.out_keys_inv[0]] = self._transform_spec(spec)


@foreign_arguments()
class DiscreteActionProjection(RandomTransform):
    """Gives the caller `max_actions` actions; those that the environment lacks become a random one of its own.

    For one policy in environments with different numbers of actions. `set_seed` of the
    environment seeds the random choice.

    Args:
        num_actions_effective: Number of actions of the environment.
        max_actions: Number of actions of the caller.
        action_key: The action, one-hot or an integer.

    Raises:
        ArgumentError: If `max_actions` is smaller.
        SpecError: If the environment has another number of actions.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> env = TransformedEnv(CartPoleEnv(), DiscreteActionProjection(2, 5))
        >>> env.rollout(3)["action"].shape[-1]
        5
    """

    def __init__(self, num_actions_effective: int, max_actions: int, action_key: NestedKey = "action") -> None:
        super().__init__(in_keys_inv=[action_key])
        if max_actions < num_actions_effective:
            raise ArgumentError(
                f"DiscreteActionProjection: max_actions={max_actions} is less than the {num_actions_effective}"
                " actions of the environment"
            )
        self.num_actions_effective, self.max_actions = num_actions_effective, max_actions
        self._one_hot = False

    def _inverse(self, value: Tensor) -> Tensor:
        index = value.int().argmax(-1) if self._one_hot else value
        n = self.num_actions_effective
        index = torch.where(index < n, index, self._integers(0, n - 1, index.shape).to(index))
        return torch.nn.functional.one_hot(index.long(), n).to(value.dtype) if self._one_hot else index

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        n = spec.space.n if isinstance(spec, (OneHot, Categorical)) else None
        if n != self.num_actions_effective:
            raise SpecError(f"{self!r} is for {self.num_actions_effective} actions, the environment has {n}")
        self._one_hot = isinstance(spec, OneHot)
        kind = OneHot if self._one_hot else Categorical
        return kind(self.max_actions, dtype=spec.dtype or torch.int64, device=spec.device)


@foreign_arguments()
class FlattenAction(Transform):
    """Gives the caller an action whose dimensions are flattened.

    Args:
        first_dim: First of the dimensions.
        last_dim: Last of the dimensions.
        in_keys_inv: The environment's action; ``["action"]`` if None.
        out_keys_inv: The caller's; `in_keys_inv` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the entire tensor.

    Raises:
        ArgumentError: If a dimension is not negative and `allow_positive_dim` is false.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> FlattenAction(-2, -1)._transform_spec(Unbounded((2, 3))).shape
        torch.Size([6])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__(in_keys_inv=["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv=out_keys_inv)
        self.first_dim = from_the_end(first_dim, "FlattenAction", "first_dim", allow_positive_dim=allow_positive_dim)
        self.last_dim = from_the_end(last_dim, "FlattenAction", "last_dim", allow_positive_dim=allow_positive_dim)
        self._sizes = torch.Size()

    def _inverse(self, value: Tensor) -> Tensor:
        dim = self.first_dim if self.first_dim >= 0 else self.last_dim  # which is the flat one
        return value.unflatten(after_batch(dim, self.parent), self._sizes)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        count = len(spec.shape)
        first, last = (dim + count if dim < 0 else dim for dim in (self.first_dim, self.last_dim))
        self._sizes = spec.shape[first : last + 1]
        return mapped_spec(spec, lambda value: value.flatten(self.first_dim, self.last_dim))
