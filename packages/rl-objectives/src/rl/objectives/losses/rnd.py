"""Random network distillation."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core.arguments import module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, UnsupportedError
from rl.core.keys import NestedKey, key_str, next_key
from rl.objectives._agents import Entries
from rl.objectives._batch import MASK, mask_keys_of_steps, mean_of, scalar
from rl.objectives._networks import NetworkCall
from rl.objectives.functional._offline import distillation_error
from rl.objectives.functional._q_learning import reduce
from rl.objectives.losses._base import LossModule

__all__ = ["RNDLoss"]


@final
@module_arguments()
class RNDLoss(LossModule):
    """Random network distillation: a predictor learns the features of a fixed random network.

    Burda et al., "Exploration by random network distillation", 2018, section 2.2. The error of the prediction is large
    where few states were seen: `intrinsic_reward` returns it as a reward; `rl.objectives.functional.scale_by_returns`
    scales it. Normalize the inputs: a random network maps a small input to nearly one point.

    Reads the networks' inputs under ``next`` and, if there, ``("collector", "mask")`` bool ``[*B]``. Returns scalars:
    ``loss_predictor``, and the detached mean of ``intrinsic_reward``.

    Args:
        predictor_network: Network that writes ``features`` ``[*B, d]``. A plain module reads ``observation``.
        target_network: Fixed network that writes ``features`` of that shape; it is in `state_dict()`, not in
            `parameters()`.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at padding.

    Raises:
        ContractError: If a network does not write ``features``, or both share parameters.
        ArgumentError: If the reduction is unknown.

    Example:
        >>> loss = RNDLoss(predictor_network=nn.Linear(3, 8), target_network=nn.Linear(3, 8))
        >>> batch = TensorDict(next=TensorDict(observation=torch.randn(4, 5, 3)), batch_size=[4, 5])
        >>> loss.intrinsic_reward(batch).shape
        torch.Size([4, 5, 1])
        >>> loss(batch)["loss_predictor"].backward()
        >>> len(list(loss.parameters()))
        2
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"features": "features", "done": "done", "mask": MASK}

    predictor_network: nn.Module
    target_network: nn.Module

    def __init__(
        self, predictor_network: nn.Module, target_network: nn.Module, *, reduction: str | None = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.predictor_network, self.target_network = map(_with_keys, (predictor_network, target_network))
        self.derive_early()

    def _derive(self) -> Contract:
        keys = self._keys
        fixed = {*map(id, self.target_network.parameters())}
        if any(id(parameter) in fixed for parameter in self.predictor_network.parameters()):
            raise ArgumentError(
                f"{type(self).__name__} got a predictor_network and a target_network that share parameters: the target"
                " is fixed, build it on its own"
            )
        features = {"features": keys["features"]}
        self._predictor, self._target = (
            NetworkCall(network, features) for network in (self.predictor_network, self.target_network)
        )
        for call in (self._predictor, self._target):
            if call.states:
                raise UnsupportedError(
                    f"{type(self).__name__} got a recurrent network ({key_str(call.states[0].name)}): it predicts"
                    " features of one state; pass feed-forward networks"
                )
        inputs = dict.fromkeys([*self._predictor.in_keys, *self._target.in_keys])
        return Contract(
            (
                *(Key(next_key(key), doc="input of the networks, of the next state") for key in inputs),
                *mask_keys_of_steps(keys["mask"]),
            ),
            (
                scalar("loss_predictor", "squared error of the features"),
                scalar("intrinsic_reward", "mean intrinsic reward, no gradient"),
            ),
        )

    def intrinsic_reward(self, tensordict: TensorDictBase) -> Tensor:
        """Return the mean squared error of the features of each next state, without gradient, ``[*B, 1]``.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        with torch.no_grad():
            return self._error(self.read(tensordict)[0], tensordict.batch_size)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        error = self._error(entries, tensordict.batch_size).squeeze(-1)
        return TensorDict(
            {"loss_predictor": reduce(error, self.reduction, mask), "intrinsic_reward": mean_of(error.detach(), mask)}
        )

    def _error(self, entries: Entries, size: torch.Size) -> Tensor:
        with torch.no_grad():
            (target,) = self._target.after(entries, size)
        return distillation_error(self._predictor.after(entries, size)[0], target)


def _with_keys(network: nn.Module) -> nn.Module:
    if isinstance(network, TensorDictModuleBase) or hasattr(network, "in_keys"):
        return network
    return TensorDictModule(network, in_keys=["observation"], out_keys=["features"])
