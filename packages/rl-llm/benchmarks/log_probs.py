"""Log-probability and entropy of tokens in chunks against `log_softmax`, forward and backward: time and largest memory.

`linear_log_probs` computes logits chunk by chunk; the other side computes all of them. Both in float32, interleaved.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

import torch

from rl.llm import linear_log_probs

POSITIONS, WIDTH, VOCABULARY = 1024, 128, 65536


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(1, POSITIONS, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH).mul_(WIDTH**-0.5).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (1, POSITIONS))


def chunked(hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    log_prob, entropy = linear_log_probs(hidden, weight, tokens)
    return log_prob.sum() + 0.01 * entropy.sum()


def whole(hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    log_p = (hidden @ weight.T).log_softmax(-1)
    log_prob = log_p.gather(-1, tokens.unsqueeze(-1))
    return log_prob.sum() - 0.01 * (log_p.exp() * log_p).sum()


SIDES = {"chunked": chunked, "log_softmax": whole}


def memory(name: str) -> float:
    """Largest resident memory of a process that does it once, above that of one that does not, MiB."""
    peaks = []
    for what in ("none", name):
        out = subprocess.run([sys.executable, __file__, what], check=True, capture_output=True, text=True)
        peaks.append(float(out.stdout))
    return peaks[1] - peaks[0]


def main() -> None:
    peaks = {name: memory(name) for name in SIDES}  # first: a child begins with the largest memory of its parent
    given = inputs()
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(5):
        for name, side in SIDES.items():
            start = time.perf_counter()
            torch.autograd.grad(side(*given), given[:2])
            times[name].append(time.perf_counter() - start)
    print(f"{POSITIONS} positions, width {WIDTH}, vocabulary {VOCABULARY}, {torch.get_num_threads()} threads")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name in SIDES:
        print(f"{name:12} {medians[name] * 1e3:8.0f} ms {peaks[name]:8.0f} MiB")
    time_ratio, memory_ratio = (figure["chunked"] / figure["log_softmax"] for figure in (medians, peaks))
    print(f"{'ratio':12} {time_ratio:8.2f} {memory_ratio:11.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        tensors = inputs()
        if sys.argv[1] in SIDES:
            torch.autograd.grad(SIDES[sys.argv[1]](*tensors), tensors[:2])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    else:
        main()
