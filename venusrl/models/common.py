"""Shared wire records: pages, problems, findings."""

from typing import Annotated, Final, Generic, TypeVar

from pydantic import AfterValidator, Field

from venusrl.models._base import Answer

T = TypeVar("T")

Id = Annotated[str, Field(max_length=100, pattern=r"^[a-z]{1,10}_[0-9a-z_]{1,80}$")]
"""Id of an object in a request."""

TEMPERATURE_MIN: Final = 1e-4
"""Above 0, the least that engines compute with."""

TOP_P_MIN: Final = 1e-4
"""The least that engines tell from 0."""


def _warm_or_greedy(temperature: float) -> float:
    if 0.0 < temperature < TEMPERATURE_MIN:
        raise ValueError(f"it is 0 (greedy) or at least {TEMPERATURE_MIN}")
    return temperature


Temperature = Annotated[
    float,
    Field(
        ge=0.0,
        le=10.0,
        json_schema_extra={"anyOf": [{"const": 0.0}, {"minimum": TEMPERATURE_MIN}]},
    ),
    AfterValidator(_warm_or_greedy),
]
"""0 is greedy."""

TopP = Annotated[float, Field(ge=TOP_P_MIN, le=1.0)]
"""Nucleus."""


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
