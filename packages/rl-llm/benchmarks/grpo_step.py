"""One step of GRPO against TRL's trainer: the same small Llama, problems, reward, batch and optimizer.

A step samples 4 x 16 answers, scores them and updates the model. CPU time; a step of ours follows each step of TRL,
whose time includes its data loader. TRL runs with its defaults, bfloat16 and checkpointed activations, and without both
as ours does. It needs TRL and transformers.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from rl.llm import (
    ChatTemplate,
    DAPOLoss,
    LLMCollector,
    MCAdvantage,
    Problem,
    Sampling,
    SortTask,
    TokenScorer,
    TorchEngine,
    batch_of,
)

GROUPS, SIZE, STEPS, TOKENS = 4, 16, 20, 5
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TASK = SortTask()


def make() -> tuple[Any, Any]:
    """Return a Llama of about 150,000 parameters, and a tokenizer of digits."""
    import transformers  # pyright: ignore[reportMissingImports]
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # pyright: ignore[reportMissingImports]

    special = ["</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]
    words = {one: i for i, one in enumerate([*special, *"0123456789"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.chat_template = CHATML
    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), eos_token_id=0, bos_token_id=None, **sizes)
    return transformers.LlamaForCausalLM(config), tokenizer


class Ours:
    """What `train_llm` does in an update."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.template = ChatTemplate(tokenizer)
        self.engine = TorchEngine(model, stop_tokens=[0], pad_token=0)
        sampling, sizes = Sampling(TOKENS), {"groups_per_batch": GROUPS, "group_size": SIZE}
        self.collector = LLMCollector(TASK, self.template, self.engine, sampling=sampling, **sizes)
        self.loss, self.advantage = DAPOLoss(TokenScorer(model)), MCAdvantage(SIZE)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        self.model, self.rewards = model, []

    def step(self) -> None:
        batch = self.loss.normalize(self.advantage(batch_of(self.collector.collect())))
        self.optimizer.zero_grad()
        out = self.loss(batch)
        out["loss_objective"].backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.rewards.append(float(batch["next", "reward"].mean()))


def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        text = prompt[-1]["content"]
        problem = Problem(tuple(prompt), "".join(sorted(text)))
        found.append(TASK.reply(problem, [completion[-1]["content"]]).reward)
    return found


def measure(name: str, **options: Any) -> None:
    import datasets  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    import trl  # pyright: ignore[reportMissingImports]

    model, tokenizer = make()
    ours, rng = Ours(deepcopy(model), tokenizer), random.Random(0)
    rows = [{"prompt": list(TASK.sample(rng).messages)} for _ in range(512)]
    times: dict[str, list[float]] = {"rl.llm": [], "TRL": []}

    class Clock(transformers.TrainerCallback):
        start = 0.0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            now = time.process_time()
            times["TRL"].append(now - self.start)
            ours.step()
            self.start = time.process_time()
            times["rl.llm"].append(self.start - now)

    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=GROUPS * SIZE,
            num_generations=SIZE,
            max_completion_length=TOKENS,
            max_steps=STEPS,
            learning_rate=1e-3,
            weight_decay=0.0,
            loss_type="dapo",
            epsilon_high=0.28,
            beta=0.0,
            use_cpu=True,
            report_to="none",
            logging_steps=STEPS,
            save_strategy="no",
            disable_tqdm=True,
            **options,
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.train()
    medians = {side: statistics.median(found[2:]) for side, found in times.items()}  # the first steps warm up
    shown = ", ".join(f"{side} {value * 1e3:.0f} ms" for side, value in medians.items())
    print(f"{name}, {GROUPS} x {SIZE} answers of {TOKENS} tokens: {shown}", end=", ")
    print(f"ratio {medians['rl.llm'] / medians['TRL']:.2f}; {torch.get_num_threads()} threads", flush=True)


if __name__ == "__main__":
    if find_spec("trl") is None:
        sys.exit("TRL is not installed: nothing to compare")
    measure("TRL's defaults")
    measure("single precision, no checkpointing", bf16=False, gradient_checkpointing=False)
