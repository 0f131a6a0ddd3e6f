"""The clients, one attribute per noun of the API: `Client` blocks, `AsyncClient` is awaited.

    with Client("http://127.0.0.1:8420", api_key="vrl_...") as client:
        client.environments.push("environments/builtin/calc")
        job = client.jobs.create({"name": "calc", "model": {"base": "tiny-calc"}, ...})
        for event in client.jobs.follow(job.id):
            print(event.type, event.body)

    async with AsyncClient() as client:
        async for job in client.jobs.list():
            print(job.name, job.state)

Refusals raise `ApiError` (by status: `NotFound`, `Conflict`, `Invalid`, ...) with a closed `code` and
the `request_id`. Connection errors, 429 and 503 are tried again; a POST keeps its idempotency key.
"""

from types import TracebackType
from typing import Final

import httpx

from venusrl._blocking import (
    Audit,
    Checkpoints,
    Datasets,
    Environments,
    Groups,
    Jobs,
    Keys,
    Models,
    Operations,
    Organizations,
    Plans,
    Projects,
    Rollouts,
    Sandboxes,
    Secrets,
    Usage,
    Webhooks,
)
from venusrl._errors import (
    ApiError,
    AssetInvalid,
    Conflict,
    ConnectionFailed,
    CorruptDownload,
    DatasetInvalid,
    EnvironmentInvalid,
    Forbidden,
    Invalid,
    JobCancelled,
    JobFailed,
    JobPaused,
    ModelInvalid,
    NotFound,
    OperationFailed,
    PackageError,
    RateLimited,
    SandboxEnded,
    ServerError,
    SpecUnreadable,
    TooLarge,
    Unauthorized,
    Unavailable,
    UploadUnreadable,
    UsageError,
    VenusError,
    WaitTimeout,
)
from venusrl._nouns import Nouns
from venusrl._spec import SpecSource, parse_spec, read_spec
from venusrl._surface import Surface, blocking
from venusrl._transport import Dial, Patience, async_transport, blocking_transport
from venusrl._waiting import Waiting

__all__ = [
    "ApiError",
    "AssetInvalid",
    "AsyncClient",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "CorruptDownload",
    "DatasetInvalid",
    "EnvironmentInvalid",
    "Forbidden",
    "Invalid",
    "JobCancelled",
    "JobFailed",
    "JobPaused",
    "ModelInvalid",
    "NotFound",
    "OperationFailed",
    "PackageError",
    "Patience",
    "RateLimited",
    "SandboxEnded",
    "ServerError",
    "SpecSource",
    "SpecUnreadable",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UploadUnreadable",
    "UsageError",
    "VenusError",
    "WaitTimeout",
    "Waiting",
    "parse_spec",
    "read_spec",
]

TIMEOUT_S: Final = 30.0
"""Of one answer; the slowest ordinary one is an upload."""


class Client(Surface[Nouns]):
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
        dial = Dial(base_url, api_key, timeout_s, patience, waiting)
        nouns = Nouns(blocking_transport(dial, transport))
        super().__init__(nouns)
        self.organizations = Organizations(nouns.organizations)
        self.projects = Projects(nouns.projects)
        self.keys = Keys(nouns.keys)
        self.environments = Environments(nouns.environments)
        self.datasets = Datasets(nouns.datasets)
        self.models = Models(nouns.models)
        self.secrets = Secrets(nouns.secrets)
        self.jobs = Jobs(nouns.jobs)
        self.plans = Plans(nouns.plans)
        self.groups = Groups(nouns.groups)
        self.rollouts = Rollouts(nouns.rollouts)
        self.operations = Operations(nouns.operations)
        self.checkpoints = Checkpoints(nouns.checkpoints)
        self.sandboxes = Sandboxes(nouns.sandboxes)
        self.webhooks = Webhooks(nouns.webhooks)
        self.audit = Audit(nouns.audit)
        self.usage = Usage(nouns.usage)

    @property
    def base_url(self) -> str:
        """Address of the API."""
        return self._core.base_url

    status = blocking(Nouns.status)
    close = blocking(Nouns.close)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(Nouns):
    """The same nouns and verbs, awaited; lists and followed events are asynchronous iterators.

    It belongs to the event loop that first uses it. `transport`, `patience` and `waiting` are for tests.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
        patience: Patience | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        dial = Dial(base_url, api_key, timeout_s, patience, waiting)
        super().__init__(async_transport(dial, transport))

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
