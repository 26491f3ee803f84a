"""Q-learning as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_number, one_of, same_shape
from rl.core.errors import ArgumentError, ShapeError
from rl.objectives._batch import expand_right, mean_of


def greedy_value(action_value: Tensor, selector: Tensor | None = None) -> Tensor:
    """Compute the value of the greedy action: that of the next state in the target of Q-learning.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, algorithm 1; with `selector` double
    Q-learning, van Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016, eq. 4.

    Args:
        action_value: Value of each action, ``[*B, n]``, units of return.
        selector: Values that select the action, same shape; `action_value` if None.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> import torch
        >>> value, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 4.0]])
        >>> greedy_value(value), greedy_value(value, other)
        (tensor([[2.]]), tensor([[1.]]))
    """
    if selector is None:
        return action_value.amax(-1, keepdim=True)
    same_shape(action_value=action_value, selector=selector)
    return action_value.gather(-1, selector.argmax(-1, keepdim=True))


_DISTANCES: dict[str, Callable[..., Tensor]] = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}
_REDUCTIONS = ("mean", "sum", "none")


def check_distance(kind: str, owner: str) -> str:
    """Return the name of a distance, after its check.

    Raises:
        ArgumentError: If it is not one.
    """
    return one_of(kind, owner, "loss_function", _DISTANCES)


def check_reduction(reduction: str | None, owner: str) -> str:
    """Return the name of a reduction, after its check; ``"mean"`` for None.

    Raises:
        ArgumentError: If it is not one.
    """
    return one_of("mean" if reduction is None else reduction, owner, "reduction", _REDUCTIONS)


def distance(prediction: Tensor, target: Tensor, kind: str) -> Tensor:
    """Compute the distance per element.

    Args:
        prediction: Prediction, any shape.
        target: Target, same shape.
        kind: Name of the distance, ``"l2"`` (squared error), ``"l1"`` (absolute error) or ``"smooth_l1"`` (half the
            squared error up to 1, linear beyond; Girshick, "Fast R-CNN", 2015, eq. 3).

    Raises:
        ShapeError: If the shapes differ.
        ArgumentError: If the target has no floating-point type.

    Example:
        >>> import torch
        >>> distance(torch.tensor([3.0]), torch.tensor([1.0]), "l2")
        tensor([4.])
    """
    if prediction.shape != target.shape:
        raise ShapeError(
            f"prediction has shape {tuple(prediction.shape)} and target {tuple(target.shape)}: they would broadcast;"
            " values and targets both are [*B, 1]"
        )
    if not target.is_floating_point():
        raise ArgumentError(
            f"the target of a loss is {target.dtype}, expected a floating-point dtype: pass target.float()"
        )
    return _DISTANCES[kind](prediction, target, reduction="none")


def reduce(elements: Tensor, reduction: str, mask: Tensor | None = None) -> Tensor:
    """Reduce elements to their mean or sum, or keep them; padding is masked out.

    Args:
        elements: Elements, ``[*B, ...]``.
        reduction: Reduction, ``"mean"``, ``"sum"`` or ``"none"``, which has 0 at padding.
        mask: Bool ``[*B]``, true at valid steps; all are if None.

    Example:
        >>> import torch
        >>> reduce(torch.tensor([1.0, 3.0]), "mean")
        tensor(2.)
    """
    if reduction == "mean":
        return mean_of(elements, mask)
    if mask is not None:
        elements = elements.where(expand_right(mask, elements), 0)
    return elements.sum() if reduction == "sum" else elements


def check_support(support: Tensor, owner: str) -> Tensor:
    """Raise unless the atoms ascend in equal steps; return them.

    Args:
        support: Atoms, ``[n]``, units of return.
        owner: Name of the caller in messages.

    Raises:
        ArgumentError: If there are fewer than two, they do not ascend in equal steps, or are no floating-point numbers.
    """
    if support.ndim == 1 and support.numel() > 1 and support.is_floating_point():
        steps = support.diff()
        if bool((steps > 0).all()) and torch.allclose(steps, steps.mean().expand_as(steps), rtol=1e-3):
            return support
    raise ArgumentError(
        f"{owner} got a support of shape {tuple(support.shape)} and dtype {support.dtype}; expected at least two"
        " floating-point atoms in ascending, equal steps, such as torch.linspace(-10, 10, 51)"
    )


def project_distribution(probability: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    """Project a distribution onto fixed atoms: each probability is split between the two nearest ones.

    Bellemare et al., "A distributional perspective on reinforcement learning", 2017, eq. 7 and algorithm 1. Atoms
    beyond the support count as its ends.

    Args:
        probability: Probability of each atom, ``[*B, m]``.
        atoms: Atoms of the probabilities, same shape, units of return: ``r + gamma * support``.
        support: Fixed atoms in ascending, equal steps, ``[n]``.

    Returns:
        Probability of each fixed atom, ``[*B, n]``; sum and, without clipping, mean are those of the input.

    Raises:
        ShapeError: If shapes differ.

    Example:
        >>> support = torch.tensor([0.0, 1.0, 2.0])
        >>> project_distribution(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 9.0]]), support)
        tensor([[0.3750, 0.1250, 0.5000]])
    """
    same_shape(probability=probability, atoms=atoms)
    last = support.numel() - 1
    position = (atoms.clamp(support[0], support[-1]) - support[0]) * (last / (support[-1] - support[0]))
    below = position.floor()
    index = below.long().clamp(0, last)  # NaN has an index too, and stays in the weights
    above = position - below
    found = probability.new_zeros(*probability.shape[:-1], last + 1)
    found = found.scatter_add(-1, index, probability * (1 - above))
    return found.scatter_add(-1, (index + 1).clamp_max(last), probability * above)


def categorical_divergence(log_prob: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross-entropy of predicted and target distribution, and their Kullback-Leibler divergence.

    Bellemare et al., "A distributional perspective on reinforcement learning", 2017, algorithm 1, minimizes the
    cross-entropy; Hessel et al., "Rainbow: combining improvements in deep reinforcement learning", 2018, takes the
    divergence as priority. They differ by the entropy of the target, which has no gradient.

    Args:
        log_prob: Predicted log-probability of each atom, ``[*B, n]``, nats.
        target: Probability of each atom, same shape; not differentiated.

    Returns:
        Cross-entropy and divergence KL(target || predicted), both ``[*B]``, nats; the divergence is detached.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> log_prob = torch.tensor([[0.25, 0.75]]).log()
        >>> categorical_divergence(log_prob, torch.tensor([[0.0, 1.0]]))
        (tensor([0.2877]), tensor([0.2877]))
    """
    same_shape(log_prob=log_prob, target=target)
    target = target.detach()
    cross = -(target * log_prob).sum(-1)
    divergence = cross.detach() + torch.special.xlogy(target, target).sum(-1)
    return cross, divergence.clamp_min(0)  # rounding makes it negative near 0


def quantile_huber(prediction: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Compute the quantile Huber loss: the sum over predicted quantiles of the mean over targets.

    Dabney et al., "Distributional reinforcement learning with quantile regression", 2018, eq. 9 and 10; with `kappa` 0
    the quantile regression loss, eq. 8.

    Args:
        prediction: Quantiles at the midpoints ``(i + 0.5) / n``, ``[*B, n]``, units of return.
        target: Samples or quantiles of the target distribution, ``[*B, m]``; not differentiated.
        kappa: Error up to which the loss is quadratic, at least 0, units of return.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: If the batches differ.
        ArgumentError: If `kappa` is below 0.

    Example:
        >>> quantile_huber(torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0]]))
        tensor([1.5000])
    """
    as_number(kappa, "quantile_huber", "kappa", least=0)
    if prediction.shape[:-1] != target.shape[:-1]:
        raise ShapeError(
            f"prediction has shape {tuple(prediction.shape)} and target {tuple(target.shape)}: they would broadcast;"
            " expected quantiles [*B, n] and [*B, m]"
        )
    error = target.detach().unsqueeze(-2) - prediction.unsqueeze(-1)  # [*B, n, m]
    distance = error.abs() if kappa == 0 else F.huber_loss(error, torch.zeros_like(error), "none", kappa)
    n = prediction.shape[-1]
    level = ((torch.arange(n, device=error.device, dtype=error.dtype) + 0.5) / n).unsqueeze(-1)
    return (torch.where(error < 0, 1 - level, level) * distance).mean(-1).sum(-1)
