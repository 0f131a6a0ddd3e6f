"""Secrets: written once, never read back."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from venusrl.models._base import Answer, Wire

VALUE_CHARS_MIN: Final = 8
"""A shorter value could not be struck out of logs without striking ordinary text."""

VALUE_CHARS_MAX: Final = 16_384
"""A key, a certificate chain, a service account's file."""


class SecretPut(Wire):
    """Body of PUT /v1/secrets/{name}."""

    value: Annotated[
        str,
        Field(
            min_length=VALUE_CHARS_MIN,
            max_length=VALUE_CHARS_MAX,
            pattern=r"^[^\x00]*$",
            repr=False,
        ),
    ]


class Secret(Answer):
    """A secret without its value."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
