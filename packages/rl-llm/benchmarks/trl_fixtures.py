# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204, ARG001, ARG002, PLR0124, SLF001
"""Write `tests/trl.json`: losses, gradients, diagnostics and advantages of TRL on fixed inputs.

Run once with TRL installed: ``python trl_fixtures.py``; the tests read the file alone. The methods of TRL's trainers
run as they are, on an object that has only the attributes that they read.
"""

import ast
import inspect
import json
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from trl.trainer import grpo_trainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import entropy_from_logits, nanstd, selective_log_softmax

MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]])
ROWS, WIDTH, VOCABULARY = 4, 5, 6

BASE = {"loss_type": "grpo", "level": "token", "low": 0.2, "high": 0.2, "beta": 0.0, "bias": False, "delta": None}
CASES = {
    "grpo": {},
    "grpo-k3": {"beta": 0.04},
    "grpo-k3-ratio": {"beta": 0.04, "bias": True},
    "grpo-delta": {"delta": 1.3},
    "dapo": {"loss_type": "dapo", "high": 0.28},
    "dapo-entropy": {"loss_type": "dapo", "high": 0.28, "entropy": 0.05},
    "dapo-correction": {"loss_type": "dapo", "correction": True},
    "dapo-off-policy": {"loss_type": "dapo", "threshold": 0.05},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "cispo": {"loss_type": "cispo", "high": 1.2},
    "sapo": {"loss_type": "sapo"},
    "gspo": {"level": "sequence", "low": 3e-2, "high": 4e-2},
}


class Accelerator:
    """One process."""

    num_processes, sync_gradients, device = 1, False, torch.device("cpu")

    def reduce(self, value, reduction="sum"):
        return value

    def gather(self, value):
        return value

    gather_for_metrics = gather


def trainer(logits, tokens, **attributes):
    """What the methods of a trainer read."""

    def score(*args, **kwargs):
        return selective_log_softmax(logits, tokens), entropy_from_logits(logits), None

    return SimpleNamespace(
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=score,
        _total_train_tokens=0,
        _tp_size=1,
        **attributes,
    )


def grpo(inputs, logits, case):
    """One call of `GRPOTrainer._compute_loss`: loss, gradient, diagnostics."""
    case = {**BASE, **case}
    args = SimpleNamespace(
        use_bias_correction_kl=case["bias"],
        delta=case["delta"],
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    self = trainer(
        logits,
        inputs["completion_ids"],
        args=args,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=case.get("threshold"),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        importance_sampling_level=case["level"],
        beta=case["beta"],
        loss_type=case["loss_type"],
        epsilon_low=case["low"],
        epsilon_high=case["high"],
        use_vllm="correction" in case,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        max_completion_length=7,
        _entropy_bonus_enabled="entropy" in case,
        use_adaptive_entropy=False,
        entropy_coef=case.get("entropy", 0.0),
    )
    if "correction" in case:  # token_truncate with a cap of 1.1
        weights = (inputs["old_per_token_logps"] - inputs["sampling_per_token_logps"]).exp().clamp(max=1.1)
        inputs = {**inputs, "importance_sampling_ratio": weights}
    loss = GRPOTrainer._compute_loss(self, self.model, inputs)
    return result(loss, logits, self)


def result(loss, logits, self):
    (gradient,) = torch.autograd.grad(loss, logits)
    metrics = {key: value[0] for key, value in self._metrics["train"].items() if isinstance(value, list)}
    return {"loss": loss.item(), "gradient": gradient.tolist(), "metrics": metrics}


def advantages(rewards, scale, aggregation):
    """The part of `_generate_and_score_completions` from rewards to advantages."""
    source = textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions))
    body = ast.parse(source).body[0].body
    texts = [ast.unparse(node) for node in body]
    first = next(i for i, text in enumerate(texts) if text.startswith("unscorable_mask ="))
    last = next(i for i, text in enumerate(texts) if text.startswith("advantages = torch.nan_to_num"))
    weights = torch.tensor([1.0, 0.5], dtype=torch.float64)
    self = SimpleNamespace(
        multi_objective_aggregation=aggregation, scale_rewards=scale, reward_weights=weights, reward_funcs=[None, None]
    )
    names = {
        "torch": torch,
        "nanstd": nanstd,
        "self": self,
        "device": "cpu",
        "num_generations": 4,
        "rewards_per_func": rewards.clone(),
    }
    exec("\n".join(texts[first : last + 1]), vars(grpo_trainer) | names, names)
    return names["advantages"].tolist()


def dpo(logits, tokens, mask, reference):
    """`DPOTrainer._compute_loss`; rows are chosen responses, then rejected ones."""
    shifted = logits, tokens
    log_probs = selective_log_softmax(*shifted) * mask
    zeros = torch.zeros_like(log_probs)
    outputs = SimpleNamespace(
        log_probs=log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), log_sum_sq_probs=zeros
    )

    class Model:
        training = True

        def __call__(self, **kwargs):
            return outputs

    model = Model()
    self = trainer(
        logits,
        tokens,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        beta=0.1,
        use_weighting=False,
        label_smoothing=0.0,
    )
    self.model = model
    wide = torch.nn.functional.pad(mask, (1, 0))
    chosen, rejected = reference.chunk(2)
    inputs = {
        "input_ids": torch.nn.functional.pad(tokens, (1, 0)),
        "attention_mask": wide,
        "completion_mask": wide,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    loss = DPOTrainer._compute_loss(self, model, inputs, return_outputs=False)
    return result(loss, logits, self)


def reward_model(scores):
    """`RewardTrainer.compute_loss`; rows are chosen responses, then rejected ones."""
    self = trainer(None, None, args=SimpleNamespace(center_rewards_coefficient=0.01))
    inputs = {"attention_mask": torch.ones(1)}

    def model(**kwargs):
        return SimpleNamespace(logits=scores)

    loss = RewardTrainer.compute_loss(self, model, inputs)
    return result(loss, scores, self)


def main():
    torch.manual_seed(0)
    kind = {"dtype": torch.float64}
    logits = (2 * torch.randn(ROWS, WIDTH, VOCABULARY, **kind)).requires_grad_()
    tokens = torch.randint(VOCABULARY, (ROWS, WIDTH))
    log_prob = selective_log_softmax(logits, tokens).detach()
    noise = [0.4 * torch.randn(ROWS, WIDTH, **kind) for _ in range(3)]
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.int64),
        "completion_ids": tokens,
        "completion_mask": MASK,
        "advantages": torch.randn(ROWS, **kind),
        "old_per_token_logps": log_prob + noise[0],
        "ref_per_token_logps": log_prob + noise[1],
        "sampling_per_token_logps": log_prob + noise[0] + 0.5 * noise[2],
        "num_items_in_batch": MASK.sum(),
    }
    found = {name: grpo(inputs, logits, case) for name, case in CASES.items()}
    self = trainer(logits, tokens, epsilon_low=0.2, epsilon_high=0.2)
    old = (inputs["old_per_token_logps"] * MASK).sum(1)
    loss = RLOOTrainer._compute_loss(self, self.model, {**inputs, "old_logps": old})
    found["rloo"] = result(loss, logits, self)
    reference = (inputs["ref_per_token_logps"] * MASK).sum(1)
    found["dpo"] = dpo(logits, tokens, MASK, reference)
    scores = torch.randn(ROWS, 1, **kind).requires_grad_()
    found["reward"] = {**reward_model(scores), "scores": scores.tolist()}
    rewards = torch.randn(12, 2, **kind)
    rewards[4, 0] = rewards[5] = rewards[8, 1] = float("nan")
    choices = [("group", "sum_then_normalize"), ("batch", "sum_then_normalize"), ("none", "sum_then_normalize")]
    choices.append(("group", "normalize_then_sum"))
    content = {
        "trl": trl.__version__,
        "inputs": {key: value.tolist() for key, value in inputs.items()} | {"logits": logits.tolist()},
        "cases": found,
        "rewards": [[None if x != x else x for x in row] for row in rewards.tolist()],
        "advantages": {"/".join(choice): advantages(rewards, *choice) for choice in choices},
    }
    (Path(__file__).parents[1] / "tests" / "trl.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
