"""The one thread that runs torch, so that the event loop of the host stays alive meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

CPU_THREADS: Final = 1
"""Kernels on one thread: sums are then taken in one order, which bitwise repetition rests on, and
processes that share cores do not spin against each other."""


class TorchThread:
    """Runs calls one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "torch", initializer=_prepare)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await the call's result; cancelling the wait does not stop the call."""
        future = self._pool.submit(call, *args, **kwargs)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for the running call, then end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _prepare() -> None:
    torch.set_num_threads(CPU_THREADS)


def pick_device() -> torch.device:
    """The accelerator where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
