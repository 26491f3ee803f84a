"""Forward and backward pass of an RSSM rollout: the scan against a loop by hand, interleaved, on one thread.

python packages/rl-modules/benchmarks/rssm.py [--torchrl]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from rl.core.specs import Bounded
from rl.modules.world_models._rollout import RSSMRollout
from rl.modules.world_models._rssm import RSSMPosterior, RSSMPrior

BATCH, TIME, DETER, STATE, EMBED, ACTION = 16, 64, 512, 30, 1024, 6
PRIOR_OUT = [("next", "prior_mean"), ("next", "prior_std"), "_", ("next", "belief")]
POST_OUT = [("next", "posterior_mean"), ("next", "posterior_std"), ("next", "state")]


class ByHand(nn.Module):
    """The loop that one writes with the layers of torch, in the order of the paper's equations."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(STATE + ACTION, DETER)
        self.cell = nn.GRUCell(DETER, DETER)
        self.prior = nn.Sequential(nn.Linear(DETER, DETER), nn.ELU(), nn.Linear(DETER, 2 * STATE))
        self.post = nn.Sequential(nn.Linear(DETER + EMBED, DETER), nn.ELU(), nn.Linear(DETER, 2 * STATE))

    def forward(self, state: Tensor, belief: Tensor, action: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        """Return the states, beliefs and parameters of all steps."""
        found: list[tuple[Tensor, ...]] = []
        for act, see in zip(action.unbind(1), seen.unbind(1), strict=True):
            hidden = F.elu(self.project(torch.cat((state, act), -1)))
            belief = self.cell(hidden, belief)
            mean, raw = self.prior(belief).chunk(2, -1)
            std = F.softplus(raw) + 0.1
            post_mean, post_raw = self.post(torch.cat((belief, see), -1)).chunk(2, -1)
            post_std = F.softplus(post_raw) + 0.1
            state = post_mean + post_std * torch.randn_like(post_std)
            found.append((mean, std, post_mean, post_std, state, belief))
        return tuple(torch.stack(column, 1) for column in zip(*found, strict=True))


def rollout(kind: type, prior: type, posterior: type, spec: object, **options: bool) -> nn.Module:
    """Build a rollout of one library."""
    one = TensorDictModule(
        prior(spec, DETER, DETER, STATE, action_dim=ACTION), ["state", "belief", "action"], PRIOR_OUT
    )
    two = posterior(DETER, STATE, rnn_hidden_dim=DETER, obs_embed_dim=EMBED)
    return kind(one, TensorDictModule(two, [("next", "belief"), ("next", "encoded_latents")], POST_OUT), **options)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    spec = Bounded(-1, 1, (ACTION,))
    size = (BATCH, TIME)
    after = TensorDict(encoded_latents=torch.randn(*size, EMBED), batch_size=size)
    data = {
        "state": torch.zeros(*size, STATE),
        "belief": torch.zeros(*size, DETER),
        "action": torch.randn(*size, ACTION),
    }
    td = TensorDict({**data, "next": after}, batch_size=size)
    hand = ByHand()

    def by_hand() -> Tensor:
        leaves = td["state"][:, 0], td["belief"][:, 0], td["action"], td["next", "encoded_latents"]
        return sum((part.square().mean() for part in hand(*leaves)), torch.zeros(()))

    def of(module: nn.Module) -> Tensor:
        found = module(td.clone())["next"]
        keys = ("prior_mean", "prior_std", "posterior_mean", "posterior_std", "state", "belief")
        return sum((found[key].square().mean() for key in keys), torch.zeros(()))

    scan, loop = (rollout(RSSMRollout, RSSMPrior, RSSMPosterior, spec, use_scan=flag) for flag in (True, False))
    runs = {
        "loop by hand": (by_hand, hand),
        "scan": (lambda: of(scan), scan),
        "TensorDict loop": (lambda: of(loop), loop),
    }
    if "--torchrl" in sys.argv:
        from torchrl.data import Bounded as TheirBounded  # pyright: ignore[reportMissingImports]
        from torchrl.modules.models import model_based as theirs  # pyright: ignore[reportMissingImports]

        other = rollout(theirs.RSSMRollout, theirs.RSSMPrior, theirs.RSSMPosterior, TheirBounded(-1, 1, (ACTION,)))
        runs["TorchRL"] = (lambda: of(other), other)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(5):
        for name, (run, module) in runs.items():
            module.zero_grad()
            start = time.perf_counter()
            run().backward()
            if turn:
                taken[name].append(time.perf_counter() - start)
    base = statistics.median(taken["loop by hand"])
    for name, times in taken.items():
        middle = statistics.median(times)
        best = 1e3 * min(times)
        print(f"{name:16s} {1e3 * middle:8.1f} ms  {middle / base:.2f} of the loop by hand (best {best:.1f} ms)")


if __name__ == "__main__":
    main()
