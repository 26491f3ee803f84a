"""TD-MPC2: a world model without decoder, a critic and a policy for planning."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer, as_number
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, UnsupportedError
from rl.core.keys import NestedKey, next_key
from rl.objectives._agents import Entries
from rl.objectives._batch import MASK, mask_keys_of_steps, scalar
from rl.objectives._keyed_module import sum_log_probs
from rl.objectives._networks import ActorCall, NetworkCall
from rl.objectives.functional._world_models import decayed_mean
from rl.objectives.losses._base import LossModule
from rl.objectives.targets import make_target

__all__ = ["TDMPC2Loss"]


def _critics(given: nn.Module | Sequence[nn.Module], count: int) -> list[nn.Module]:
    """Return the critics: those that are given, or copies of one with new initial parameters."""
    if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList):
        critics = [given, *(deepcopy(given) for _ in range(count - 1))]
        for critic in critics[1:]:
            for part in critic.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
        return critics
    critics = list(given)
    if len(critics) != count:
        raise ArgumentError(f"TDMPC2Loss got {len(critics)} critics for num_qvalue_nets={count}: pass one, or {count}")
    return critics


class _Value(nn.Module):
    """Mean of a critic's distribution, through which gradients reach the inputs, and no parameter."""

    def __init__(self, call: ActorCall) -> None:
        super().__init__()
        self.network, self.call = call.actor, call

    def forward(self, entries: Entries, size: torch.Size) -> Tensor:
        return self.call(entries, size).mean

    def constant(self, entries: Entries, size: torch.Size) -> Tensor:
        """Return the mean, ``[*B, 1]``."""
        if not torch.is_grad_enabled():
            return self(entries, size)
        fixed = {name: one.detach() for name, one in self.named_parameters(remove_duplicate=False)}
        return torch.func.functional_call(self, fixed, (entries, size), tie_weights=False)


@final
class TDMPC2Loss(LossModule):
    """Losses of TD-MPC2: latent consistency, reward, value, termination and policy.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024, eq. 3 to 6. Latent states are
    unrolled from the first observation of each sequence, with the recorded actions; losses at step `t` count
    ``rho ** t``. Targets of values are one-step: the smaller of two random target critics.

    Reads the inputs of the encoder at the root and under ``next``, ``action`` ``[*B, T, a]``, ``("next", "reward")``
    ``[*B, T, 1]`` and ``("next", "terminated")`` bool ``[*B, T, 1]``, of *each* step: an episode that ends inside of a
    sequence ends its target there. Sequences that are shorter than the batch are masked by ``("collector", "mask")``.

    Returns scalars: ``loss_consistency``, ``loss_reward``, ``loss_value``, ``loss_actor``, with `terminated_model`
    ``loss_terminated``, and the detached ``value_scale`` and ``entropy``. The policy's loss reaches the policy alone,
    so that several optimizers may minimize the sum: learning rate 3e-4, a third of it for the encoder, gradients
    of the model clipped at a norm of 20. `SoftUpdate` with ``tau=0.01`` moves the target critics.

    Args:
        encoder: Module from observations to ``latent`` ``[*B, z]``, normalized, as by `SimNorm` of rl-modules.
        dynamics: Module from ``latent`` and action to ``("next", "latent")``.
        reward_model: Head of the reward on latent state and action, with ``get_dist``: two-hot in symlog space.
        qvalue_network: Head of the value on latent state and action, with ``get_dist``, or a list of them; of one,
            the others are copies with new initial parameters.
        actor_network: Policy on latent states, with ``get_dist`` and reparameterized samples: `TanhNormal`.
        terminated_model: Head of the termination on the latent state reached: ``get_dist`` is a Bernoulli distribution.
            Without it no episode may terminate.
        num_qvalue_nets: Number of critics, at least 2.
        gamma: Discount; `rl.objectives.functional.episode_discount` returns the paper's for a length of episodes.
        rho: Weight of each step in that of the step before, in [0, 1].
        consistency_weight: Weight of the latent consistency.
        reward_weight: Weight of the reward.
        value_weight: Weight of the value.
        terminated_weight: Weight of the termination.
        entropy_bonus: Weight of the policy's entropy, times the number of action dimensions.
        scale_rate: Share of a batch in the moving range of values, by which those of the policy's loss are divided.

    Raises:
        ArgumentError: If an argument is out of its range.
        ContractError: If a network does not write what is read.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "latent": "latent",
        "action": "action",
        "reward": "reward",
        "terminated": "terminated",
        "done": "done",
        "mask": MASK,
    }

    value_scale: Tensor

    def __init__(  # noqa: PLR0913 - the settings of the paper
        self,
        encoder: nn.Module,
        dynamics: nn.Module,
        reward_model: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        actor_network: nn.Module,
        *,
        terminated_model: nn.Module | None = None,
        num_qvalue_nets: int = 5,
        gamma: float = 0.99,
        rho: float = 0.5,
        consistency_weight: float = 20.0,
        reward_weight: float = 0.1,
        value_weight: float = 0.1,
        terminated_weight: float = 1.0,
        entropy_bonus: float = 1e-4,
        scale_rate: float = 0.01,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        count = as_integer(num_qvalue_nets, owner, "num_qvalue_nets", least=2)
        self.encoder, self.dynamics, self.reward_model = encoder, dynamics, reward_model
        self.qvalue_network = nn.ModuleList(_critics(qvalue_network, count))
        self.target_qvalue_network = make_target(self.qvalue_network, owner).eval()
        self.actor_network, self.terminated_model = actor_network, terminated_model
        self.gamma = as_number(gamma, owner, "gamma", least=0, most=1)
        self.rho = as_number(rho, owner, "rho", least=0, most=1)
        self.scale_rate = as_number(scale_rate, owner, "scale_rate", least=0, most=1)
        self.consistency_weight = as_number(consistency_weight, owner, "consistency_weight", least=0)
        self.reward_weight = as_number(reward_weight, owner, "reward_weight", least=0)
        self.value_weight = as_number(value_weight, owner, "value_weight", least=0)
        self.terminated_weight = as_number(terminated_weight, owner, "terminated_weight", least=0)
        self.entropy_bonus = as_number(entropy_bonus, owner, "entropy_bonus", least=0)
        self.register_buffer("value_scale", torch.ones(()))
        self.derive_early()

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """Set the mode; target critics keep that of evaluation, without dropout."""
        super().train(mode)
        self.target_qvalue_network.eval()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Network calls hold the networks of the original; a copy builds its own.
        return {
            key: value
            for key, value in super().__getstate__().items()
            if key not in ("_values", "_constants", "_targets")
        }

    def _derive(self) -> Contract:
        keys = self._keys
        latent = keys["latent"]
        self._encoder = NetworkCall(self.encoder, {"latent": latent})
        self._dynamics = NetworkCall(self.dynamics, {"latent": next_key(latent)})
        self._reward, self._actor = ActorCall(self.reward_model), ActorCall(self.actor_network)
        self._values = [ActorCall(one) for one in self.qvalue_network]
        # In lists: the networks are held once.
        self._constants = [_Value(call) for call in self._values]
        self._targets = [_Value(ActorCall(one)) for one in self.target_qvalue_network]
        self._terminated = None if self.terminated_model is None else ActorCall(self.terminated_model)
        inputs = [part for key in self._encoder.in_keys for part in (key, next_key(key))]
        ends = () if self._terminated is None else (scalar("loss_terminated", "cross-entropy of the termination"),)
        return Contract(
            (
                *(Key(key, doc="input of the encoder") for key in inputs),
                Key(keys["action"], doc="action of the batch"),
                Key(next_key(keys["reward"]), (1,), "reward"),
                Key(next_key(keys["terminated"]), (1,), "whether the episode terminated, at each step", torch.bool),
                *mask_keys_of_steps(keys["mask"]),
            ),
            (
                scalar("loss_consistency", "distance of unrolled and encoded latent states"),
                scalar("loss_reward", "negative log-likelihood of the reward"),
                scalar("loss_value", "negative log-likelihood of the value target"),
                scalar("loss_actor", "minus the scaled value, and the entropy bonus"),
                *ends,
                scalar("value_scale", "divisor of values, no gradient"),
                scalar("entropy", "mean entropy of the policy, nats, no gradient"),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of sequences.

        Args:
            tensordict: Batch, ``[*B, T]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If there is no dimension of time, or shapes do not agree.
            UnsupportedError: If an episode terminates, without a model of that.
        """
        owner, size = type(self).__name__, tensordict.batch_size
        if not size:
            raise ShapeError(f"{owner} learns from sequences [*B, T], got a batch without dimensions")
        entries, mask = self.read(tensordict)
        reward, terminated = (entries[next_key(self._keys[name])] for name in ("reward", "terminated"))
        # Read on the CPU only: on another device, reading waits for all work before it.
        readable = terminated.is_cpu and not torch.compiler.is_compiling()
        if self._terminated is None and readable and bool(terminated.any()):
            raise UnsupportedError(f"{owner}: an episode of the batch terminates: pass terminated_model")
        with torch.no_grad():
            after = self._encoder.after(entries, size)[0]
            target = reward + self.gamma * (~terminated) * self._target(after)
        latents = self._unroll(entries, size)
        before = latents[..., :-1, :]
        action = entries[self._keys["action"]]
        seen: Entries = {self._keys["latent"]: before, self._keys["action"]: action}
        consistency = (latents[..., 1:, :] - after).square().mean(-1)
        rewards = -self._reward(seen, size).log_prob(reward)
        values = -torch.stack([value(seen, size).log_prob(target) for value in self._values]).mean(0)
        out = {
            "loss_consistency": self.consistency_weight * self._mean(consistency, mask),
            "loss_reward": self.reward_weight * self._mean(rewards, mask),
            "loss_value": self.value_weight * self._mean(values, mask),
        }
        actor, entropy = self._policy_loss(latents.detach(), mask)
        out["loss_actor"] = actor
        if self._terminated is not None:
            out["loss_terminated"] = self._termination_loss(latents[..., 1:, :], terminated, mask)
        return TensorDict({**out, "value_scale": self.value_scale.clone(), "entropy": entropy.detach().mean()})  # pyright: ignore[reportArgumentType]

    def _unroll(self, entries: Entries, size: torch.Size) -> Tensor:
        """Latent states from the first observation on, ``[*B, T + 1, z]``."""
        first = size[:-1]
        place, latent, act = len(size) - 1, self._keys["latent"], self._keys["action"]
        begin = {key: entries[key].select(place, 0) for key in self._encoder.in_keys}
        states = [self._encoder(begin, first)[0]]
        for action in entries[act].unbind(place):
            states.append(self._dynamics({latent: states[-1], act: action}, first)[0])
        return torch.stack(states, place)

    def _sample(self, latent: Tensor) -> tuple[Distribution, Tensor]:
        dist = self._actor({self._keys["latent"]: latent}, latent.shape[:-1])
        return dist, dist.rsample()

    def _two_values(self, critics: list[_Value], latent: Tensor, action: Tensor) -> Tensor:
        """Return the values of two random critics, ``[2, *B, 1]``."""
        seen = {self._keys["latent"]: latent, self._keys["action"]: action}
        if torch.compiler.is_compiling():  # a graph cannot select a network by a number that it draws
            chosen = torch.randperm(len(critics), device=latent.device)[:2]
            return torch.stack([critic.constant(seen, latent.shape[:-1]) for critic in critics])[chosen]
        return torch.stack(
            [critics[index].constant(seen, latent.shape[:-1]) for index in torch.randperm(len(critics))[:2].tolist()]
        )

    def _target(self, latent: Tensor) -> Tensor:
        return self._two_values(self._targets, latent, self._sample(latent)[1]).amin(0)

    def _mean(self, elements: Tensor, mask: Tensor | None) -> Tensor:
        """Weighted mean of ``[*B, T]``; padding is 0, as if the sequence had ended."""
        return decayed_mean(elements if mask is None else elements.where(mask, 0), self.rho).mean()

    def _termination_loss(self, latent: Tensor, terminated: Tensor, mask: Tensor | None) -> Tensor:
        assert self._terminated is not None
        logits: Tensor = self._terminated({self._keys["latent"]: latent}, latent.shape[:-1]).logits  # pyright: ignore[reportAttributeAccessIssue]
        target = terminated.to(logits.dtype)
        elements = F.binary_cross_entropy_with_logits(logits.reshape(target.shape), target, reduction="none")
        elements = elements.squeeze(-1)
        total = elements.mean() if mask is None else elements.where(mask, 0).sum() / mask.sum()
        return self.terminated_weight * total

    def _policy_loss(self, latent: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss of the policy at all latent states ``[*B, T + 1, z]``, and its entropy."""
        dist, action = self._sample(latent)
        entropy = -sum_log_probs(dist.log_prob(action))
        value = self._two_values(self._constants, latent, action).mean(0).squeeze(-1)
        if self.training:
            self._update_scale(value[..., 0])
        objective = value / self.value_scale + self.entropy_bonus * action.shape[-1] * entropy
        # The state after the last valid step is valid, too.
        valid = None if mask is None else F.pad(mask, (1, 0), value=True)
        return -self._mean(objective, valid), entropy

    @torch.no_grad()
    def _update_scale(self, value: Tensor) -> None:
        """Move the range of values, from the 5th to the 95th percentile and at least 1, as the official code does."""
        wanted = torch.tensor([0.05, 0.95], dtype=value.dtype, device=value.device)
        low, high = torch.quantile(value.flatten(), wanted)
        self.value_scale.lerp_((high - low).clamp_min(1).to(self.value_scale), self.scale_rate)
