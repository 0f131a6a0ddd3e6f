"""Webhooks and their deliveries."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from venusrl.models._base import Answer, Wire

TYPES_MAX = 50
"""Of one webhook: more than there are types of events."""

Url = Annotated[str, Field(min_length=8, max_length=2000, pattern=r"^https?://[\x21-\x7e]+$")]
EventType = Annotated[str, Field(max_length=64, pattern=r"^(\*|[a-z_]+\.(\*|[a-z_]+))$")]
Types = Annotated[list[EventType], Field(min_length=1, max_length=TYPES_MAX)]
Description = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
DeliveryState = Literal["pending", "delivered", "failed"]


class WebhookCreate(Wire):
    """Body of POST /v1/webhooks. A type is whole, `job.state`, or a kind, `job.*`, or `*`."""

    url: Url
    types: Types = Field(default_factory=lambda: ["*"])
    description: Description = ""
    active: bool = True


class WebhookPatch(Wire):
    """Body of PATCH; what is not given stays. Switching it on again forgets its failures."""

    url: Url | None = None
    types: Types | None = None
    description: Description | None = None
    active: bool | None = None


class WebhookRotate(Wire):
    """Body of /rotate: how long the former secret signs beside the new one."""

    grace_s: Annotated[int, Field(ge=0, le=7 * 86_400)] = 0


class Webhook(Answer):
    """Where events of the project are sent; without its secret."""

    id: str
    project_id: str
    url: str
    types: list[str]
    description: str
    active: bool
    generation: int
    """Of the secret; rotating raises it."""
    previous_until: datetime | None = None
    """Until then the former secret signs too."""
    failing_since: datetime | None = None
    """First failure since the last success."""
    disabled_at: datetime | None = None
    """When it was switched off because it failed for too long."""
    created_at: datetime


class WebhookCreated(Webhook):
    """The answer of a creation or a rotation: the only ones with the secret."""

    secret: str
    """Empty in the answer to a repeated request."""


class DeliveryAttempt(Answer):
    """One try. `code` is `ok` or why it failed; `response` the beginning of the receiver's answer."""

    at: datetime
    code: str
    status: int | None = None
    seconds: float
    response: str = ""


class Delivery(Answer):
    """One event on its way to one webhook; `event_id` is the header `webhook-id` of all its tries."""

    id: str
    webhook_id: str
    event_id: str
    type: str
    job_id: str | None = None
    seq: int | None = None
    state: str
    tries: int
    """Since its creation or its last redelivery."""
    next_at: datetime | None = None
    """When it is tried again, while it is pending."""
    delivered_at: datetime | None = None
    attempts: list[DeliveryAttempt]
    """The last tries, oldest first."""
    created_at: datetime


class WebhookMessage(Answer):
    """What a receiver gets as JSON."""

    type: str
    timestamp: datetime
    """When the event happened; the header `webhook-timestamp` is the time of the try."""
    data: dict[str, Any]
    """`job_id`, `seq` and the event's `body`."""
