"""Language models: losses, advantages, log-probabilities and token containers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.llm.__about__ import __version__
    from rl.llm._base import TokenLoss
    from rl.llm.advantages import MCAdvantage
    from rl.llm.log_probs import TokenScorer, linear_log_probs, log_probs_of_logits, token_positions
    from rl.llm.policy_losses import (
        CISPOLoss,
        DAPOLoss,
        DistillationLoss,
        DrGRPOLoss,
        GRPOLoss,
        GSPOLoss,
        PolicyLoss,
        RLOOLoss,
    )
    from rl.llm.supervised_losses import DPOLoss, RewardModelLoss, SFTLoss
    from rl.llm.surrogates import CISPO, GMPO, SAPO, Correction, PPOClip, Reinforce, Surrogate, TVMask

__all__ = [
    "CISPO",
    "GMPO",
    "SAPO",
    "CISPOLoss",
    "Correction",
    "DAPOLoss",
    "DPOLoss",
    "DistillationLoss",
    "DrGRPOLoss",
    "GRPOLoss",
    "GSPOLoss",
    "MCAdvantage",
    "PPOClip",
    "PolicyLoss",
    "RLOOLoss",
    "Reinforce",
    "RewardModelLoss",
    "SFTLoss",
    "Surrogate",
    "TVMask",
    "TokenLoss",
    "TokenScorer",
    "__version__",
    "linear_log_probs",
    "log_probs_of_logits",
    "token_positions",
]

__getattr__, __dir__ = lazy_exports(__name__)
