"""A border by replay: what the policy said is said again, what the environment answers is compared.

    setup | said 0 -> answered 0 = recorded 0 ? | said 1 -> answered 1 = recorded 1 ? | ... | border

The instance has the recorded try's seed, its sandbox the same seed and host name. Ids are taken from
the record, never sampled or tokenised anew, so that the prefix is the recorded one token by token.
The first difference ends the branch as `replay_diverged`: what came of it would be no continuation of
that rollout.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from domain.trajectory import Trajectory, TurnSpan
from domain.wire import JournalTurn
from sandboxes.node.calls import CallLog
from sandboxes.ports import Sandbox
from venusrl.env.host.ports import EnvironmentProcess, InstanceKey, Observation
from venusrl.env.messages import Json, Message
from venusrl.env.wire import message_to_json
from workers.chores.handling import ChoreFailed, storable
from workers.rollout.episode import Ending, Episode, Intent
from workers.rollout.token_record import Sampled

Record = dict[str, object]

SHOWN_CHARS: Final = 300
"""Of each side of a difference: enough to see what it is."""


class ReplayDiverged(ChoreFailed):
    """The replay is not what was recorded; the branch is refused."""

    def __init__(self, turn: int, detail: str) -> None:
        super().__init__("replay_diverged", f"turn {turn}: {detail}")


@dataclass(slots=True)
class Live:
    """One continuation while it lives: its instance, its sandbox, its ids."""

    index: int
    key: InstanceKey
    episode: Episode
    sandbox: Sandbox | None = None
    calls: CallLog | None = None
    state: Json = None
    is_at_border: bool = False
    files: Mapping[str, str] | None = None
    """Sums of its sandbox's files at the border by path; None where they cannot be listed."""


async def replay(
    live: Live,
    process: EnvironmentProcess,
    record: Trajectory,
    border: int,
    tool_output: str | None = None,
) -> None:
    """Bring an opened and set-up instance to the border before turn `border`.

    With `tool_output` the model reads this instead of the last tool's answer. Raises ReplayDiverged,
    EnvironmentFault.
    """
    episode = live.episode
    for turn in range(border):
        intent = _say_again(episode, record, turn)
        seen = await process.reply(live.key, turn, intent.parsed.told, "stop")
        if seen.messages is None:
            raise ReplayDiverged(turn, "the environment ended the episode")
        said = records_of(seen.messages)
        _compare(turn, said, record.messages[len(episode.messages) :])
        if tool_output is not None and turn == border - 1:
            said = with_tool_output(said, tool_output)
        ending = observe(live, intent, seen, said, record.turns[turn].tool_s)
        if ending is not None:
            is_ours = tool_output is not None and turn == border - 1
            detail = f"the rollout ends before the border: {ending.end.value}, {ending.cause}"
            raise ChoreFailed("no_room", detail) if is_ours else ReplayDiverged(turn, detail)
    _compare_prefix(live, record, border, is_changed=tool_output is not None)


def records_of(messages: Iterable[Message]) -> list[Record]:
    """Messages as a trajectory holds them."""
    return [dict(message_to_json(one)) for one in messages]


def observe(
    live: Live, intent: Intent, seen: Observation, said: Sequence[Record], tool_s: float
) -> Ending | None:
    """Append an answer of the environment to the ids. Raises BadRecord."""
    sampled = intent.sampled
    live.state = seen.state
    if live.calls is not None:
        live.calls.acknowledge(intent.turn)
    return live.episode.observe(
        JournalTurn(
            turn=intent.turn,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish=sampled.finish,
            replied=True,
            messages=tuple(said),
            done=seen.messages is None,
            tool_s=tool_s,
            is_rewrite=seen.is_rewrite,
        )
    )


def with_tool_output(said: Sequence[Record], text: str) -> list[Record]:
    """The same answer with another content of its one tool message. Raises ChoreFailed."""
    tools = [number for number, one in enumerate(said) if one.get("role") == "tool"]
    if len(tools) != 1:
        detail = f"the answer before the border has {len(tools)} tool messages, not one"
        raise ChoreFailed("no_tool_output", detail)
    changed = [dict(one) for one in said]
    changed[tools[0]]["content"] = text
    return changed


def _say_again(episode: Episode, record: Trajectory, turn: int) -> Intent:
    span = record.turns[turn]
    ending = episode.answer(sampled_of(record, span))
    if ending is not None or episode.intent is None:
        raise ReplayDiverged(turn, "its tokens end the rollout here")
    told, at = episode.messages[-1], len(episode.messages) - 1
    if at >= len(record.messages) or told != record.messages[at]:
        raise ReplayDiverged(turn, "its tokens read as another message than was recorded")
    return episode.intent


def sampled_of(record: Trajectory, span: TurnSpan) -> Sampled:
    """A recorded turn as it was sampled."""
    segment, part = record.segments[span.segment], slice(span.start, span.sampled_end)
    return Sampled(
        token_ids=segment.token_ids[part],
        logprobs=segment.logprobs[part],
        versions=segment.versions[part],
        finish=span.finish,
        generate_s=span.generate_s,
    )


def _compare(turn: int, said: Sequence[Record], recorded: Sequence[Record]) -> None:
    for number, one in enumerate(said):
        if number >= len(recorded) or one != recorded[number]:
            then = recorded[number] if number < len(recorded) else {}
            raise ReplayDiverged(
                turn, f"answered {_shown(one)} where the record says {_shown(then)}"
            )


def _compare_prefix(live: Live, record: Trajectory, border: int, *, is_changed: bool) -> None:
    """The ids before the border are the recorded ones, or no message more was recorded before it."""
    span, episode = record.turns[border], live.episode
    following = record.messages[len(episode.messages) :]
    is_rewritten = len(episode.messages) in record.rewrites
    if not is_rewritten and (not following or following[0].get("role") != "assistant"):
        raise ReplayDiverged(border, "the environment answered less than was recorded")
    if is_changed:
        return
    prefix = record.segments[span.segment].token_ids[: span.start]
    if episode.prompt() != prefix or episode.segment != span.segment:
        raise ReplayDiverged(border, "the prompt has other tokens than the recorded one")


def _shown(message: Record) -> str:
    said = cast("str", message.get("content", ""))
    return repr(storable(said)[:SHOWN_CHARS])
