"""Generative adversarial imitation learning."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.objectives._batch.mask import MASK, mask_keys_of_steps, scalar
from rl.objectives._networks.calls import NetworkCall
from rl.objectives.functional._offline import discriminator_loss, imitation_reward
from rl.objectives.functional._regression import is_number, reduce
from rl.objectives.losses._base import Entries, LossModule

__all__ = ["GAILLoss"]

_ROLES = ("observation", "action")


@final
class GAILLoss(LossModule):
    """Generative adversarial imitation: a discriminator tells steps of an expert from those of a policy.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, eq. 17; with `use_grad_penalty` Gulrajani et al.,
    "Improved training of Wasserstein GANs", 2017, eq. 3, of the discriminator's logit. `reward` gives the policy's
    reward, ``-log(1 - D)``, which an algorithm such as PPO maximizes in place of that of the environment.

    Reads steps of the expert, ``observation`` and ``action``, as many of the policy, ``collector_observation`` and
    ``collector_action``, and, if there, ``("collector", "mask")`` bool ``[*B]``. Returns the scalar ``loss``, which
    includes the penalty, and with `use_grad_penalty` the detached ``gp_loss``.

    Args:
        discriminator_network: reads ``observation`` and ``action``, writes logits ``d_logits`` ``[*B, 1]``, without a
            sigmoid; positive for the expert.
        use_grad_penalty: penalize gradients of the logit that are not of norm 1, between steps of both.
        gp_lambda: weight of the penalty, at least 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch.

    Raises:
        ContractError: if the network does not write the logits, or reads other entries.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict.nn import TensorDictModule, TensorDictSequential
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> net = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["d_logits"]))
        >>> loss = GAILLoss(net, use_grad_penalty=True)
        >>> data = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), batch_size=[8])
        >>> data["collector_observation"], data["collector_action"] = torch.randn(8, 3), torch.randn(8, 2)
        >>> loss(data)["loss"].backward()
        >>> loss.reward(data).shape
        torch.Size([8, 1])
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "expert_action": "action",
        "expert_observation": "observation",
        "collector_action": "collector_action",
        "collector_observation": "collector_observation",
        "discriminator_pred": "d_logits",
        "done": "done",
        "mask": MASK,
    }

    def __init__(
        self,
        discriminator_network: nn.Module,
        *,
        use_grad_penalty: bool = False,
        gp_lambda: float = 10.0,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if not (is_number(gp_lambda) and gp_lambda >= 0):
            raise SpecError(f"GAILLoss got gp_lambda={gp_lambda!r}; it is a number of at least 0")
        self.use_grad_penalty, self.gp_lambda = use_grad_penalty, gp_lambda
        self.discriminator_network = discriminator_network
        self.derive_early()

    def _derive(self) -> Contract:
        keys = self._keys
        self._discriminator = NetworkCall(
            self.discriminator_network, {"discriminator_pred": keys["discriminator_pred"]}
        )
        names = [keys[f"expert_{role}"] for role in _ROLES]
        unknown = [key for key in self._discriminator.in_keys if key not in names]
        if unknown or not self._discriminator.in_keys:
            raise ContractError(
                f"GAILLoss: the discriminator reads {', '.join(map(key_str, self._discriminator.in_keys))}, and there"
                f" are {' and '.join(map(key_str, names))}: name these with set_keys(expert_observation=...,"
                " expert_action=...)"
            )
        self._roles = [role for role, name in zip(_ROLES, names, strict=True) if name in self._discriminator.in_keys]
        reads = [
            Key(keys[f"{who}_{role}"], doc=f"{role} of the {'expert' if who == 'expert' else 'policy'}")
            for who in ("expert", "collector")
            for role in self._roles
        ]
        penalty = (scalar("gp_loss", "penalty of the gradient, no gradient"),) if self.use_grad_penalty else ()
        written = scalar("loss", "cross-entropy of the discriminator, with the penalty")
        return Contract((*reads, *mask_keys_of_steps(keys["mask"])), (written, *penalty))

    def reward(self, tensordict: TensorDictBase) -> Tensor:
        """Reward of each step, ``[*B, 1]``, without gradient: ``-log(1 - D)``.

        Args:
            tensordict: steps of the policy, ``[*B]``, with the entries that the discriminator reads.

        Raises:
            ContractError: if a key that is read is absent.
        """
        self.derived()
        reads = tuple(Key(key, doc="input of the discriminator") for key in self._discriminator.in_keys)
        contract = Contract(reads, ())
        entries = dict(zip(contract.in_keys, contract.read(tensordict, self), strict=True))
        with torch.no_grad():
            return imitation_reward(self._discriminator(entries, tensordict.batch_size)[0])

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
        pairs: dict[str, tuple[Tensor, Tensor]] = {}
        for role in self._roles:
            expert, collected = (entries[keys[f"{who}_{role}"]] for who in ("expert", "collector"))
            if expert.shape != collected.shape:
                raise ShapeError(
                    f"GAILLoss got {role}s of shape {tuple(expert.shape)} of the expert, and"
                    f" {tuple(collected.shape)} of the policy: give as many steps of both"
                )
            pairs[role] = expert, collected.to(expert.dtype)
        both = {role: torch.stack(pair) for role, pair in pairs.items()}
        expert, collected = self._logits(both, torch.Size([2, *size])).unbind(0)
        loss = reduce(discriminator_loss(expert, collected).squeeze(-1), self.reduction, mask)
        if not self.use_grad_penalty:
            return TensorDict({"loss": loss})
        penalty = self.gp_lambda * reduce(self._penalty(pairs, size), self.reduction, mask)
        return TensorDict({"loss": loss + penalty, "gp_loss": penalty.detach()})

    def _logits(self, inputs: dict[str, Tensor], size: torch.Size) -> Tensor:
        entries: Entries = {self._keys[f"expert_{role}"]: value for role, value in inputs.items()}
        return self._discriminator(entries, size)[0]

    def _penalty(self, pairs: dict[str, tuple[Tensor, Tensor]], size: torch.Size) -> Tensor:
        """Squared distance from 1 of the norm of the logit's gradient, at points between both, ``[*B]``."""
        first = next(iter(pairs.values()))[0]
        share = torch.rand(size, device=first.device)
        mixed: list[Tensor] = []
        for expert, collected in pairs.values():
            real = expert if expert.is_floating_point() else expert.float()
            weight = share.to(real.dtype).reshape(*size, *[1] * (expert.ndim - len(size)))
            mixed.append(torch.lerp(real, collected.to(real.dtype), weight))

        def logit(*inputs: Tensor) -> Tensor:
            return self._logits(dict(zip(pairs, inputs, strict=True)), size).sum()

        gradients = torch.func.grad(logit, tuple(range(len(mixed))))(*mixed)
        flat = torch.cat([one.flatten(len(size)) for one in gradients], -1)
        return (torch.linalg.vector_norm(flat, dim=-1) - 1).square()
