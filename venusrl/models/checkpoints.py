"""Checkpoints, a look at what they generate, operations, models."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from venusrl.models._base import Answer, Wire


class File(Answer):
    """One file of a checkpoint."""

    name: str
    size: int
    sha256: str


class Checkpoint(Answer):
    """A checkpoint that was read back whole before it became `ready`.

    `score` is that of the evaluation of its step, None where there was none.
    """

    id: str
    job_id: str
    attempt_id: str
    step: int
    state: str
    reason: str
    weights_sha: str
    score: float | None = None
    files: list[File] = Field(default_factory=list)
    created_at: datetime


class GenerateRequest(Wire):
    """Body of POST /v1/checkpoints/{id}/generate: a small prompt, for a look."""

    prompt: Annotated[
        str, Field(min_length=1, max_length=4_000, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")
    ]
    max_tokens: Annotated[int, Field(ge=1, le=512)] = 64
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


class ToolCall(Answer):
    """A tool call that a generated text asks for."""

    id: str = ""
    name: str
    arguments: Any = None


class Generated(Answer):
    """The result of a `generate` operation: the raw text, and what the chat format reads in it."""

    text: str
    content: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)
    finish: str
    prompt_tokens: int
    sampled_tokens: int
    weights_sha: str


class Operation(Answer):
    """An asynchronous verb."""

    id: str
    kind: str
    state: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    created_at: datetime


class BaseModelInfo(Answer):
    """A model of the registry."""

    name: str
    context_tokens: int
    trainable: bool = True
    parameters: int | None = None
    renderer: str | None = None
    """What turns messages into tokens; the platform's own renderers only ever append."""
