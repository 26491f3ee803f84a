"""Behaviour cloning with a diffusion policy."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey, unwrap
from rl.objectives._batch.mask import MASK, mask_keys_of_steps, scalar
from rl.objectives.functional._regression import distance, reduce
from rl.objectives.losses._base import LossModule

__all__ = ["DiffusionBCLoss"]


@final
class DiffusionBCLoss(LossModule):
    """Behaviour cloning with a diffusion policy: its network predicts the noise in the actions of a data set.

    Chi et al., "Diffusion policy: visuomotor policy learning via action diffusion", 2023, eq. 5 (Ho et al., "Denoising
    diffusion probabilistic models", 2020, eq. 14), with a random diffusion step for each row.

    Reads the observations of the actor, ``action`` ``[*B, *A]``, or ``[*B, H, *A]`` for an actor that plans H actions,
    and, if there, ``("collector", "mask")`` bool ``[*B]``. Returns the scalar ``loss_diffusion_bc``.

    Args:
        actor_network: a ``DiffusionActor`` of rl-modules, or a module with keys whose ``module`` has ``num_steps``,
            ``add_noise(action, t)``, which gives noisy action and noise ``[*B, D]``, and ``score_network``, which
            predicts the noise from noisy action, observations and step ``[*B, D + d + 1]``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch.

    Raises:
        ContractError: if the actor is no diffusion policy.
        SpecError: if the reduction is unknown.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> class Process(nn.Module):
        ...     num_steps = 10
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.score_network = nn.Linear(2 + 3 + 1, 2)
        ...     def add_noise(self, action, t):
        ...         noise, share = torch.randn_like(action), (t / 10).unsqueeze(-1)
        ...         return torch.lerp(action, noise, share), noise
        >>> loss = DiffusionBCLoss(TensorDictModule(Process(), ["observation"], ["action"]))
        >>> data = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), batch_size=[8])
        >>> loss(data)["loss_diffusion_bc"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"action": "action", "done": "done", "mask": MASK}

    def __init__(self, actor_network: nn.Module, *, reduction: str | None = "mean") -> None:
        super().__init__(reduction=reduction)
        process: Any = getattr(actor_network, "module", None)
        lacks = [name for name in ("num_steps", "add_noise", "score_network") if not hasattr(process, name)]
        if lacks or not hasattr(actor_network, "in_keys"):
            raise ContractError(
                f"DiffusionBCLoss trains a DiffusionActor, got {type(actor_network).__name__}, whose module lacks"
                f" {', '.join(lacks) or 'keys'}"
            )
        self.actor_network = actor_network
        self.derive_early()

    def _derive(self) -> Contract:
        actor: Any = self.actor_network
        self._inputs = [unwrap(key) for key in actor.in_keys]
        return Contract(
            (
                *(Key(key, doc="observation of the actor") for key in self._inputs),
                Key(self._keys["action"], doc="action of the data set, or a chunk of them"),
                *mask_keys_of_steps(self._keys["mask"]),
            ),
            (scalar("loss_diffusion_bc", "squared error of the predicted noise"),),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        process: Any = self.actor_network.module
        action, size = entries[self._keys["action"]], tensordict.batch_size
        t = torch.randint(process.num_steps, size, device=action.device)
        noisy, noise = process.add_noise(action, t)
        seen = [entries[key].to(noisy.dtype) for key in self._inputs]
        predicted = process.score_network(torch.cat((noisy, *seen, t.unsqueeze(-1).to(noisy.dtype)), -1))
        if predicted.shape != noise.shape:
            raise ShapeError(
                f"DiffusionBCLoss: the score network predicts noise of shape {tuple(predicted.shape)}, expected"
                f" {tuple(noise.shape)}"
            )
        elements = distance(predicted, noise, "l2").mean(-1)
        return TensorDict({"loss_diffusion_bc": reduce(elements, self.reduction, mask)})
