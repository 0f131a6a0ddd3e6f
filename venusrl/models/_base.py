"""Base of all wire models: unknown fields are refused, values are frozen."""

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """A record that crosses the REST API."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """A record that a server sends: fields that a newer server adds are ignored by an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)
