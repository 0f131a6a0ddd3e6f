"""Shared wire records: pages, problems, findings."""

from typing import Annotated, Generic, TypeVar

from pydantic import Field

from venusrl.models._base import Answer

T = TypeVar("T")

Id = Annotated[str, Field(max_length=100, pattern=r"^[a-z]{1,10}_[0-9a-z_]{1,80}$")]
"""Id of an object in a request."""


class Page(Answer, Generic[T]):
    """One page of a list; `next` goes into `after` of the next request."""

    data: list[T]
    has_more: bool
    next: str | None = None


class Finding(Answer):
    """One thing wrong, or worth knowing: JSON pointer, closed code, message, hint, severity."""

    pointer: str
    code: str
    message: str
    hint: str = ""
    severity: str = "error"


class ProblemDocument(Answer):
    """RFC 9457 problem."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str = ""
    instance: str = ""
    code: str
    errors: list[Finding] = Field(default_factory=list)
    request_id: str = ""
