"""Losses of world models that are composed of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, final

from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_number, one_of
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError
from rl.core.keys import NestedKey, next_key
from rl.objectives._batch import MASK, mask_keys_of_steps, mean_of, scalar
from rl.objectives.functional._q_learning import check_distance, distance
from rl.objectives.losses._base import LossModule
from rl.objectives.losses.dreamer import keys_of, replace_entries

__all__ = ["WorldModelLoss"]


_KINDS = ("reward", "done", "reconstruction", "latent", "likelihood")


@final
class WorldModelLoss(LossModule):
    """Losses of a world model that is composed of parts: reward, done flag, reconstruction, latent state, likelihood.

    The names are those of TorchRL. ``"likelihood"`` is that of an ensemble of probabilistic networks: Chua et al.,
    "Deep reinforcement learning in a handful of trials using probabilistic dynamics models", 2018, eq. 1.

    Reads the inputs of the world model, and the targets of the selected losses: ``("next", "reward")``,
    ``("next", "done")``, ``observation``. Returns the scalars ``loss_reward``, ``loss_done``, ``loss_reconstruction``,
    ``loss_latent`` and ``loss_likelihood``, of those that were selected.

    Args:
        world_model: World model on TensorDicts, which writes its predictions under the keys of this loss. For
            ``"likelihood"`` it has a method ``log_likelihood(td)``, ``[*B]``, as `EnsembleDynamics` of rl-modules.
        losses: Selected losses: ``"reward"``, ``"done"``, ``"reconstruction"``, ``"latent"``, ``"likelihood"``.
        reward_loss: Distance of the reward, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        done_loss: Distance of the done flag.
        reconstruction_loss: Distance of the observation.
        latent_loss: Distance of the latent state.
        reward_weight: Weight of the reward.
        done_weight: Weight of the done flag.
        reconstruction_weight: Weight of the observation.
        latent_weight: Weight of the latent state.
        likelihood_weight: Weight of the likelihood.

    Raises:
        ArgumentError: If no or an unknown loss is selected.
        ContractError: If the world model has no keys.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> model = TensorDictModule(nn.Linear(3, 1), ["observation"], [("next", "reward")])
        >>> after = TensorDict(reward=torch.randn(4, 1), batch_size=[4])
        >>> batch = TensorDict(observation=torch.randn(4, 3), next=after, batch_size=[4])
        >>> WorldModelLoss(model)(batch)["loss_reward"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "reward": "reward",
        "done": "done",
        "observation": "observation",
        "reconstructed_observation": "reconstructed_observation",
        "predicted_latent": "predicted_latent",
        "target_latent": "target_latent",
        "mask": MASK,
    }

    def __init__(  # noqa: PLR0913 - the names of TorchRL
        self,
        world_model: nn.Module,
        *,
        losses: Sequence[str] | None = None,
        reward_loss: str = "l2",
        done_loss: str = "l2",
        reconstruction_loss: str = "l2",
        latent_loss: str = "l2",
        reward_weight: float = 1.0,
        done_weight: float = 1.0,
        reconstruction_weight: float = 1.0,
        latent_weight: float = 1.0,
        likelihood_weight: float = 1.0,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.world_model = world_model
        self.losses = [one_of(kind, owner, "losses", _KINDS) for kind in (["reward"] if losses is None else losses)]
        if not self.losses:
            raise ArgumentError(f"{owner} got no losses: select some of {', '.join(_KINDS)}")
        given = {"reward": reward_loss, "done": done_loss, "reconstruction": reconstruction_loss, "latent": latent_loss}
        self._distances = {kind: check_distance(name, owner) for kind, name in given.items()}
        weights = {
            "reward": reward_weight,
            "done": done_weight,
            "reconstruction": reconstruction_weight,
            "latent": latent_weight,
            "likelihood": likelihood_weight,
        }
        self._weights = {kind: as_number(one, owner, f"{kind}_weight", least=0) for kind, one in weights.items()}
        self.derive_early()

    def _derive(self) -> Contract:
        keys = self._keys
        targets = {"reward": next_key(keys["reward"]), "done": next_key(keys["done"])}
        targets["reconstruction"] = keys["observation"]
        reads = [*keys_of(self.world_model, type(self).__name__), *(targets[k] for k in self.losses if k in targets)]
        return Contract(
            (*map(Key, dict.fromkeys(reads)), *mask_keys_of_steps(keys["mask"])),
            tuple(scalar(f"loss_{kind}", f"{kind} of the world model") for kind in self.losses),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch, ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        batch = replace_entries(tensordict, entries)
        found = self.world_model(batch.copy())
        out = {
            f"loss_{kind}": self._weights[kind] * mean_of(self._elements(kind, batch, found), mask)
            for kind in self.losses
        }
        return TensorDict(out)  # pyright: ignore[reportArgumentType]

    def _elements(self, kind: str, batch: TensorDictBase, found: TensorDictBase) -> Tensor:
        if kind == "likelihood":
            score: Callable[[TensorDictBase], Tensor] = self.world_model.log_likelihood  # pyright: ignore[reportAssignmentType]
            return -score(batch)
        keys = self._keys
        key, target_key = {
            "reward": (next_key(keys["reward"]), next_key(keys["reward"])),
            "done": (next_key(keys["done"]), next_key(keys["done"])),
            "reconstruction": (keys["reconstructed_observation"], keys["observation"]),
            "latent": (keys["predicted_latent"], keys["target_latent"]),
        }[kind]
        prediction: Tensor = found.get(key)
        target: Tensor = (found if kind == "latent" else batch).get(target_key)  # the model may write over the others
        return distance(prediction.float(), target.to(prediction.float().dtype), self._distances[kind])
