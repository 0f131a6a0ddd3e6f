"""`JudgeClient` as user code gets it: each question travels to the parent, which has the judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from venusrl.env._runner.channel import Channel, ChannelClosed
from venusrl.env.judge import JUDGE_CALLS_MAX, PROMPT_CHARS_MAX, JudgeFailure, JudgeUnavailable
from venusrl.env.messages import Json
from venusrl.env.wire import BadRecord, clean_text, int_field, record_field, text_field


class RemoteJudge:
    """Implements `JudgeClient`; `failure` keeps the first one, for code that swallows it."""

    def __init__(self, channel: Channel, key: Mapping[str, Json]) -> None:
        self._channel = channel
        self._key = dict(key)
        self._asked = 0
        self.calls = 0
        self.tokens = 0
        self.failure: JudgeUnavailable | None = None

    async def ask(self, prompt: str, *, judge: str | None = None) -> str:
        """See `JudgeClient.ask`."""
        try:
            return await self._ask(prompt, judge)
        except JudgeUnavailable as error:
            self.failure = self.failure or error
            raise

    async def _ask(self, prompt: str, judge: str | None) -> str:
        self._asked += 1
        if self._asked > JUDGE_CALLS_MAX:
            raise JudgeUnavailable("exhausted", f"more than {JUDGE_CALLS_MAX} calls")
        question = clean_text(prompt)[:PROMPT_CHARS_MAX]
        frame: dict[str, Json] = {"t": "judge", **self._key, "prompt": question, "judge": judge}
        try:
            answer = await self._channel.request(frame)
            if "error" in answer:
                error = record_field(answer, "error")
                reason = text_field(error, "reason")
                known = reason if reason in get_args(JudgeFailure) else "bad_answer"
                raise JudgeUnavailable(cast(JudgeFailure, known), text_field(error, "detail"))
            said = record_field(answer, "ok")
            self.calls += 1
            self.tokens += int_field(said, "prompt_tokens") + int_field(said, "sampled_tokens")
            return text_field(said, "text")
        except (ChannelClosed, BadRecord) as error:
            raise JudgeUnavailable("unreachable", str(error)) from error
