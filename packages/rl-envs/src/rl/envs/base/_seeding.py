"""From one seed to the next."""

from __future__ import annotations

__all__ = ["next_seed"]

_MASK = (1 << 64) - 1


def next_seed(seed: int) -> int:
    """A seed that has nothing in common with `seed`: the splitmix64 finalizer, cut to 31 bits.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, fig. 14.

    Args:
        seed: any integer.

    Returns:
        An integer in ``[0, 2**31)``.

    Example:
        >>> next_seed(0) == next_seed(0) != next_seed(1)
        True
    """
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 33
