"""Elementwise arithmetic of both cells in Triton, shared by all launch shapes.

Everything is computed in the type of the state (float32, or float64 in Triton's interpreter).
"""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

__all__ = ["gru_after", "gru_gradients", "lstm_after", "lstm_gradients", "sigmoid", "tanh"]


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))``; the exponent is never positive, so that nothing overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """From one exponential whose exponent is never positive: the interpreter has no other."""
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -y, y)


@triton.jit
def lstm_after(i, f, g, o, c_before):
    """The states h and c after a step, from the activated gates."""
    c = f * c_before + i * g
    return o * tanh(c), c


@triton.jit
def lstm_gradients(i, f, g, o, c_before, c, dh, dc):
    """The gradients of the four sums before the activations, and that of the c before the step."""
    bounded = tanh(c)
    dc += dh * o * (1.0 - bounded * bounded)
    d_i = dc * g * i * (1.0 - i)
    d_f = dc * c_before * f * (1.0 - f)
    d_g = dc * i * (1.0 - g * g)
    d_o = dh * bounded * o * (1.0 - o)
    return d_i, d_f, d_g, d_o, dc * f


@triton.jit
def gru_after(n, z, h_before):
    """The state after a step, from the activated gates."""
    return n + z * (h_before - n)


@triton.jit
def gru_gradients(n, r, z, m, h_before, dh):
    """The gradients of n, r, z before the activations, of m, and the direct part of that of the state before."""
    d_n = dh * (1.0 - z) * (1.0 - n * n)
    d_r = d_n * m * r * (1.0 - r)
    d_z = dh * (h_before - n) * z * (1.0 - z)
    return d_n, d_r, d_z, d_n * r, dh * z
