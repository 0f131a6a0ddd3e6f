"""Chat formats of model folders: `chat.json` names one and holds its numbers.

Callers import from here: `read_chat`, the `ChatFormat` port and what parsing returns.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from venusrl.env.messages import Role
from workers.models.char_chat import CharFormat, Wrapping
from workers.models.chat_types import (
    CALLS_MAX,
    ChatFormat,
    ParsedAnswer,
    ParseError,
    ParseReason,
    call_id,
)
from workers.models.chatml import ChatMlFormat
from workers.models.reasoning import read_reasoning
from workers.models.vocab import VocabKind, Vocabulary

__all__ = [
    "CALLS_MAX",
    "CharFormat",
    "ChatFormat",
    "ChatMlFormat",
    "ParseError",
    "ParseReason",
    "ParsedAnswer",
    "Wrapping",
    "call_id",
    "read_chat",
]


def read_chat(path: Path, vocabulary: Vocabulary) -> ChatFormat:
    """Read `chat.json` of a model folder."""
    record = json.loads(path.read_text(encoding="utf-8"))
    reasoning = read_reasoning(record.get("reasoning"))
    if record["format"] == "chatml":
        assert vocabulary.kind is VocabKind.BYTE
        return ChatMlFormat(vocabulary, reasoning)
    assert record["format"] == "char", f"unknown chat format {record['format']!r}"
    call = record.get("call")
    roles: tuple[Role, ...] = ("system", "user", "tool")
    return CharFormat(
        vocabulary=vocabulary,
        roles={role: _wrapping(record["roles"][role]) for role in roles},
        answer=_wrapping(record["answer"]),
        call=None if call is None else _wrapping(call),
        call_name="" if call is None else str(call["name"]),
        call_argument="" if call is None else str(call["argument"]),
        reasoning=reasoning,
    )


def _wrapping(record: Mapping[str, str]) -> Wrapping:
    return Wrapping(record["prefix"], record["suffix"])
