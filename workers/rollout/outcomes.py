"""How a rollout's task can stop other than by a natural end; each is handled in one place, the host."""

from domain.errors import VenusError
from domain.states import INFRASTRUCTURE_ENDS, End
from workers.rollout.agent_client import AgentLost, AgentRefusal


class TryEnded(VenusError):
    """The try failed for an infrastructure reason; the leader decides about the next one."""

    code = "try_ended"

    def __init__(self, end: End, cause: str) -> None:
        """Only infrastructure ends: all others close the rollout."""
        assert end in INFRASTRUCTURE_ENDS
        super().__init__(f"{end.value}: {cause}")
        self.end = end
        self.cause = cause


class Superseded(VenusError):
    """Another placement of the rollout is newer; this one stops without a word."""

    code = "superseded"


class EngineFault(Exception):
    """The engine cannot go on; the process ends so that its keeper frees the lease."""


def failure_of(error: AgentLost | AgentRefusal) -> TryEnded | Superseded:
    """What a node agent's answer means for the try."""
    if isinstance(error, AgentLost):
        return TryEnded(End.SANDBOX_LOST, "node_agent_lost")
    match error.reason:
        case "hop":
            return Superseded(error.cause)
        case "env_failed":
            return TryEnded(End.ENV_FAILED, error.cause)
        case "sandbox_lost":
            return TryEnded(End.SANDBOX_LOST, error.cause)
        case "intent":
            return TryEnded(End.ENV_FAILED, f"intent: {error.cause}")
        case reason:
            return TryEnded(End.SANDBOX_LOST, f"{reason}: {error.cause}")
