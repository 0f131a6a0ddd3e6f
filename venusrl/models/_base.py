"""Base of all wire models: values are frozen; requests are strict and hold no unknown fields."""

from typing import Final

from pydantic import BaseModel, ConfigDict

UNSEEN: Final = r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
"""Controls, and characters that turn or hide text: a name with one shows as another name."""

TEXT: Final = rf"^[^{UNSEEN}]*$"
NAME: Final = rf"^[^{UNSEEN}]*[^\s{UNSEEN}][^{UNSEEN}]*$"
"""Not blank, and nothing unseen in it."""


class Wire(BaseModel):
    """A record that a client sends. A number is a number: neither `true` nor `"8"` is one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Answer(BaseModel):
    """A record that a server sends: fields that a newer server adds are ignored by an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)
