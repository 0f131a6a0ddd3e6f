"""A look at a checkpoint: load it as a model folder and sample one answer to a prompt."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from domain.engine import EngineRefused, GenRequest, GenResult, RequestId, Sampling
from domain.errors import PayloadUnreadable
from domain.ids import CheckpointId, GroupId, RolloutId
from infra.codec import convert
from stores.system import checkpoints as store
from stores.system.operations import TakenOperation
from venusrl.env.messages import Message
from venusrl.env.wire import BadRecord, messages_from_json
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.models.folder import ModelFolder, read_folder
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.trainer.checkpoints import WholeCheckpoint, read_whole, unpack_model

MAX_TOKENS_DEFAULT: Final = 64
"""Enough for a look; the gateway bounds what may be asked for."""

ONE_REQUEST: Final = EngineLimits(slots=1)
"""The engine serves this prompt and nothing else."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What the operation's row asks for. Temperature 0 is greedy."""

    checkpoint_id: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = MAX_TOKENS_DEFAULT
    temperature: float = 0.0
    seed: int = 0


async def generate(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Result of one look. Raises ChoreFailed with a closed code."""
    try:
        request = convert(dict(operation.request), GenerateRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    saved = await saved_checkpoint(tools, operation, request.checkpoint_id)
    return await answer(saved, request)


async def saved_checkpoint(
    tools: ChoreTools, operation: TakenOperation, id: str
) -> WholeCheckpoint:
    """A checkpoint of the operation's project. Raises ChoreFailed."""
    async with tools.database.begin() as connection:
        row = await store.of_project(connection, operation.project_id, CheckpointId(id))
    if row is None:
        raise ChoreFailed("not_found", f"there is no checkpoint {id}")
    try:
        return await read_whole(tools.blobs, row.manifest_uri)
    except PayloadUnreadable as error:
        raise ChoreFailed("checkpoint_unreadable", str(error)) from error


async def answer(saved: WholeCheckpoint, request: GenerateRequest) -> Mapping[str, object]:
    """Sample one answer of the checkpoint's model."""
    with tempfile.TemporaryDirectory(prefix="venus-generate-") as folder_name:
        folder = read_folder(unpack_model(saved, Path(folder_name)))
        prompt = folder.chat.prompt(_conversation(request), request.tools)
        engine = EmbeddedEngine(saved.checkpoint_id, folder, ONE_REQUEST, version=saved.step)
        try:
            result = await engine.generate(request_for(folder, prompt, request))
        except EngineRefused as refused:
            raise ChoreFailed(refused.reason.value, refused.detail) from refused
        finally:
            await engine.close()
    return _result(folder, prompt, result)


def _conversation(request: GenerateRequest) -> tuple[Message, ...]:
    if request.messages is None:
        return (Message("user", request.prompt or ""),)
    try:
        return messages_from_json(request.messages)
    except BadRecord as error:
        raise ChoreFailed("bad_request", str(error)) from error


def request_for(
    folder: ModelFolder, prompt: tuple[int, ...], request: GenerateRequest
) -> GenRequest:
    """What the engine is asked. Raises ChoreFailed `context_overflow` where no token fits."""
    room = folder.config.max_position_embeddings - len(prompt)
    if room <= 0:
        limit = folder.config.max_position_embeddings
        detail = f"the prompt has {len(prompt)} tokens, the context {limit}"
        raise ChoreFailed("context_overflow", detail)
    sampling = Sampling(
        max_tokens=min(request.max_tokens, room),
        temperature=request.temperature,
        seed=request.seed,
        stop_token_ids=folder.chat.stop_token_ids,
    )
    return GenRequest(
        request_id=RequestId("look"),
        rollout_id=RolloutId("look"),
        group_id=GroupId("look"),
        tenant="look",
        token_ids=prompt,
        sampling=sampling,
    )


def _result(
    folder: ModelFolder, prompt: tuple[int, ...], result: GenResult
) -> Mapping[str, object]:
    message = folder.chat.parse(result.token_ids, 0).message
    return {
        "text": folder.vocabulary.decode(result.token_ids),
        "content": message.content,
        "tool_calls": [asdict(call) for call in message.tool_calls],
        "finish": result.finish.value,
        "prompt_tokens": len(prompt),
        "sampled_tokens": len(result.token_ids),
        "weights_sha": result.weights_sha,
    }
