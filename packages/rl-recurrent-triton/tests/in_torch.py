"""Test double of `rl.recurrent_triton._launch`: the same functions as loops over time in plain torch."""

from collections import namedtuple

import torch

Call = namedtuple("Call", "name steps options")
calls = []


def _before(t, start, states, mask, reset):
    before = start if t == 0 else states[:, t - 1]
    if mask is None:
        return before
    fresh = torch.zeros_like(before) if reset is None else reset[:, t].to(before.dtype)
    return torch.where(mask[:, t, None], fresh, before)


def _cut(t, mask, grad):
    return grad if mask is None else grad.masked_fill(mask[:, t, None], 0)


def _check(gates, steps, slots, hidden):
    assert gates.is_contiguous()
    assert gates.shape[1:] == (steps[1] - steps[0], slots * hidden)


def lstm_forward(gates, weight_hh, h0, c0, mask, reset_h, reset_c, h, c, steps, *, keep, precision, launch=None):
    calls.append(Call("lstm_forward", steps, {"keep": keep, "precision": precision}))
    _check(gates, steps, 4, h.shape[-1])
    for n, t in enumerate(range(*steps)):
        before_h, before_c = _before(t, h0, h, mask, reset_h), _before(t, c0, c, mask, reset_c)
        sums = gates[:, n] + before_h.to(gates.dtype) @ weight_hh.t()
        i, f, g, o = sums.chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c[:, t] = f * before_c + i * g
        h[:, t] = o * c[:, t].tanh()
        gates[:, n] = torch.cat((i, f, g, o), -1) if keep else torch.nan


def lstm_backward(
    gates,
    weight_hh,
    c0,
    mask,
    reset_c,
    c,
    grad_h,
    grad_c,
    incoming_h,
    incoming_c,
    grad_gates,
    grad_reset_c,
    steps,
    *,
    activated,
    precision,
    launch=None,
):
    calls.append(Call("lstm_backward", steps, {"activated": activated, "precision": precision}))
    _check(gates, steps, 4, c.shape[-1])
    assert incoming_h.is_contiguous()
    assert incoming_c.is_contiguous()
    dh, carry = incoming_h, incoming_c
    for n, t in reversed(list(enumerate(range(*steps)))):
        i, f, g, o = gates[:, n].to(c.dtype).chunk(4, -1)
        if not activated:
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        before, bent = _before(t, c0, c, mask, reset_c), c[:, t].tanh()
        dh = dh if grad_h is None else dh + grad_h[:, n]
        dc = carry + dh * o * (1 - bent**2)
        dc = dc if grad_c is None else dc + grad_c[:, n]
        parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g**2), dh * bent * o * (1 - o))
        grad_gates[:, n] = torch.cat(parts, -1)
        if grad_reset_c is not None:
            grad_reset_c[:, n] = (dc * f).masked_fill(~mask[:, t, None], 0)
        carry = _cut(t, mask, dc * f)
        dh = _cut(t, mask, grad_gates[:, n] @ weight_hh).to(c.dtype)
    incoming_c.copy_(carry)


def gru_forward(gates, weight_hh, bias_n, h0, mask, reset_h, h, steps, *, keep, precision, launch=None):
    calls.append(Call("gru_forward", steps, {"keep": keep, "precision": precision}))
    hidden = h.shape[-1]
    _check(gates, steps, 4 if keep else 3, hidden)
    for n, t in enumerate(range(*steps)):
        before = _before(t, h0, h, mask, reset_h)
        of_state = before.to(gates.dtype) @ weight_hh.t()
        r, z = (gates[:, n, hidden : 3 * hidden] + of_state[:, : 2 * hidden]).sigmoid().chunk(2, -1)
        m = of_state[:, 2 * hidden :] + (0 if bias_n is None else bias_n)
        new = (gates[:, n, :hidden] + r * m).tanh()
        h[:, t] = (1 - z) * new + z * before
        gates[:, n] = torch.cat((new, r, z, m), -1) if keep else torch.nan


def gru_backward(
    gates,
    weight_hh,
    h0,
    mask,
    reset_h,
    h,
    grad_h,
    incoming,
    grad_gates,
    direct,
    steps,
    *,
    activated,
    precision,
    launch=None,
):
    calls.append(Call("gru_backward", steps, {"activated": activated, "precision": precision}))
    hidden = h.shape[-1]
    _check(gates, steps, 4, hidden)
    assert incoming.is_contiguous()
    dh = incoming.clone()
    for n, t in reversed(list(enumerate(range(*steps)))):
        new, r, z, m = gates[:, n].to(h.dtype).chunk(4, -1)
        if not activated:
            r, z = r.sigmoid(), z.sigmoid()
            new = (new + r * m).tanh()
        before = _before(t, h0, h, mask, reset_h)
        dh = dh if grad_h is None else dh + grad_h[:, n]
        dn = dh * (1 - z) * (1 - new**2)
        grad_gates[:, n] = torch.cat((dn, dn * m * r * (1 - r), dh * (before - new) * z * (1 - z), dn * r), -1)
        if direct is not None:
            direct[:, n] = (dh * z).masked_fill(~mask[:, t, None], 0)
        straight = _cut(t, mask, dh * z)
        dh = _cut(t, mask, grad_gates[:, n, hidden:] @ weight_hh).to(h.dtype) + straight
    incoming.copy_(straight)


def states_before(h0, h, mask, reset_h, out, steps):
    assert out.is_contiguous()
    for n, t in enumerate(range(*steps)):
        out[:, n] = _before(t, h0, h, mask, reset_h)
