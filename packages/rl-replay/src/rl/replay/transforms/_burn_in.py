"""Burn-in: recomputation of recurrent states on the first steps of sampled sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core import set_recurrent_mode, states_of
from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import IS_INIT, NEXT, NestedKey, as_tuple, key_str, next_key, unwrap
from rl.replay._arguments import whole

__all__ = ["BurnInTransform"]


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
        modules: one or several recurrent modules, run in this order in recurrent mode. Their states are those of
            `rl.core.states_of`: read at the root, written under ``next``.
        burn_in: number of steps of each slice.
        out_keys: states that are replaced; all states of the modules if None.

    Raises:
        ContractError: if the modules have no state, or not one of `out_keys`.

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
        if burn_in != 0 and whole(burn_in) is None:
            raise ContractError(f"BurnInTransform: burn_in must be an integer of at least 0, got {burn_in!r}")
        self.modules: Final[list[Any]] = list(modules) if isinstance(modules, (list, tuple)) else [modules]
        self.burn_in: Final = int(burn_in)
        carried = [state.name for module in self.modules for state in states_of(module)]
        names = ", ".join(type(module).__name__ for module in self.modules)
        if not carried:
            raise ContractError(
                f"BurnInTransform: {names} has no recurrent state: give it the"
                " recurrent module, or declare `states` on it (rl.core.State)"
            )
        self.out_keys: Final[list[NestedKey]] = carried if out_keys is None else [_at_root(key) for key in out_keys]
        unknown = [key for key in self.out_keys if key not in carried]
        if unknown:
            raise ContractError(f"BurnInTransform: {names} has no state {_listed(unknown)}, only {_listed(carried)}")

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """The steps after the first `burn_in` steps of each slice; `data` is not changed.

        Raises:
            ContractError: if a state is absent, a flat batch has no ``is_init`` at its first row, or a module writes
                no state.
            ShapeError: if nothing is left of a slice, or `data` is a single step.
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
        """The states after the last step of each row of `first` ``[*B, burn_in]``."""
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
                f" is {'absent' if init is None else 'false at the first row'}: sample with SliceSampler, or give"
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
