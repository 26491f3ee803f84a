"""Losses of imitation: behavior cloning, action chunks, diffusion and adversarial imitation."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor, nn

from rl.core.arguments import as_number
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.objectives._agents import Entries, mask_keys
from rl.objectives._batch import MASK, mask_keys_of_steps, scalar
from rl.objectives._keyed_module import as_list, select_action, sum_log_probs
from rl.objectives._networks import ActorCall, NetworkCall, actor_keys, input_key
from rl.objectives.functional._offline import discriminator_loss, imitation_reward, style_divergence
from rl.objectives.functional._q_learning import check_distance, distance, reduce
from rl.objectives.losses._base import LossModule

__all__ = ["ACTLoss", "BCLoss", "DiffusionBCLoss", "GAILLoss"]


@final
class BCLoss(LossModule):
    """Behavior cloning: the actor imitates the actions of a dataset.

    Pomerleau, "ALVINN: An autonomous land vehicle in a neural network", 1989. A policy with a distribution maximizes
    the log-probability of the actions; a deterministic one minimizes the distance to them.

    Reads the inputs of the actor, ``action`` (or the key of ``set_keys(action_target=...)``) and, if there,
    ``("collector", "mask")`` bool ``[*B]``, which masks out padding. Returns the scalar ``loss_bc``. A
    recurrent actor reads the batch as sequences.

    Args:
        actor_network: Policy.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``: the distance of the policy's
            deterministic action and that of the batch. None for the negative log-probability, and for ``"l2"`` if the
            policy has no distribution.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If the actor has no keys.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), batch_size=[8])
        >>> BCLoss(actor)(batch)["loss_bc"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "action": "action",
        "action_target": "action",
        "done": "done",
        "mask": MASK,
    }

    def __init__(
        self, actor_network: nn.Module, *, loss_function: str | None = None, reduction: str | None = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        stochastic = callable(getattr(actor_network, "get_dist", None))
        if loss_function is None and not stochastic:
            loss_function = "l2"
        self.loss_function = None if loss_function is None else check_distance(loss_function, type(self).__name__)
        self.actor_network = actor_network
        self._keys["action"] = self._keys["action_target"] = actor_keys(actor_network)["action"]
        self.derive_early()

    def set_keys(self, **names: Any) -> None:
        if "action" in names:
            names.setdefault("action_target", names["action"])
        super().set_keys(**names)

    def _derive(self) -> Contract:
        keys = self._keys
        if self.loss_function is None:
            self._actor: ActorCall | NetworkCall = ActorCall(self.actor_network)
        else:
            self._actor = NetworkCall(self.actor_network, {"action": keys["action"]})
        self._states = self._actor.states
        targets = as_list(keys["action_target"])
        inputs = [key for key in self._actor.in_keys if key not in targets]
        return Contract(
            (
                *(input_key(key, self._states, "input of the actor") for key in inputs),
                *(Key(key, doc="action of the dataset") for key in targets),
                *mask_keys(keys["mask"], self._agents),
            ),
            (scalar("loss_bc", "distance to the actions of the dataset, or their negative log-probability"),),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        size, key, target = tensordict.batch_size, self._keys["action"], self._keys["action_target"]
        expert = dict(zip(as_list(key), (entries[one] for one in as_list(target)), strict=True))
        if isinstance(self._actor, ActorCall):
            elements = -sum_log_probs(self._actor(entries, size).log_prob(select_action(expert, key, size)))
        else:
            with set_interaction_type(InteractionType.DETERMINISTIC):
                (action,) = self._actor(entries, size)
            given = expert[key]
            if action.shape != given.shape:
                raise ShapeError(
                    f"BCLoss got actions of shape {tuple(action.shape)} from the actor, and {key_str(target)} has"
                    f" {tuple(given.shape)}: they would broadcast"
                )
            elements = distance(action, given.to(action.dtype), str(self.loss_function)).mean(-1)
        return TensorDict({"loss_bc": reduce(elements, self.reduction, mask)})


CHUNK = "action_chunk"


@final
class ACTLoss(LossModule):
    """Action chunking: a plan that repeats the chunks of a dataset, with a style close to its prior.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", 2023, section IV-C and algorithm
    1: ``L1(plan, chunk) + kl_weight * KL(style, standard normal)``.

    Reads the inputs of the network, ``action_chunk`` ``[*B, H, *A]`` and, if there, ``action_is_pad`` bool ``[*B, H]``,
    true where the chunk lies after the end of the episode, which is not imitated, and ``("collector", "mask")`` bool
    ``[*B]``. Returns the scalar ``loss_act``, which is minimized, and its detached parts ``loss_reconstruction`` and
    ``loss_kl``, without the weight.

    Args:
        actor_network: Network that reads ``action_chunk`` and observations, writes ``action_pred`` ``[*B, H, *A]``, and
            ``mu`` and ``log_var`` of the style ``[*B, d]``, such as an ``ACTModel`` of rl-modules.
        kl_weight: Weight of the divergence, at least 0.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If the network lacks a key.
        ArgumentError: If an argument is out of its range.

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
        self.kl_weight = as_number(kl_weight, "ACTLoss", "kl_weight", least=0)
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
                Key(keys["action_chunk"], doc="actions of the dataset from this step on, [*B, H, *A]"),
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
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
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


@final
class DiffusionBCLoss(LossModule):
    """Behavior cloning with a diffusion policy: its network predicts the noise in the actions of a dataset.

    Chi et al., "Diffusion policy: visuomotor policy learning via action diffusion", 2023, eq. 5 (Ho et al., "Denoising
    diffusion probabilistic models", 2020, eq. 14), with a random diffusion step for each row.

    Reads the observations of the actor, ``action`` ``[*B, *A]``, or ``[*B, H, *A]`` for an actor that plans H actions,
    and, if there, ``("collector", "mask")`` bool ``[*B]``. Returns the scalar ``loss_diffusion_bc``.

    Args:
        actor_network: A ``DiffusionActor`` of rl-modules, or a module with keys whose ``module`` has ``num_steps``,
            ``add_noise(action, t)``, which returns noisy action and noise ``[*B, D]``, and ``score_network``, which
            predicts the noise from noisy action, observations and step ``[*B, D + d + 1]``.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If the actor is no diffusion policy.
        ArgumentError: If the reduction is unknown.

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
            raise ArgumentError(
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
                Key(self._keys["action"], doc="action of the dataset, or a chunk of them"),
                *mask_keys_of_steps(self._keys["mask"]),
            ),
            (scalar("loss_diffusion_bc", "squared error of the predicted noise"),),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
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


_ROLES = ("observation", "action")


@final
class GAILLoss(LossModule):
    """Generative adversarial imitation: a discriminator tells steps of an expert from those of a policy.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, eq. 17; with `use_grad_penalty` Gulrajani et al.,
    "Improved training of Wasserstein GANs", 2017, eq. 3, of the discriminator's logit. `reward` returns the policy's
    reward, ``-log(1 - D)``, which an algorithm such as PPO maximizes in place of that of the environment.

    Reads steps of the expert, ``observation`` and ``action``, as many of the policy, ``collector_observation`` and
    ``collector_action``, and, if there, ``("collector", "mask")`` bool ``[*B]``. Returns the scalar ``loss``, which
    includes the penalty, and with `use_grad_penalty` the detached ``gp_loss``.

    Args:
        discriminator_network: Network that reads ``observation`` and ``action``, writes logits ``d_logits`` ``[*B,
            1]``, without a sigmoid; positive for the expert.
        use_grad_penalty: Whether gradients of the logit that are not of norm 1 are penalized, between steps of both.
        gp_lambda: Weight of the penalty, at least 0.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If the network does not write the logits, or reads other entries.
        ArgumentError: If an argument is out of its range.

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
        self.use_grad_penalty = use_grad_penalty
        self.gp_lambda = as_number(gp_lambda, "GAILLoss", "gp_lambda", least=0)
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
        """Return the reward of each step, ``[*B, 1]``, without gradient: ``-log(1 - D)``.

        Args:
            tensordict: Steps of the policy, ``[*B]``, with the entries that the discriminator reads.

        Raises:
            ContractError: If a key that is read is absent.
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
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size = self._keys, tensordict.batch_size
        pairs: dict[str, tuple[Tensor, Tensor]] = {}
        for role in self._roles:
            expert, collected = (entries[keys[f"{who}_{role}"]] for who in ("expert", "collector"))
            if expert.shape != collected.shape:
                raise ShapeError(
                    f"GAILLoss got {role}s of shape {tuple(expert.shape)} of the expert, and"
                    f" {tuple(collected.shape)} of the policy: pass as many steps of both"
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
        """Return the squared distance from 1 of the norm of the logit's gradient, at points between both, ``[*B]``."""
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
