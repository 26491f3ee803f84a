"""Language models: losses, advantages, log-probabilities and token containers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.llm.__about__ import __version__
    from rl.llm._base import TokenLoss
    from rl.llm.advantages import MCAdvantage
    from rl.llm.chat import ChatHistory, History, LogProbs, Masks, Text, Tokens
    from rl.llm.collectors import AsyncLLMCollector, Dialogue, Group, LLMCollector, batch_of
    from rl.llm.engines import Completion, Engine, Sampling, ScriptedEngine, TorchEngine
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
    from rl.llm.tasks import (
        TASKS,
        ArithmeticTask,
        CopyTask,
        CountdownTask,
        CountTask,
        GuessTask,
        Problem,
        Reply,
        SortTask,
        Task,
        countdown_value,
        make_task,
    )
    from rl.llm.templates import ChatTemplate
    from rl.llm.tiny import CausalOutput, CharTokenizer, TinyTransformer

__all__ = [
    "CISPO",
    "GMPO",
    "ROLES",
    "SAPO",
    "TASKS",
    "ArithmeticTask",
    "AsyncLLMCollector",
    "CISPOLoss",
    "CausalOutput",
    "CharTokenizer",
    "ChatHistory",
    "ChatTemplate",
    "Completion",
    "CopyTask",
    "Correction",
    "CountTask",
    "CountdownTask",
    "DAPOLoss",
    "DPOLoss",
    "Dialogue",
    "DistillationLoss",
    "DrGRPOLoss",
    "Engine",
    "GRPOLoss",
    "GSPOLoss",
    "Group",
    "GuessTask",
    "History",
    "LLMCollector",
    "LogProbs",
    "MCAdvantage",
    "Masks",
    "PPOClip",
    "PolicyLoss",
    "Problem",
    "RLOOLoss",
    "Reinforce",
    "Reply",
    "RewardModelLoss",
    "Rollout",
    "SFTLoss",
    "Sampling",
    "ScriptedEngine",
    "Segment",
    "SortTask",
    "Surrogate",
    "TVMask",
    "Task",
    "Text",
    "TinyTransformer",
    "TokenLoss",
    "TokenScorer",
    "Tokenizer",
    "Tokens",
    "TorchEngine",
    "__version__",
    "batch_of",
    "countdown_value",
    "linear_log_probs",
    "log_probs_of_logits",
    "make_task",
    "nested",
    "packed",
    "padded",
    "token_positions",
]

__getattr__, __dir__ = lazy_exports(__name__)
