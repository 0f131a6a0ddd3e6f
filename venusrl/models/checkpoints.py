"""Checkpoints, a look at what they generate, operations, models."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from venusrl.models._base import Answer, Wire
from venusrl.models.common import Temperature


class File(Answer):
    """One file of a checkpoint."""

    name: str
    size: int
    sha256: str


class Bundle(Answer):
    """One file with weights and model description, for use elsewhere."""

    format: str
    name: str
    size: int
    sha256: str


class Checkpoint(Answer):
    """A checkpoint that was read back whole before it became `ready`.

    `score` is that of the evaluation of its step, None where there was none; `selected` what the job's
    `evaluation.select_best` names of it, by which the job's best checkpoint is chosen.
    """

    id: str
    job_id: str
    attempt_id: str
    step: int
    state: str
    reason: str
    weights_sha: str
    score: float | None = None
    keep: bool = False
    """A kept checkpoint goes only when its user deletes it."""
    ttl_days: int | None = None
    """Days after its creation at which it expires, unless it is kept or something needs it."""
    expires_at: datetime | None = None
    export: Bundle | None = None
    selected: float | None = None
    is_best: bool = False
    """The best of its job that can be had."""
    files: list[File] = Field(default_factory=list)
    created_at: datetime


class CheckpointPatch(Wire):
    """Body of PATCH /v1/checkpoints/{id}; what is missing stays."""

    keep: bool | None = None
    ttl_days: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Null: it does not expire by age."""


class ExportRequest(Wire):
    """Body of POST /v1/checkpoints/{id}/export."""

    format: Literal["safetensors", "peft"] = "safetensors"


class AskedCall(Wire):
    """A tool call of an assistant message; `arguments` is its raw text."""

    id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[str, Field(max_length=20_000)]
    error: Annotated[str, Field(max_length=1_000)] | None = None


class AskedMessage(Wire):
    """One message of the conversation that a checkpoint goes on with."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str, Field(max_length=20_000, pattern=r"^[^\x00]*$")]
    tool_calls: Annotated[list[AskedCall], Field(max_length=64)] = Field(default_factory=list)
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None


class GenerateRequest(Wire):
    """Body of POST /v1/checkpoints/{id}/generate: a small prompt, or a conversation, for a look."""

    prompt: (
        Annotated[
            str, Field(min_length=1, max_length=4_000, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")
        ]
        | None
    ) = None
    messages: Annotated[list[AskedMessage], Field(min_length=1, max_length=64)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=32)] = Field(default_factory=list)
    max_tokens: Annotated[int, Field(ge=1, le=512)] = 64
    temperature: Temperature = 0.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    @model_validator(mode="after")
    def _is_asked_once(self) -> "GenerateRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


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
    drops_reasoning: bool = False
    """Whether the chat template leaves the reasoning of earlier turns out of later prompts."""
