"""Language models: losses, advantages, log-probabilities and token containers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.llm.__about__ import __version__
    from rl.llm._base import TokenLoss
    from rl.llm.advantages import MCAdvantage
    from rl.llm.chat import ChatHistory, History, LogProbs, Masks, Text, Tokens
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
    from rl.llm.rollouts import ROLES, Rollout, Segment, Tokenizer, nested, packed, padded
    from rl.llm.supervised_losses import DPOLoss, RewardModelLoss, SFTLoss
    from rl.llm.surrogates import CISPO, GMPO, SAPO, Correction, PPOClip, Reinforce, Surrogate, TVMask
    from rl.llm.templates import ChatTemplate

__all__ = [
    "CISPO",
    "GMPO",
    "ROLES",
    "SAPO",
    "CISPOLoss",
    "ChatHistory",
    "ChatTemplate",
    "Correction",
    "DAPOLoss",
    "DPOLoss",
    "DistillationLoss",
    "DrGRPOLoss",
    "GRPOLoss",
    "GSPOLoss",
    "History",
    "LogProbs",
    "MCAdvantage",
    "Masks",
    "PPOClip",
    "PolicyLoss",
    "RLOOLoss",
    "Reinforce",
    "RewardModelLoss",
    "Rollout",
    "SFTLoss",
    "Segment",
    "Surrogate",
    "TVMask",
    "Text",
    "TokenLoss",
    "TokenScorer",
    "Tokenizer",
    "Tokens",
    "__version__",
    "linear_log_probs",
    "log_probs_of_logits",
    "nested",
    "packed",
    "padded",
    "token_positions",
]

__getattr__, __dir__ = lazy_exports(__name__)
