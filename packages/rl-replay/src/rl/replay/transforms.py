"""Transforms of samples, and of batches before they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core import set_recurrent_mode, states_of
from rl.core.arguments import as_integer, as_number
from rl.core.contract import Key, missing_key_message
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import DONE, IS_INIT, NEXT, REWARD, NestedKey, as_tuple, key_str, leaf_keys, next_key, unwrap
from rl.replay._n_step import MultiStepTransform

__all__ = ["BurnInTransform", "MultiStepTransform", "PolicyAgeFilter", "RandomCropTensorDict", "Reward2GoTransform"]


@final
class BurnInTransform:
    """Burn-in of recurrent states: runs modules over the first steps of each slice and returns the other steps.

    A stored recurrent state was computed with older weights. The first `burn_in` steps recompute it without gradients
    (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning", section 3). The state
    after them replaces the stored one at the first remaining step, where ``is_init`` becomes true. If an episode begins
    at that step, its stored state stays.

    Takes a batch ``[*B, T]`` and returns ``[*B, T - burn_in]``, or takes a flat batch ``[n]`` of slices that begin
    where ``is_init`` is true, as those of `SliceSampler` do, and returns a flat one.

    Args:
        modules: One or several recurrent modules, run in this order in recurrent mode. Their states are those of
            `rl.core.states_of`: read at the root, written under ``next``.
        burn_in: Number of steps of each slice.
        out_keys: States that are replaced; all states of the modules if None.

    Raises:
        ArgumentError: If the modules have no state.
        ContractError: If they have not one of `out_keys`.

    Example:
        >>> from rl.core import State
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> counter = TensorDictModule(lambda x, h: h + x.cumsum(-1), ["x", "h"], [("next", "h")])
        >>> counter.states = (State("h", ()),)
        >>> data = TensorDict(x=torch.ones(2, 5), h=torch.zeros(2, 5), batch_size=[2, 5])
        >>> BurnInTransform(counter, burn_in=3)(data)["h"].tolist()
        [[3.0, 0.0], [3.0, 0.0]]
    """

    def __init__(self, modules: Any, burn_in: int, out_keys: Sequence[NestedKey] | None = None) -> None:
        self.modules: Final[list[Any]] = list(modules) if isinstance(modules, (list, tuple)) else [modules]
        self.burn_in: Final = as_integer(burn_in, "BurnInTransform", "burn_in", 0)
        carried = [state.name for module in self.modules for state in states_of(module)]
        names = ", ".join(type(module).__name__ for module in self.modules)
        if not carried:
            raise ArgumentError(
                f"BurnInTransform: {names} has no recurrent state: give it the"
                " recurrent module, or declare `states` on it (rl.core.State)"
            )
        self.out_keys: Final[list[NestedKey]] = carried if out_keys is None else [_at_root(key) for key in out_keys]
        unknown = [key for key in self.out_keys if key not in carried]
        if unknown:
            raise ContractError(f"BurnInTransform: {names} has no state {_listed(unknown)}, only {_listed(carried)}")

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Return the steps after the first `burn_in` steps of each slice; `data` is not changed.

        Raises:
            ContractError: If a state is absent, a flat batch has no ``is_init`` at its first row, or a module writes
                no state.
            ShapeError: If nothing is left of a slice, or `data` is a single step.
        """
        if self.burn_in == 0:
            return data
        if data.ndim == 0:
            raise ShapeError(
                "BurnInTransform: one step without batch dimensions, expected [*B, T], or a flat batch [n]"
            )
        for key in self.out_keys:
            if data.get(key, None) is None:
                present = data.keys(include_nested=True, leaves_only=True)
                wanted = Key(
                    key, remedy="Its slices begin with this state: store it with the steps that were collected."
                )
                raise ContractError(missing_key_message("BurnInTransform", wanted, present))
        first, rest, begins = self._cut_flat(data) if data.ndim == 1 else self._cut_rows(data)
        init = rest.get(IS_INIT, None)
        stays = None if init is None else init[begins]
        for key, fresh in self._run(first).items():
            stored = rest.get(key).clone()
            if stays is not None:  # keep the stored state where an episode begins
                keep = stays.reshape(*first.batch_size[:-1], *[1] * (fresh.dim() - first.ndim + 1))
                fresh = torch.where(keep, stored[begins], fresh)  # noqa: PLW2901  the value to write
            stored[begins] = fresh
            rest.set(key, stored)
        if init is not None:
            init = init.clone()
            init[begins] = True
            rest.set(IS_INIT, init)
        return rest

    def __repr__(self) -> str:
        names = ", ".join(type(module).__name__ for module in self.modules)
        return f"BurnInTransform([{names}], burn_in={self.burn_in}, out_keys={self.out_keys})"

    def _run(self, first: TensorDictBase) -> dict[NestedKey, Tensor]:
        """Return the states after the last step of each row of `first` ``[*B, burn_in]``."""
        with torch.no_grad(), set_recurrent_mode(True):
            for module in self.modules:
                first = module(first)
        found: dict[NestedKey, Tensor] = {}
        for key in self.out_keys:
            states = first.get(next_key(key), None)
            if states is None:
                raise ContractError(
                    f"BurnInTransform: no module wrote {key_str(next_key(key))}, the state {key_str(key)}"
                )
            found[key] = states[(*[slice(None)] * (first.ndim - 1), -1)]
        return found

    def _cut_rows(self, data: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase, Any]:
        """First steps, remaining steps, and the index of the first remaining step of each row."""
        steps = data.batch_size[-1]
        self._check_length(steps)
        return data[..., : self.burn_in], data[..., self.burn_in :], (*[slice(None)] * (data.ndim - 1), 0)

    def _cut_flat(self, data: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase, Any]:
        """`_cut_rows` of a flat batch; the first steps are ``[slices, burn_in]``."""
        init = data.get(IS_INIT, None)
        if init is None or not bool(init.reshape(-1)[:1].all()):
            raise ContractError(
                f"BurnInTransform: a flat batch {list(data.batch_size)} is cut where {key_str(IS_INIT)} is true, and it"
                f" is {'absent' if init is None else 'false at the first row'}: sample with SliceSampler, or pass"
                " [*B, T]"
            )
        flags = init.reshape(-1)
        starts = flags.nonzero().squeeze(-1)
        place = torch.arange(len(flags), device=flags.device) - starts[flags.cumsum(0) - 1]
        shortest = int(torch.diff(starts, append=starts.new_tensor([len(flags)])).min())
        self._check_length(shortest)
        left = place >= self.burn_in
        return data[~left].reshape(len(starts), self.burn_in), data[left], (place[left] == self.burn_in).nonzero()[:, 0]

    def _check_length(self, steps: int) -> None:
        if steps <= self.burn_in:
            raise ShapeError(
                f"BurnInTransform: a slice of {steps} steps has none left after a burn-in of {self.burn_in}; sample"
                " longer ones, by a SliceSampler with strict_length=True and span=False"
            )


def _at_root(key: NestedKey) -> NestedKey:
    parts = as_tuple(key)
    return unwrap(parts[1:] if parts[0] == NEXT and len(parts) > 1 else parts)


def _listed(keys: Iterable[NestedKey]) -> str:
    return ", ".join(key_str(key) for key in keys)


@final
class RandomCropTensorDict:
    """Crops each sampled trajectory ``[*B, T]`` to `sub_seq_len` adjacent steps, which begin at a random one.

    Each element of ``[*B]`` gets a first step of its own, uniformly. Stored rows are not changed.

    Args:
        sub_seq_len: Number of steps that are kept.
        sample_dim: Dimension of steps, one of the batch.
        mask_key: Bool ``[*B, T]`` or ``[*B, T, 1]``, true at steps and false at the padding after them: only steps are
            cropped. No mask if None.
        generator: Source of randomness; the global one if None.

    Raises:
        ArgumentError: If `sub_seq_len` is not an integer of at least 1.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(step=torch.arange(10).expand(3, 10), batch_size=[3, 10])
        >>> cropped = RandomCropTensorDict(4)(batch)
        >>> cropped.batch_size, cropped["step"].diff().unique().tolist()
        (torch.Size([3, 4]), [1])
    """

    def __init__(
        self,
        sub_seq_len: int,
        sample_dim: int = -1,
        mask_key: NestedKey | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        self.sub_seq_len: Final = as_integer(sub_seq_len, "RandomCropTensorDict", "sub_seq_len", 1)
        self.sample_dim: Final = sample_dim
        self.mask_key: Final = None if mask_key is None else unwrap(mask_key)
        self.generator: Final = generator

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Return the cropped sample ``[*B, sub_seq_len]``.

        Raises:
            ContractError: If the mask is absent.
            ShapeError: If a trajectory has fewer steps than `sub_seq_len`.
        """
        dims, length = data.ndim, self.sub_seq_len
        dim = self.sample_dim + dims if self.sample_dim < 0 else self.sample_dim
        if not 0 <= dim < dims:
            raise ShapeError(
                f"RandomCropTensorDict: sample_dim={self.sample_dim} is no dimension of a batch {list(data.batch_size)}"
            )
        lead = data.batch_size[:dim] + data.batch_size[dim + 1 :]
        steps = self._steps(data, dim)
        shortest = int(steps.min()) if steps.numel() else length
        if shortest < length:
            raise ShapeError(
                f"RandomCropTensorDict: a trajectory has {shortest} steps, fewer than sub_seq_len={length}: use a"
                " shorter crop, or sample longer trajectories"
            )
        device = "cpu" if self.generator is None else self.generator.device
        random = torch.rand(lead, dtype=torch.float64, generator=self.generator, device=device).to(steps.device)
        first = (random * (steps - length + 1)).long()
        index = (first.unsqueeze(dim) + _along(torch.arange(length, device=steps.device), dim, dims)).contiguous()

        def crop(entry: Tensor) -> Tensor:
            where = index.to(entry.device)
            where = where.reshape(*where.shape, *[1] * (entry.ndim - dims))
            return entry.gather(dim, where.expand(*where.shape[:dims], *entry.shape[dims:]))

        size = torch.Size([*data.batch_size[:dim], length, *data.batch_size[dim + 1 :]])
        cropped: Any = data.apply(crop, batch_size=size)
        return cropped

    def _steps(self, data: TensorDictBase, dim: int) -> Tensor:
        """Return the number of steps of each trajectory, int64 ``[*B]``."""
        lead = data.batch_size[:dim] + data.batch_size[dim + 1 :]
        if self.mask_key is None:
            return torch.full(lead, data.batch_size[dim], device="cpu")
        mask = data.get(self.mask_key, None)
        if mask is None:
            remedy = "Name the mask of the trajectories with mask_key=, or leave it out."
            raise ContractError(
                missing_key_message("RandomCropTensorDict", Key(self.mask_key, remedy=remedy), leaf_keys(data))
            )
        if mask.numel() != data.numel():
            raise ShapeError(
                f"RandomCropTensorDict: {key_str(self.mask_key)} is {list(mask.shape)}, expected one flag for each step"
                f" of {list(data.batch_size)}"
            )
        return mask.reshape(data.batch_size).sum(dim)

    def __repr__(self) -> str:
        return (
            f"RandomCropTensorDict(sub_seq_len={self.sub_seq_len}, sample_dim={self.sample_dim},"
            f" mask_key={self.mask_key!r})"
        )


def _along(values: Tensor, dim: int, dims: int) -> Tensor:
    """`values` ``[n]`` along dimension `dim` of `dims`."""
    return values.view(*[1] * dim, -1, *[1] * (dims - dim - 1))


@final
class Reward2GoTransform:
    """Discounted sum of the rewards from each step to the end of its trajectory, or of the batch.

    ``reward_to_go[t] = reward[t] + gamma * reward_to_go[t + 1]``, and ``reward[t]`` where the trajectory ends at t:
    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 3.9. Decision transformers are conditioned
    on it.

    Works on `extend`: samples are not changed, because rows that were sampled one by one do not follow each other. To
    compute it on samples of complete trajectories ``[*B, T]``, append it with ``invert=True``. Batches are ``[*B, T]``
    in time order.

    Reads the rewards ``[*B, T, ...]`` and the end flag bool ``[*B, T, 1]``, or of the reward's shape. Writes
    `out_keys`, in the rewards' shapes and dtypes.

    Args:
        gamma: Discount, in [0, 1].
        in_keys: Rewards; ``[("next", "reward")]`` if None.
        out_keys: Entries that are written; ``["reward_to_go"]`` if None.
        done_key: End flag, without ``next``.

    Raises:
        ArgumentError: If there are not as many `out_keys` as `in_keys`.
        ArgumentError: If `gamma` is outside [0, 1].

    Example:
        >>> from tensordict import TensorDict
        >>> end = torch.tensor([False, True, False, False]).unsqueeze(-1)
        >>> batch = TensorDict(next=TensorDict(reward=torch.ones(4, 1), done=end, batch_size=[4]), batch_size=[4])
        >>> Reward2GoTransform(gamma=0.5).inv(batch)["reward_to_go"].flatten().tolist()
        [1.5, 1.0, 1.5, 1.0]
    """

    def __init__(
        self,
        gamma: float = 1.0,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        done_key: NestedKey = DONE,
    ) -> None:
        self.gamma: Final = as_number(gamma, "Reward2GoTransform", "gamma", least=0, most=1)
        self.in_keys: Final[list[NestedKey]] = [(NEXT, REWARD)] if in_keys is None else [unwrap(key) for key in in_keys]
        self.out_keys: Final[list[NestedKey]] = (
            ["reward_to_go"] if out_keys is None else [unwrap(key) for key in out_keys]
        )
        if len(self.in_keys) != len(self.out_keys) or not self.in_keys:
            raise ArgumentError(
                f"Reward2GoTransform: out_keys has {len(self.out_keys)} keys and in_keys {len(self.in_keys)}: name one"
                " entry to write for each reward"
            )
        self.done_key: Final = next_key(done_key)

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Return a sample as it is."""
        return data

    def inv(self, data: TensorDictBase) -> TensorDictBase:
        """Return `data` ``[*B, T]`` with the rewards to go.

        Raises:
            ContractError: If an entry is absent.
            ShapeError: If `data` has no time dimension, or a flag has another shape.
        """
        if not data.ndim:
            raise ShapeError("Reward2GoTransform: a single step has no time dimension: write batches [*B, T]")
        done, time = self._entry(data, self.done_key), data.ndim - 1
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            reward = self._entry(data, key)
            try:
                goes_on = (~done.bool()).expand(reward.shape).to(reward.dtype).unbind(time)
            except RuntimeError:
                raise ShapeError(
                    f"Reward2GoTransform: {key_str(self.done_key)} is {list(done.shape)}, expected"
                    f" {[*data.batch_size, 1]} or {list(reward.shape)} for {key_str(key)} {list(reward.shape)}"
                ) from None
            total = torch.zeros_like(reward.select(time, 0))
            sums: list[Tensor] = []
            for now, stays in zip(reversed(reward.unbind(time)), reversed(goes_on), strict=True):
                total = now + self.gamma * stays * total
                sums.append(total)
            data.set(out, torch.stack(sums[::-1], time).to(reward.dtype))
        return data

    @staticmethod
    def _entry(data: TensorDictBase, key: NestedKey) -> Tensor:
        found = data.get(key, None)
        if not isinstance(found, Tensor):
            wanted = Key(key, remedy="Name another entry with in_keys= or done_key=.")
            raise ContractError(missing_key_message("Reward2GoTransform", wanted, leaf_keys(data)))
        return found

    def __repr__(self) -> str:
        return f"Reward2GoTransform(gamma={self.gamma}, in_keys={self.in_keys}, out_keys={self.out_keys})"


@final
class PolicyAgeFilter:
    """Removes the rows of a batch that a policy more than `max_age` versions ago collected.

    Reads `version_key`, integers ``[n, ...]``: a row of several steps is as old as its oldest step. Returns a batch
    ``[m, ...]`` with ``m <= n``, possibly 0. Stored rows stay; to remove old rows before they are written, append it
    with ``invert=True``.

    Args:
        max_age: Largest difference of versions that is kept, an integer of at least 0.
        version_key: Version of the policy at each step, as the transform ``PolicyVersion`` of rl-envs writes it.
        get_version: Function that returns the current version.

    Raises:
        ArgumentError: If `max_age` is not such an integer, or `get_version` cannot be called.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(policy_version=torch.tensor([1, 4, 5]), batch_size=[3])
        >>> PolicyAgeFilter(2, get_version=lambda: 6)(batch)["policy_version"].tolist()
        [4, 5]
    """

    def __init__(
        self, max_age: int, version_key: NestedKey = "policy_version", *, get_version: Callable[[], int]
    ) -> None:
        if not callable(get_version):
            raise ArgumentError(
                f"PolicyAgeFilter: get_version returns the current version, got {get_version!r}: pass a function, for"
                " example `lambda: policy_version.version`"
            )
        self.max_age: Final = as_integer(max_age, "PolicyAgeFilter", "max_age", 0)
        self.version_key: Final = unwrap(version_key)
        self.get_version: Final = get_version

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Return the rows of `data` that are recent enough.

        Raises:
            ContractError: If the version is absent.
            ShapeError: If `data` is a single step, or the version is not an integer for each row.
        """
        version = data.get(self.version_key, None)
        if version is None:
            remedy = "Append the transform PolicyVersion of rl-envs to the environment, or name another version_key."
            wanted = Key(self.version_key, remedy=remedy)
            raise ContractError(missing_key_message("PolicyAgeFilter", wanted, leaf_keys(data)))
        if not data.ndim or version.is_floating_point() or version.dtype is torch.bool:
            raise ShapeError(
                f"PolicyAgeFilter: {key_str(self.version_key)} is {version.dtype} {list(version.shape)} in a batch"
                f" {list(data.batch_size)}, expected integers [n, ...] in a batch [n, ...]"
            )
        age = int(self.get_version()) - version.reshape(data.batch_size[0], -1).amin(-1)
        return data[age <= self.max_age]

    def __repr__(self) -> str:
        return f"PolicyAgeFilter(max_age={self.max_age}, version_key={self.version_key!r})"
