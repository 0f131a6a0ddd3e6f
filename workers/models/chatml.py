"""ChatML with Hermes tool calls over a byte vocabulary: the format of today's open chat models.

    <|im_start|>ROLE\\n CONTENT <|im_end|>\\n        one message
    <tool_call>{"name": ..., "arguments": {...}}</tool_call>      a call inside an answer

Marks of roles are single special tokens and cannot be written by content; the tool-call marks are
text, as in the published templates. Nothing that was sampled is rendered again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from venusrl.env.messages import Json, Message, ToolCall
from workers.models.chat_types import CALLS_MAX, ParsedAnswer, ParseError, ParseReason, call_id
from workers.models.reasoning import Reasoning
from workers.models.vocab import VocabKind, Vocabulary

IM_START: Final = "<|im_start|>"
"""Opens a message."""

IM_END: Final = "<|im_end|>"
"""Closes a message; sampled by the model at the end of its answer."""

CALL_OPEN: Final = "<tool_call>"
"""Opens a tool call inside an answer."""

CALL_CLOSE: Final = "</tool_call>"
"""Closes a tool call inside an answer."""


def chatml_vocabulary() -> Vocabulary:
    """256 bytes and the marks; padding is the end mark itself, as many published models have it."""
    return Vocabulary(VocabKind.BYTE, "", (IM_START, IM_END, "<|unk|>"), IM_END, "<|unk|>")


@dataclass(frozen=True, slots=True)
class ChatMlFormat:
    """ChatML rendering and Hermes parsing."""

    vocabulary: Vocabulary
    reasoning: Reasoning | None = None

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The closing mark."""
        return (self.vocabulary.special(IM_END),)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[int, ...]:
        """All messages, tool schemas in a system message before them, then the model's opening."""
        ids: list[int] = []
        if tools:
            schemas = "\n".join(json.dumps(tool, sort_keys=True) for tool in tools)
            ids += self._block("system", f"<tools>\n{schemas}\n</tools>")
        for message in messages:
            ids += self._message(message)
        return (*ids, *self._opening())

    def follow_up(self, sampled: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """Close the answer where the model did not, then the replies and the next opening."""
        closed = bool(sampled) and sampled[-1] in self.stop_token_ids
        ids = [*(() if closed else self.stop_token_ids), *self.vocabulary.encode("\n")]
        for message in messages:
            ids += self._message(message)
        return (*ids, *self._opening())

    def parse(self, sampled: Sequence[int], turn: int) -> ParsedAnswer:
        """Split an answer into content and calls; a bad call keeps its place and its raw text."""
        ended = bool(sampled) and sampled[-1] in self.stop_token_ids
        text = self.vocabulary.decode(sampled[:-1] if ended else sampled)
        thought, text = self.reasoning.split(text) if self.reasoning else ("", text)
        content, _, rest = text.partition(CALL_OPEN)
        if not rest and CALL_OPEN not in text:
            return ParsedAnswer(Message("assistant", text, reasoning=thought))
        calls: list[ToolCall] = []
        errors: list[ParseError] = []
        for ordinal, (body, is_closed) in enumerate(_bodies(rest)):
            name = call_id(turn, ordinal)
            call, error = _read_call(name, body, is_closed, ordinal)
            calls.append(call)
            errors += [error] if error is not None else []
        message = Message("assistant", content.strip(), tuple(calls), reasoning=thought)
        return ParsedAnswer(message, tuple(errors))

    @property
    def drops_reasoning(self) -> bool:
        """Whether earlier reasoning is left out of later prompts."""
        return self.reasoning is not None and self.reasoning.is_dropped

    def without_reasoning(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """Sampled ids of an answer without its reasoning."""
        if self.reasoning is None:
            return tuple(sampled)
        return self.reasoning.without(sampled, self.vocabulary, self.stop_token_ids)

    def _opening(self) -> tuple[int, ...]:
        return (self.vocabulary.special(IM_START), *self.vocabulary.encode("assistant\n"))

    def _message(self, message: Message) -> tuple[int, ...]:
        content = message.content
        if message.role == "tool":
            return self._block("user", f"<tool_response>\n{content}\n</tool_response>")
        for call in message.tool_calls:
            record = f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
            content += f"\n{CALL_OPEN}{record}{CALL_CLOSE}"
        return self._block(message.role, content)

    def _block(self, role: str, content: str) -> tuple[int, ...]:
        vocabulary = self.vocabulary
        return (
            vocabulary.special(IM_START),
            *vocabulary.encode(f"{role}\n{content}"),
            vocabulary.special(IM_END),
            *vocabulary.encode("\n"),
        )


def _bodies(rest: str) -> Iterator[tuple[str, bool]]:
    """Raw text of each call and whether it was closed; reads one more than the limit allows."""
    for piece in rest.split(CALL_OPEN, CALLS_MAX)[: CALLS_MAX + 1]:
        body, mark, _ = piece.partition(CALL_CLOSE)
        yield body.strip(), bool(mark)


def _read_call(
    name: str, body: str, is_closed: bool, ordinal: int
) -> tuple[ToolCall, ParseError | None]:
    raw = ToolCall(name, "", body)
    if ordinal >= CALLS_MAX:
        return raw, ParseError(name, ParseReason.TOO_MANY, f"more than {CALLS_MAX} calls")
    if not is_closed:
        return raw, ParseError(name, ParseReason.UNTERMINATED, f"no {CALL_CLOSE} after the call")
    if not body:
        return raw, ParseError(name, ParseReason.EMPTY, "the call is empty")
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        return raw, ParseError(name, ParseReason.INVALID_JSON, str(error))
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return raw, ParseError(name, ParseReason.NOT_A_CALL, 'expected {"name", "arguments"}')
    arguments = record.get("arguments", {})
    if not isinstance(arguments, dict):
        named = ToolCall(name, record["name"], json.dumps(arguments))
        return named, ParseError(name, ParseReason.NOT_A_CALL, '"arguments" is not an object')
    return ToolCall(name, record["name"], json.dumps(arguments)), None
