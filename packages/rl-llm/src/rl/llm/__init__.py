"""Language models: losses, advantages, log-probabilities and token containers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.llm.__about__ import __version__
    from rl.llm._base import TokenLoss
    from rl.llm.adapters import SGLangWrapper, vLLMWrapper
    from rl.llm.advantages import MCAdvantage
    from rl.llm.chat import ChatHistory, History, LogProbs, Masks, Text, Tokens
    from rl.llm.collectors import AsyncLLMCollector, Dialogue, Group, LLMCollector, batch_of
    from rl.llm.engines import Completion, Engine, Sampling, ScriptedEngine, TorchEngine
    from rl.llm.environments import (
        ChatEnv,
        CountdownEnv,
        DatasetChatEnv,
        DatasetTask,
        GSM8KEnv,
        IFEvalEnv,
        LLMEnv,
        MATHEnv,
        read_records,
    )
    from rl.llm.log_probs import TokenScorer, linear_log_probs, log_probs_of_logits, token_positions
    from rl.llm.methods import Method
    from rl.llm.models import load_model, save_model
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
    from rl.llm.rewards import CountdownRewardParser, GSM8KRewardParser, IfEvalScorer, MATHRewardParser, RewardParser
    from rl.llm.rollouts import ROLES, Rollout, Segment, Tokenizer, nested, packed, padded
    from rl.llm.settings import DPO, GRPO, SFT, Distillation, ExpertIteration, LLMSettings
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
    from rl.llm.tools import (
        CallParser,
        JSONCallParser,
        MCPTools,
        PythonInterpreter,
        Tool,
        ToolCall,
        ToolRegistry,
        ToolTask,
        XMLBlockParser,
        tool_of,
    )
    from rl.llm.training import LLMResult, evaluate, train_llm
    from rl.llm.transforms import (
        AddThinkingPrompt,
        DataLoadingPrimer,
        IncrementalTokenizer,
        KLRewardTransform,
        RetrieveKL,
        RetrieveLogProb,
        TemplateTransform,
    )
    from rl.llm.weights import EngineReceiver, WeightPush, WeightReceiver, WeightStore
    from rl.llm.wrappers import LLMWrapperBase, RemoteTransformersWrapper, TransformersWrapper

__all__ = [
    "CISPO",
    "DPO",
    "GMPO",
    "GRPO",
    "ROLES",
    "SAPO",
    "SFT",
    "TASKS",
    "AddThinkingPrompt",
    "ArithmeticTask",
    "AsyncLLMCollector",
    "CISPOLoss",
    "CallParser",
    "CausalOutput",
    "CharTokenizer",
    "ChatEnv",
    "ChatHistory",
    "ChatTemplate",
    "Completion",
    "CopyTask",
    "Correction",
    "CountTask",
    "CountdownEnv",
    "CountdownRewardParser",
    "CountdownTask",
    "DAPOLoss",
    "DPOLoss",
    "DataLoadingPrimer",
    "DatasetChatEnv",
    "DatasetTask",
    "Dialogue",
    "Distillation",
    "DistillationLoss",
    "DrGRPOLoss",
    "Engine",
    "EngineReceiver",
    "ExpertIteration",
    "GRPOLoss",
    "GSM8KEnv",
    "GSM8KRewardParser",
    "GSPOLoss",
    "Group",
    "GuessTask",
    "History",
    "IFEvalEnv",
    "IfEvalScorer",
    "IncrementalTokenizer",
    "JSONCallParser",
    "KLRewardTransform",
    "LLMCollector",
    "LLMEnv",
    "LLMResult",
    "LLMSettings",
    "LLMWrapperBase",
    "LogProbs",
    "MATHEnv",
    "MATHRewardParser",
    "MCAdvantage",
    "MCPTools",
    "Masks",
    "Method",
    "PPOClip",
    "PolicyLoss",
    "Problem",
    "PythonInterpreter",
    "RLOOLoss",
    "Reinforce",
    "RemoteTransformersWrapper",
    "Reply",
    "RetrieveKL",
    "RetrieveLogProb",
    "RewardModelLoss",
    "RewardParser",
    "Rollout",
    "SFTLoss",
    "SGLangWrapper",
    "Sampling",
    "ScriptedEngine",
    "Segment",
    "SortTask",
    "Surrogate",
    "TVMask",
    "Task",
    "TemplateTransform",
    "Text",
    "TinyTransformer",
    "TokenLoss",
    "TokenScorer",
    "Tokenizer",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolRegistry",
    "ToolTask",
    "TorchEngine",
    "TransformersWrapper",
    "WeightPush",
    "WeightReceiver",
    "WeightStore",
    "XMLBlockParser",
    "__version__",
    "batch_of",
    "countdown_value",
    "evaluate",
    "linear_log_probs",
    "load_model",
    "log_probs_of_logits",
    "make_task",
    "nested",
    "packed",
    "padded",
    "read_records",
    "save_model",
    "token_positions",
    "tool_of",
    "train_llm",
    "vLLMWrapper",
]

__getattr__, __dir__ = lazy_exports(__name__)
