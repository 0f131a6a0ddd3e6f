"""Base of all wire models: unknown fields are refused, values are frozen."""

from typing import Final

from pydantic import BaseModel, ConfigDict

UNSEEN: Final = r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
"""Controls, and characters that turn or hide text: a name with one shows as another name."""

TEXT: Final = rf"^[^{UNSEEN}]*$"
NAME: Final = rf"^[^{UNSEEN}]*[^\s{UNSEEN}][^{UNSEEN}]*$"
"""Not blank, and nothing unseen in it."""


class Wire(BaseModel):
    """A record that crosses the REST API."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """A record that a server sends: fields that a newer server adds are ignored by an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)
