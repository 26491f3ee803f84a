"""Reference of the kernels: a loop over time in plain torch, in float64, differentiated by autograd."""

from dataclasses import dataclass, field

import torch

SLOTS = {"lstm": 4, "gru": 3}


@dataclass
class Case:
    """What a recurrence is given, in float64, and what must come out."""

    cell: str
    sums: torch.Tensor  # [B, T, 4H] i, f, g, o; [B, T, 3H] n, r, z: from inputs and biases
    weight: torch.Tensor
    bias_n: torch.Tensor | None
    first: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None
    resets: tuple[torch.Tensor, ...] | None
    grads: tuple[torch.Tensor | None, ...]  # of h, c of each step
    after: tuple[torch.Tensor, ...]  # of h, c, after the last step
    states: tuple[torch.Tensor, ...] = ()
    before: torch.Tensor | None = None  # h before each step
    raw: torch.Tensor | None = None  # slots before the activations, as the backward pass takes them
    activated: torch.Tensor | None = None
    grad_slots: torch.Tensor | None = None
    grad_first: tuple[torch.Tensor, ...] = ()
    grad_resets: tuple[torch.Tensor, ...] = field(default_factory=tuple)


def lstm_step(sums, weight, bias_n, extra, states):
    h, c = states
    raw = sums + h @ weight.T
    i, f, g, o = raw.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return (o * c.tanh(), c), raw, torch.cat((i, f, g, o), -1)


def gru_step(sums, weight, bias_n, extra, states):
    (h,) = states
    n, r, z = sums.chunk(3, -1)
    r_h, z_h, m = (h @ weight.T).chunk(3, -1)
    m = m + extra if bias_n is None else m + extra + bias_n
    raw = torch.cat((n, r + r_h, z + z_h, m), -1)
    r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
    n = (n + r * m).tanh()
    return (n + z * (h - n),), raw, torch.cat((n, r, z, m), -1)


STEP = {"lstm": lstm_step, "gru": gru_step}


def solve(case):
    """Fill in what must come out."""
    batch, time, hidden = case.sums.shape[0], case.sums.shape[1], case.first[0].shape[-1]
    sums, first = case.sums.clone().requires_grad_(), [x.clone().requires_grad_() for x in case.first]
    extra = torch.zeros(batch, time, hidden, dtype=torch.float64, requires_grad=True)
    resets = [x.clone().requires_grad_() for x in case.resets] if case.resets else []
    states, seen, before, raws, actives = tuple(first), [], [], [], []
    for t in range(time):
        if case.mask is not None:
            here = case.mask[:, t, None]
            given = [x[:, t] for x in resets] or [torch.zeros_like(x) for x in states]
            states = tuple(torch.where(here, new, old) for new, old in zip(given, states, strict=True))
        before.append(states[0])
        states, raw, active = STEP[case.cell](sums[:, t], case.weight, case.bias_n, extra[:, t], states)
        seen.append(states)
        raws.append(raw)
        actives.append(active)
    found = [torch.stack(x, 1) for x in zip(*seen, strict=True)]
    loss = sum((x * g).sum() for x, g in zip(found, case.grads, strict=True) if g is not None)
    loss = loss + sum((x * g).sum() for x, g in zip(states, case.after, strict=True))
    leaves = [sums, extra, *first, *resets]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    case.states = tuple(x.detach() for x in found)
    case.before = torch.stack(before, 1).detach()
    case.raw, case.activated = torch.stack(raws, 1).detach(), torch.stack(actives, 1).detach()
    case.grad_slots = grads[0] if case.cell == "lstm" else torch.cat(grads[:2], -1)
    case.grad_first, case.grad_resets = tuple(grads[2 : 2 + len(first)]), tuple(grads[2 + len(first) :])
    return case


def mask_of(kind, batch, time, generator):
    if kind is None:
        return None
    mask = torch.zeros(batch, time, dtype=torch.bool)
    if kind == "random":
        mask = torch.rand(batch, time, generator=generator) < 0.4
    elif kind != "never":
        mask[:, {"first": 0, "last": -1, "every": slice(None)}[kind]] = True
    return mask


def make(
    cell, batch, time, hidden, *, mask="random", resets=True, bias=True, grad_h=True, grad_c=True, like=torch.float64
):
    """A case of random numbers that `like` can hold."""
    rng = torch.Generator().manual_seed(batch + 10 * time + 100 * hidden)

    def draw(*shape, scale=1.0):
        return (scale * torch.randn(shape, generator=rng, dtype=torch.float64)).to(like).double()

    count = 2 if cell == "lstm" else 1
    grads = (draw(batch, time, hidden) if grad_h else None, draw(batch, time, hidden) if grad_c else None)
    return solve(
        Case(
            cell,
            draw(batch, time, SLOTS[cell] * hidden),
            draw(SLOTS[cell] * hidden, hidden, scale=hidden**-0.5),
            draw(hidden) if bias and cell == "gru" else None,
            tuple(draw(batch, hidden) for _ in range(count)),
            mask_of(mask, batch, time, rng),
            tuple(draw(batch, time, hidden) for _ in range(count)) if resets and mask is not None else None,
            grads[:count],
            tuple(draw(batch, hidden) for _ in range(count)),
        )
    )
