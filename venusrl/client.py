"""The synchronous client: one attribute per noun of the API.

    with Client("http://127.0.0.1:8420", api_key="vrl_...") as client:
        client.environments.push("environments/builtin/calc")
        job = client.jobs.create({"name": "calc", "model": {"base": "tiny-calc"}, ...})
        for event in client.jobs.follow(job.id):
            print(event.type, event.body)

Refusals raise `ApiError` (by status: `NotFound`, `Conflict`, `Invalid`, ...) with a closed `code` and
the `request_id`. Connection errors, 429 and 503 are tried again; a POST keeps its idempotency key.
"""

from types import TracebackType
from typing import Any, Final

import httpx

from venusrl._checkpoints import Checkpoints, Operations
from venusrl._environments import Environments, Models
from venusrl._errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    CorruptDownload,
    EnvironmentInvalid,
    Forbidden,
    Invalid,
    JobCancelled,
    JobFailed,
    JobPaused,
    NotFound,
    OperationFailed,
    PackageError,
    RateLimited,
    ServerError,
    SpecUnreadable,
    TooLarge,
    Unauthorized,
    Unavailable,
    VenusError,
    WaitTimeout,
)
from venusrl._jobs import Jobs
from venusrl._rollouts import Groups, Rollouts
from venusrl._spec import SpecSource, parse_spec, read_spec
from venusrl._tenancy import Keys, Organizations, Projects
from venusrl._transport import Patience, Request, Transport
from venusrl._waiting import Waiting

__all__ = [
    "ApiError",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "CorruptDownload",
    "EnvironmentInvalid",
    "Forbidden",
    "Invalid",
    "JobCancelled",
    "JobFailed",
    "JobPaused",
    "NotFound",
    "OperationFailed",
    "PackageError",
    "Patience",
    "RateLimited",
    "ServerError",
    "SpecSource",
    "SpecUnreadable",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "VenusError",
    "WaitTimeout",
    "Waiting",
    "parse_spec",
    "read_spec",
]

TIMEOUT_S: Final = 30.0
"""Of one answer; the slowest ordinary one is an upload."""


class Client:
    """One key's view of the platform. Address and key come from VENUS_API_URL and VENUS_API_KEY if not given.

    Safe to share between threads. `transport`, `patience` and `waiting` are for tests.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
        patience: Patience | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._transport = Transport(
            base_url,
            api_key,
            timeout_s=timeout_s,
            patience=patience or Patience(),
            transport=transport,
        )
        poll = waiting or Waiting()
        self.organizations = Organizations(self._transport)
        self.projects = Projects(self._transport)
        self.keys = Keys(self._transport)
        self.environments = Environments(self._transport, poll)
        self.models = Models(self._transport)
        self.jobs = Jobs(self._transport, poll)
        self.groups = Groups(self._transport)
        self.rollouts = Rollouts(self._transport)
        self.operations = Operations(self._transport, poll)
        self.checkpoints = Checkpoints(self._transport, self.operations)

    @property
    def base_url(self) -> str:
        """Address of the API."""
        return self._transport.base_url

    def status(self) -> dict[str, Any]:
        """Whether a scheduler leads, hosts by kind, jobs by state."""
        answer = self._transport.send(Request("GET", "/v1/status")).json()
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
