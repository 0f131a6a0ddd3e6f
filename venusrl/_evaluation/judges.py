"""A judge of a local evaluation: any OpenAI-compatible URL, with the retries of a policy."""

from dataclasses import dataclass

from venusrl._evaluation.policies import ContextFull, Endpoint, PolicyFailed
from venusrl.env.judge import JudgeAnswer, JudgeRequest, JudgeUnavailable
from venusrl.env.messages import Message


@dataclass(frozen=True, slots=True)
class EndpointJudge:
    """Implements `JudgePort`; every name of a judge means this one."""

    endpoint: Endpoint

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """See `JudgePort.ask`."""
        try:
            reply = await self.endpoint.answer([Message("user", request.prompt)], (), 0)
        except PolicyFailed as failed:
            raise JudgeUnavailable(failed.reason, failed.detail) from failed
        except ContextFull as full:
            raise JudgeUnavailable("refused", str(full)) from full
        if reply.is_cut:
            raise JudgeUnavailable("bad_answer", "the judge's answer was cut by its token limit")
        return JudgeAnswer(
            reply.message.content, reply.prompt_tokens or 0, reply.sampled_tokens or 0
        )

    async def close(self) -> None:
        """Close connections."""
        await self.endpoint.close()
