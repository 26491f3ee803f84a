"""Several environments as one batch."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.batched._async_pool import AsyncEnvPool, ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
    from rl.envs.batched._parallel import ParallelEnv
    from rl.envs.batched._serial import EnvCreator, SerialEnv

__all__ = ["AsyncEnvPool", "EnvCreator", "ParallelEnv", "ProcessorAsyncEnvPool", "SerialEnv", "ThreadingAsyncEnvPool"]

__getattr__, __dir__ = lazy_exports(__name__)
