"""One rollout as numbers: what each of its turns adds to the context, samples and waits for."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Tool(StrEnum):
    """Kinds of tools, closed: what a scheduler may learn gap lengths by."""

    READ = "Read"
    SEARCH = "Search"
    EDIT = "Edit"
    WRITE = "Write"
    PLAN = "TodoWrite"
    BASH_TEST = "bash:test"
    BASH_PYTHON = "bash:python"
    BASH_INSTALL = "bash:install"
    BASH_GIT = "bash:git"
    BASH_SEARCH = "bash:search"
    BASH_EDIT = "bash:edit"
    BASH_OTHER = "bash:other"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation and the tool that follows it."""

    new_tokens: int
    """Tokens before this generation that the turn before did not have: prompt or observation."""
    output_tokens: int
    tool: Tool | None
    """What runs afterwards; None at the end of the trajectory."""
    tool_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The turns of one rollout; the last one runs no tool."""

    turns: tuple[Turn, ...]

    @property
    def output_tokens(self) -> int:
        """Tokens sampled in all turns."""
        return sum(turn.output_tokens for turn in self.turns)

    @property
    def context_tokens(self) -> int:
        """Prompt, observations and outputs: the context at the end, and what the trainer processes."""
        return sum(turn.new_tokens + turn.output_tokens for turn in self.turns)

    @property
    def tool_s(self) -> float:
        """Seconds of tools in all turns."""
        return sum(turn.tool_s for turn in self.turns)

    def with_prompts(self) -> Iterator[tuple[int, Turn]]:
        """Each turn behind the tokens that its generation starts from."""
        context = 0
        for turn in self.turns:
            yield context + turn.new_tokens, turn
            context += turn.new_tokens + turn.output_tokens
