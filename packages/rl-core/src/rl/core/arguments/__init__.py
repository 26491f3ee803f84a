"""Checks of arguments, and arguments of TorchRL that are replaced or needless."""

from rl.core.arguments._checks import as_integer, same_shape
from rl.core.arguments._foreign import Needless, check_arguments, foreign_arguments, module_arguments

__all__ = ["Needless", "as_integer", "check_arguments", "foreign_arguments", "module_arguments", "same_shape"]
