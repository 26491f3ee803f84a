"""Action chunking with transformers."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.objectives._batch.mask import MASK, mask_keys_of_steps, scalar
from rl.objectives._networks.calls import NetworkCall
from rl.objectives.functional._offline import style_divergence
from rl.objectives.functional._regression import distance, is_number, reduce
from rl.objectives.losses._base import LossModule

__all__ = ["ACTLoss"]

CHUNK = "action_chunk"


@final
class ACTLoss(LossModule):
    """Action chunking: a plan that repeats the chunks of a data set, with a style close to its prior.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", 2023, section IV-C and algorithm
    1: ``L1(plan, chunk) + kl_weight * KL(style, standard normal)``.

    Reads the inputs of the network, ``action_chunk`` ``[*B, H, *A]`` and, if there, ``action_is_pad`` bool ``[*B, H]``,
    true where the chunk lies after the end of the episode, which is not imitated, and ``("collector", "mask")`` bool
    ``[*B]``. Returns the scalar ``loss_act``, which is minimized, and its detached parts ``loss_reconstruction`` and
    ``loss_kl``, without the weight.

    Args:
        actor_network: reads ``action_chunk`` and observations, writes ``action_pred`` ``[*B, H, *A]``, and ``mu`` and
            ``log_var`` of the style ``[*B, d]``, such as an ``ACTModel`` of rl-modules.
        kl_weight: weight of the divergence, at least 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch.

    Raises:
        ContractError: if the network lacks a key.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> class Plan(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.plan, self.style = nn.Linear(3, 4 * 2), nn.Linear(4 * 2, 2)
        ...     def forward(self, observation, chunk):
        ...         mean, log_variance = self.style(chunk.flatten(-2)).chunk(2, -1)
        ...         return self.plan(observation).unflatten(-1, (4, 2)) + mean.unsqueeze(-1), mean, log_variance
        >>> net = TensorDictModule(Plan(), ["observation", "action_chunk"], ["action_pred", "mu", "log_var"])
        >>> data = TensorDict(observation=torch.randn(8, 3), action_chunk=torch.randn(8, 4, 2), batch_size=[8])
        >>> ACTLoss(net)(data)["loss_act"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "action_chunk": CHUNK,
        "action_pred": "action_pred",
        "mu": "mu",
        "log_var": "log_var",
        "action_is_pad": "action_is_pad",
        "done": "done",
        "mask": MASK,
    }

    def __init__(self, actor_network: nn.Module, *, kl_weight: float = 10.0, reduction: str | None = "mean") -> None:
        super().__init__(reduction=reduction)
        if not (is_number(kl_weight) and kl_weight >= 0):
            raise SpecError(f"ACTLoss got kl_weight={kl_weight!r}; it is a number of at least 0")
        self.kl_weight = kl_weight
        self.actor_network = actor_network
        self.derive_early()

    def _derive(self) -> Contract:
        keys = self._keys
        self._actor = NetworkCall(self.actor_network, {name: keys[name] for name in ("action_pred", "mu", "log_var")})
        if CHUNK not in self._actor.in_keys:
            raise ContractError(
                f"ACTLoss: the network reads {', '.join(map(key_str, self._actor.in_keys))}, expected observations and"
                f" {key_str(CHUNK)}"
            )
        return Contract(
            (
                *(Key(key, doc="observation of the network") for key in self._actor.in_keys if key != CHUNK),
                Key(keys["action_chunk"], doc="actions of the data set from this step on, [*B, H, *A]"),
                Key(keys["action_is_pad"], doc="true after the end of the episode", dtype=torch.bool, optional=True),
                *mask_keys_of_steps(keys["mask"]),
            ),
            (
                scalar("loss_act", "distance of plan and chunk, and the weighted divergence of the style"),
                scalar("loss_reconstruction", "distance of plan and chunk, no gradient"),
                scalar("loss_kl", "divergence of the style from its prior, nats, no gradient"),
            ),
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
        keys, size = self._keys, tensordict.batch_size
        chunk = entries[keys["action_chunk"]]
        action, mean, log_variance = self._actor({**entries, CHUNK: chunk}, size)
        if action.shape != chunk.shape:
            raise ShapeError(
                f"ACTLoss got a plan of shape {tuple(action.shape)} from the network, and"
                f" {key_str(keys['action_chunk'])} has {tuple(chunk.shape)}: they would broadcast"
            )
        steps = distance(action, chunk.to(action.dtype), "l1").flatten(len(size) + 1).mean(-1)
        beyond = entries.get(keys["action_is_pad"])
        if beyond is not None:
            if beyond.shape != steps.shape:
                raise ShapeError(
                    f"ACTLoss got {key_str(keys['action_is_pad'])} of shape {tuple(beyond.shape)}, expected"
                    f" {tuple(steps.shape)}"
                )
            steps = steps.where(~beyond, 0)
        elements = steps.mean(-1)
        divergence = style_divergence(mean, log_variance)
        reconstruction, kl = (reduce(part, self.reduction, mask) for part in (elements, divergence))
        return TensorDict(
            {
                "loss_act": reconstruction + self.kl_weight * kl,
                "loss_reconstruction": reconstruction.detach(),
                "loss_kl": kl.detach(),
            }
        )
