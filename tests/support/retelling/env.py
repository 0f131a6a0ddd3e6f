"""A conversation that is compacted: after a call the model reads one new question, nothing else.

After an answer that is not the last one the user asks again; the third answer ends the episode.
"""

from collections.abc import Iterable, Mapping, Sequence

from venusrl.env import Environment, Json, Message, NewHistory, Rollout, Task, Turn, reward


class Retelling(Environment):
    """Sums, asked again and again."""

    @classmethod
    def load(cls, split: str, config: Mapping[str, Json]) -> Iterable[Task]:
        """Two tasks a split."""
        for number in range(2):
            yield Task(f"{split}-{number}", (Message("user", "1+1"),), "2")

    async def reply(self, turn: Turn) -> Sequence[Message] | None:
        """Compact after a call, ask again after an answer, end after the third turn."""
        if turn.index == 2:
            return None
        if turn.message.tool_calls:
            return NewHistory([Message("user", "2")])
        return [Message("user", "3")]

    @reward
    async def right(self, rollout: Rollout) -> float:
        """1 for the answer, 0 for another, so that a group has a signal."""
        return float(rollout.answer_text == rollout.task.answer)
