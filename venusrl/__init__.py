"""VenusRL for users: the clients, their exceptions, and the environment author's kit in `venusrl.env`.

Names load at first use, so that `venusrl.env` works with the standard library alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from venusrl.client import (
        ApiError,
        AsyncClient,
        Client,
        JobCancelled,
        JobFailed,
        VenusError,
        WaitTimeout,
    )

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "JobCancelled",
    "JobFailed",
    "VenusError",
    "WaitTimeout",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("venusrl.client"), name)
    raise AttributeError(f"module 'venusrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
