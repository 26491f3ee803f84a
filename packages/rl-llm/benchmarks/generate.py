"""`TorchEngine` against ``model.generate`` of Hugging Face: the same prompts, sampled to the same length.

Models of about 150,000 and 100 million parameters with random weights. CPU time, interleaved in one process; without
transformers there is nothing to compare.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from importlib.util import find_spec
from typing import Any

import torch

from rl.llm import Sampling, TorchEngine

SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4},
    "100 M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12},
}
VOCABULARY = {"tiny": 64, "100 M": 32000}
TOKENS = {"tiny": 64, "100 M": 24}
ROUNDS = {"tiny": 9, "100 M": 5}


def measure(name: str, rows: int) -> None:
    import transformers  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY[name], eos_token_id=None, bos_token_id=None, **SIZES[name])
    model: Any = transformers.LlamaForCausalLM(config).eval()
    count = TOKENS[name]
    rng = random.Random(0)
    prompts = [[rng.randrange(2, 60) for _ in range(rng.randint(8, 32))] for _ in range(rows)]
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
    engine, sampling = TorchEngine(model, stop_tokens=[]), Sampling(max_tokens=count)

    def theirs() -> Any:
        options = {"attention_mask": mask, "max_new_tokens": count, "do_sample": True, "top_k": 0, "pad_token_id": 0}
        return model.generate(tokens, **options)

    sides = {"TorchEngine": lambda: engine.generate(prompts, sampling), "generate": theirs}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(ROUNDS[name] + 1):
        for side, call in sides.items():
            start = time.process_time()
            call()
            if i:  # the first round warms up
                times[side].append(time.process_time() - start)
    medians = {side: statistics.median(found) for side, found in times.items()}
    size = sum(one.numel() for one in model.parameters())
    shown = ", ".join(f"{side} {value * 1e3:.0f} ms" for side, value in medians.items())
    ratio = medians["TorchEngine"] / medians["generate"]
    print(f"{name} ({size / 1e6:.2f} M), {rows} x {count} tokens: {shown}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    if find_spec("transformers") is None:
        sys.exit("transformers is not installed: nothing to compare")
    for the_name, the_rows in (("tiny", 16), ("tiny", 64), ("100 M", 8)):
        measure(the_name, the_rows)
