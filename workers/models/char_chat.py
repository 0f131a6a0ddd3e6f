"""The chat format of the tiny models: one letter says what an answer is, one character ends it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from venusrl.env.messages import Json, Message, ToolCall
from workers.models.chat_types import ParsedAnswer, ParseError, ParseReason, call_id
from workers.models.reasoning import Reasoning
from workers.models.vocab import Vocabulary


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Text before and after a piece of content."""

    prefix: str
    suffix: str

    def around(self, content: str) -> str:
        """The content as the model reads it."""
        return f"{self.prefix}{content}{self.suffix}"


@dataclass(frozen=True, slots=True)
class CharFormat:
    """Prefixes and suffixes around contents.

    With `call` absent every answer is final. An answer in neither form is a final answer whose
    content is the whole text, which no reward mistakes for a well-formed one.
    """

    vocabulary: Vocabulary
    roles: Mapping[str, Wrapping]
    answer: Wrapping
    call: Wrapping | None
    call_name: str
    call_argument: str
    reasoning: Reasoning | None = None

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The last characters of an answer and of a call."""
        ends = [self.answer] if self.call is None else [self.answer, self.call]
        texts = dict.fromkeys(wrapping.suffix[-1:] for wrapping in ends)
        return tuple(token for text in texts for token in self.vocabulary.encode(text))

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[int, ...]:
        """The messages one after the other; tools are known to the model by training."""
        del tools
        return self.vocabulary.encode("".join(self._render(m) for m in messages))

    def follow_up(self, sampled: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """The replies; an answer without its end character is closed first."""
        stops = self.stop_token_ids
        closing = () if sampled and sampled[-1] in stops else stops[:1]
        return closing + self.prompt(messages)

    def parse(self, sampled: Sequence[int], turn: int) -> ParsedAnswer:
        """Call, answer, or neither, by prefix."""
        text = self.vocabulary.decode(sampled)
        thought, text = self.reasoning.split(text) if self.reasoning else ("", text)
        parsed = self._parse_text(text, turn)
        return replace(parsed, message=replace(parsed.message, reasoning=thought))

    def _parse_text(self, text: str, turn: int) -> ParsedAnswer:
        if self.call is not None and text.startswith(self.call.prefix):
            return self._parse_call(text, self.call, turn)
        ended = text.endswith(self.answer.suffix)
        if text.startswith(self.answer.prefix) and ended:
            content = text.removeprefix(self.answer.prefix).removesuffix(self.answer.suffix)
            return ParsedAnswer(Message("assistant", content))
        return ParsedAnswer(Message("assistant", text))

    @property
    def drops_reasoning(self) -> bool:
        """Whether earlier reasoning is left out of later prompts."""
        return self.reasoning is not None and self.reasoning.is_dropped

    def without_reasoning(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """Sampled ids of an answer without its reasoning."""
        if self.reasoning is None:
            return tuple(sampled)
        return self.reasoning.without(sampled, self.vocabulary, self.stop_token_ids)

    def _parse_call(self, text: str, form: Wrapping, turn: int) -> ParsedAnswer:
        body = text.removeprefix(form.prefix).removesuffix(form.suffix)
        name = call_id(turn, 0)
        call = ToolCall(name, self.call_name, json.dumps({self.call_argument: body}))
        message = Message("assistant", text, (call,))
        if not text.endswith(form.suffix):
            cut = ParseError(name, ParseReason.UNTERMINATED, "the call was cut before its end")
            return ParsedAnswer(message, (cut,))
        if not body:
            return ParsedAnswer(
                message, (ParseError(name, ParseReason.EMPTY, "the call has no argument"),)
            )
        return ParsedAnswer(message)

    def _render(self, message: Message) -> str:
        if message.role == "assistant" and message.tool_calls:
            return message.content
        wrapping = self.answer if message.role == "assistant" else self.roles[message.role]
        return wrapping.around(message.content)
