"""Done flags of a batch: ``done = terminated | truncated``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import DONE, TERMINATED, TRUNCATED, as_tuple, key_str, next_key, unwrap
from rl.objectives._batch.mask import SEQUENCE_ID, VALIDITY_MASK, entry_of_loss, fitted, leaf_of

__all__ = ["end_flags", "ended"]


def end_flags(
    td: TensorDictBase,
    done: Tensor,
    terminated: Tensor | None,
    keys: Mapping[str, Any],
    mask: Tensor | None,
    owner: str,
) -> tuple[Tensor, Tensor]:
    """The flags ``done`` and ``terminated`` as bool; a step that is terminated or truncated is done.

    In windows of a replay buffer no return crosses into another window or a repeated row: `done` is true before.

    Flags of a group of agents end where the episode does: ``("next", "done")`` at the root counts too, if it is there,
    and for agents that are not done themselves ``("next", "terminated")`` beside it.

    On CPU a contradiction is refused. Elsewhere, and in compiled code, a check would wait for the device: there `done`
    is completed with the other two.

    Args:
        td: the batch ``[*B]``; ``truncated`` is read if it is there.
        done: as the batch holds it, ``[*B, 1]``.
        terminated: as the batch holds it; `done` if None.
        keys: those named ``done`` and ``terminated``.
        mask: of valid steps, ``[*B]``.
        owner: the component that messages name.

    Raises:
        ContractError: if a valid step is terminated or truncated, and not done.
    """
    done, terminated = ended(done, terminated)
    above = None if keys["done"] == DONE else leaf_of(td, next_key(DONE))
    if above is not None:
        above = fitted(above.bool().reshape(td.batch_size), done)
        over = leaf_of(td, next_key(TERMINATED))
        over = above if over is None else above & fitted(over.bool().reshape(td.batch_size), done)
        terminated, done = terminated | (over & ~done), done | above
    cut = _ends_of_windows(td)
    if cut is not None:
        done = done | fitted(cut, done)
    beside = unwrap((*as_tuple(keys["done"])[:-1], TRUNCATED))
    checked = done.device.type == "cpu" and not torch.compiler.is_compiling()
    whole = done
    for key, flag in ((keys["terminated"], terminated), (beside, leaf_of(td, next_key(beside)))):
        if flag is None or flag is done or flag.shape != done.shape:
            continue
        if not checked:
            whole = whole | flag.bool()
            continue
        wrong = flag.bool() > done
        if mask is not None and mask.ndim == wrong.ndim:  # of agents, whose flags are shared
            mask = mask.any(-1)
        if bool(wrong.any()) and (mask is None or bool((wrong := wrong & fitted(mask, wrong)).any())):
            raise ContractError(
                f"{owner}: at {wrong.nonzero()[0].tolist()} of {list(done.shape)} {key_str(next_key(key))} is true and"
                f" {key_str(next_key(keys['done']))} is false. Write done = terminated | truncated"
            )
    return whole, terminated


def _ends_of_windows(td: TensorDictBase) -> Tensor | None:
    """Steps before another window, and before and at repeated rows, ``[*B]``; time is the last dimension."""
    cut: Tensor | None = None
    for key in (VALIDITY_MASK, SEQUENCE_ID):
        value = entry_of_loss(td, key)
        if value is None or not td.batch_dims or value.numel() != td.batch_size.numel():
            continue
        value = value.reshape(td.batch_size)
        now, following = value[..., :-1], value[..., 1:]
        ends = ~(now & following) if key == VALIDITY_MASK else now != following
        ends = torch.nn.functional.pad(ends, (0, 1))
        cut = ends if cut is None else cut | ends
    return cut


def ended(done: Tensor, terminated: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both flags as bool; `terminated` is `done` where it is absent."""
    done = done if done.dtype is torch.bool else done.bool()
    if terminated is None:
        return done, done
    return done, terminated if terminated.dtype is torch.bool else terminated.bool()
