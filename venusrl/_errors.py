"""Everything that the client raises. An API refusal keeps its closed code and its findings.

VenusError
  ApiError                 status, code, detail, errors[], request_id
    Unauthorized 401  Forbidden 403  NotFound 404  Conflict 409, 412  TooLarge 413
    Invalid 422       RateLimited 429               Unavailable 502-504, or no answer at all
  JobFailed, JobPaused     a job that will not reach its end by itself
  SandboxEnded             a sandbox that could not start
  AssetInvalid             EnvironmentInvalid, ModelInvalid, DatasetInvalid: `errors` says why
  OperationFailed, CorruptDownload, PackageError, UploadUnreadable, SpecUnreadable
  UsageError               what the caller gave cannot be asked for; nothing was sent
  WaitTimeout              the caller's own deadline passed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from venusrl.models.checkpoints import Operation
    from venusrl.models.common import Finding
    from venusrl.models.jobs import Job
    from venusrl.models.sandboxes import Sandbox

NO_ANSWER: Final = 0
"""Status of an `Unavailable` for a server that gave no answer at all."""


class VenusError(Exception):
    """Base of all errors of this package."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the server said: RFC 9457 problem, or the little that is known without one."""

    status: int
    code: str
    detail: str
    errors: "tuple[Finding, ...]" = ()
    request_id: str = ""
    retry_after_s: float | None = None


class ApiError(VenusError):
    """The server refused, failed or did not answer."""

    def __init__(self, refusal: Refusal) -> None:
        """Keep the refusal's parts as attributes."""
        self.status = refusal.status
        self.code = refusal.code
        self.detail = refusal.detail
        self.errors = refusal.errors
        self.request_id = refusal.request_id
        self.retry_after_s = refusal.retry_after_s
        super().__init__(self._text())

    def _text(self) -> str:
        head = f"{self.status} {self.code}: {self.detail}" if self.status else self.detail
        named = f" (request {self.request_id})" if self.request_id else ""
        return "\n".join([head + named, *describe(self.errors)])


class Unauthorized(ApiError):
    """401: no key, or one that is unknown, expired or revoked."""


class Forbidden(ApiError):
    """403: the key's role or scope does not allow the verb."""


class NotFound(ApiError):
    """404: there is no such object for this key."""


class Conflict(ApiError):
    """409 or 412: the object's state forbids the request, or it changed meanwhile."""


class TooLarge(ApiError):
    """413: the body is larger than the server takes."""


class Invalid(ApiError):
    """422: the request has errors; `errors` points at each."""


class RateLimited(ApiError):
    """429, still so after every retry."""


class ServerError(ApiError):
    """5xx: the server failed."""


class Unavailable(ServerError):
    """The server could not be reached, or is away, still so after every retry."""


class ConnectionFailed(Unavailable):
    """No answer at all: status 0."""

    def __init__(self, detail: str) -> None:
        """Say what happened on the wire."""
        super().__init__(Refusal(NO_ANSWER, "unreachable", detail))


class UsageError(VenusError, ValueError):
    """What the caller gave cannot be asked for: an empty id, a key or address that no request can hold."""


class JobFailed(VenusError):
    """The job ended as failed; `code`, `component` and `hint` say why."""

    def __init__(self, job: "Job") -> None:
        """Take the cause from the job's failure."""
        failure = job.failure
        self.job = job
        self.code = failure.code if failure else "unknown"
        self.component = failure.component if failure else None
        self.hint = failure.hint if failure else None
        self.retryable = failure.retryable if failure else False
        where = f" in {self.component}" if self.component else ""
        why = f": {self.hint}" if self.hint else ""
        super().__init__(f"{job.id} failed with {self.code}{where}{why}")


class SandboxEnded(VenusError):
    """A sandbox could not start; `sandbox.cause` and `sandbox.detail` say why."""

    def __init__(self, sandbox: "Sandbox") -> None:
        """Take the cause from the sandbox."""
        self.sandbox = sandbox
        super().__init__(f"{sandbox.id} has ended: {sandbox.cause}: {sandbox.detail}")


class JobCancelled(VenusError):
    """The job was cancelled."""

    def __init__(self, job: "Job") -> None:
        """Name the job."""
        self.job = job
        super().__init__(f"{job.id} was cancelled")


class JobPaused(VenusError):
    """The job is paused and goes on only when somebody resumes it; `reason` is the platform's, if any."""

    def __init__(self, job: "Job") -> None:
        """Take the reason from the job."""
        self.job = job
        self.reason = job.queue_reason
        why = f": {self.reason}" if self.reason else ""
        super().__init__(f"{job.id} is paused{why}; resume it to go on")


class AssetInvalid(VenusError):
    """Something uploaded failed its validation; `errors` points at each mistake."""

    def __init__(self, ref: str, errors: "Sequence[Finding]") -> None:
        """Put the findings into the message."""
        self.ref = ref
        self.errors = tuple(errors)
        super().__init__("\n".join([f"{ref} cannot be used", *describe(self.errors)]))


class EnvironmentInvalid(AssetInvalid):
    """An uploaded version failed its validation; `errors` points at each mistake."""


class ModelInvalid(AssetInvalid):
    """An imported model cannot be used; `errors` points at each mistake."""


class DatasetInvalid(AssetInvalid):
    """An uploaded dataset version cannot be used; `errors` points at each mistake."""


class OperationFailed(VenusError):
    """An asynchronous verb failed; `code` is closed."""

    def __init__(self, operation: "Operation") -> None:
        """Take code and detail from the operation's error."""
        error = operation.error or {}
        self.operation = operation
        self.code = str(error.get("code", "unknown"))
        self.detail = str(error.get("detail", ""))
        super().__init__(f"{operation.kind} {operation.id} failed with {self.code}: {self.detail}")


class CorruptDownload(VenusError):
    """A downloaded file is not what its checkpoint says; nothing was left under its name."""


class PackageError(VenusError):
    """The folder or archive cannot be packed or read as an environment package."""


class UploadUnreadable(VenusError):
    """The files to upload are not there, or not what they must be."""


class SpecUnreadable(VenusError):
    """The job spec is not YAML or JSON, or not a mapping."""


class WaitTimeout(VenusError, TimeoutError):
    """The caller's deadline passed before what was waited for."""


def describe(errors: "Sequence[Finding]") -> list[str]:
    """One line a finding: pointer, message, hint."""
    return [
        f"  {one.pointer or '/'}: {one.message}" + (f" ({one.hint})" if one.hint else "")
        for one in errors
    ]


_KINDS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    413: TooLarge,
    422: Invalid,
    429: RateLimited,
    500: ServerError,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(refusal: Refusal) -> ApiError:
    """The typed error of a refusal."""
    return _KINDS.get(refusal.status, ApiError)(refusal)


def api_error(status: int, document: Mapping[str, Any], request_id: str) -> ApiError:
    """The typed error of an answer's status and problem document, which may be empty."""
    from venusrl.models.common import Finding

    listed = document.get("errors")
    errors = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    refusal = Refusal(
        status=status,
        code=str(document.get("code") or "http_error"),
        detail=str(document.get("detail") or document.get("title") or "no problem document"),
        errors=tuple(
            Finding(
                pointer=str(one.get("pointer", "")),
                code=str(one.get("code", "")),
                message=str(one.get("message", "")),
                hint=str(one.get("hint", "")),
                severity=str(one.get("severity", "error")),
            )
            for one in errors
        ),
        request_id=str(document.get("request_id") or request_id),
    )
    return error_of(refusal)
