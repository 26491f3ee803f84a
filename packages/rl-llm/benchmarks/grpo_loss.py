"""GRPO loss, forward and backward, of 8 x 512 tokens, vocabulary 32,000: against plain torch, and TRL if installed.

The policy is an embedding and an output layer, so that the loss is what costs. Each side computes log-probabilities,
the clipped loss and the entropy from the same weights; TRL's are the methods of its trainer with its fused output
layer. CPU time, interleaved in one process; the largest memory is that of a process of its own.
"""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl.llm import GRPOLoss, TokenScorer

ROWS, STEPS, WIDTH, VOCABULARY = 8, 512, 256, 32000


class Policy(nn.Module):
    """Embedding and output layer, with what TRL's fused output layer reads of a model of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.head.weight, std=1e-3)
        self.config: Any = SimpleNamespace(get_text_config=lambda: SimpleNamespace(model_type="plain"))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        del attention_mask
        return self.head(self.embed(input_ids))

    def base_model(self, input_ids: Tensor, **_: object) -> Any:
        return SimpleNamespace(last_hidden_state=self.embed(input_ids))

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def inputs() -> tuple[Policy, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    policy, tokens = Policy(), torch.randint(VOCABULARY, (ROWS, STEPS))
    sampled = torch.full((ROWS, STEPS - 1), -math.log(VOCABULARY))
    return policy, tokens, sampled, torch.randn(ROWS)


def ours(policy: Policy, tokens: Tensor, sampled: Tensor, advantage: Tensor) -> Callable[[], Tensor]:
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, 0] = False
    batch = TensorDict(
        {
            "tokens": {"full": tokens},
            "masks": {"all_attention_mask": torch.ones_like(mask), "all_assistant_mask": mask},
            "log_probs": {"full": nn.functional.pad(sampled, (1, 0))},
            "advantage": advantage.unsqueeze(-1),
        },
        batch_size=[ROWS],
    )
    loss = GRPOLoss(TokenScorer(policy.embed, policy.head), kl_to_ref_coeff=None)
    return lambda: loss(batch)["loss_objective"]


def plain(policy: Policy, tokens: Tensor, sampled: Tensor, advantage: Tensor) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        log_p = policy(tokens)[:, :-1].log_softmax(-1)
        with torch.no_grad():
            (log_p.exp() * log_p).sum(-1).mean()  # the entropy, for the log
        ratio = (log_p.gather(-1, tokens[:, 1:, None]).squeeze(-1) - sampled).exp()
        a = advantage.unsqueeze(-1)
        return -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean(-1).mean()

    return loss


def trl(policy: Policy, tokens: Tensor, sampled: Tensor, advantage: Tensor) -> Callable[[], Tensor]:
    from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]
    from trl.trainer.utils import add_fused_lm_head  # pyright: ignore[reportMissingImports]

    class Accelerator:
        num_processes, sync_gradients, device = 1, False, torch.device("cpu")
        autocast = staticmethod(torch.enable_grad)
        gather = gather_for_metrics = reduce = staticmethod(lambda value, *_, **__: value)

    add_fused_lm_head(policy, outputs=("log_probs", "entropy"))
    args = SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1)
    trainer = SimpleNamespace(
        accelerator=Accelerator(),
        args=args,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="grpo",
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    trainer._get_per_token_logps_and_entropies = MethodType(  # noqa: SLF001
        GRPOTrainer._get_per_token_logps_and_entropies.__wrapped__,  # noqa: SLF001 - without its profiler
        trainer,
    )
    batch = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.int64),
        "completion_ids": tokens[:, 1:],
        "completion_mask": torch.ones(ROWS, STEPS - 1, dtype=torch.int64),
        "old_per_token_logps": sampled,
        "advantages": advantage,
    }
    return lambda: GRPOTrainer._compute_loss(trainer, policy, batch)  # noqa: SLF001


SIDES = {"rl.llm": ours, "torch": plain, **({"TRL": trl} if find_spec("trl") else {})}


def run(policy: Policy, loss: Callable[[], Tensor]) -> Tensor:
    policy.zero_grad()
    value = loss()
    value.backward()
    return value.detach()


def memory(name: str) -> float:
    """Largest resident memory of a process that does it once, above that of one that only builds it, MiB."""
    found = []
    for what in (f"{name}:none", name):
        out = subprocess.run([sys.executable, __file__, what], check=True, capture_output=True, text=True)
        found.append(float(out.stdout.split()[-1]))
    return found[1] - found[0]


def main() -> None:
    peaks = {name: memory(name) for name in SIDES}
    policy, *rest = inputs()
    losses = {name: make(policy, *rest) for name, make in SIDES.items()}
    values = {name: float(run(policy, loss)) for name, loss in losses.items()}
    assert max(values.values()) - min(values.values()) < 1e-4, values
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(3):
        for name, loss in losses.items():
            start = time.process_time()
            run(policy, loss)
            times[name].append(time.process_time() - start)
    print(f"{ROWS} x {STEPS} tokens, width {WIDTH}, vocabulary {VOCABULARY}, {torch.get_num_threads()} threads")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name in SIDES:
        ratios = f"rl.llm / {name}: time {medians['rl.llm'] / medians[name]:.2f}, memory"
        ratios += f" {peaks['rl.llm'] / peaks[name]:.2f}"
        print(f"{name:8} {medians[name] * 1e3:7.0f} ms {peaks[name]:7.0f} MiB   {ratios}")
    if "TRL" not in SIDES:
        print("TRL is not installed: that side was left out")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        side, _, nothing = sys.argv[1].partition(":")
        the_policy, *others = inputs()
        the_loss = SIDES[side](the_policy, *others)
        if not nothing:
            run(the_policy, the_loss)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    else:
        main()
