"""Small pieces from which the tests of the rollout host are put together."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from domain.ids import AttemptId, GroupId, RolloutId, group_id, rollout_id
from domain.wire import Attached, JournalTurn, Place, Sealed, TakeTurn
from infra.clock import Clock, ManualClock
from infra.pool_frames import InGeneration
from venusrl.env.messages import Message
from venusrl.env.wire import message_to_json
from workers.models.char_chat import CharFormat, Wrapping
from workers.models.vocab import VocabKind, Vocabulary
from workers.rollout.agent_client import AgentLost, AgentRefusal
from workers.rollout.job_spec import RolloutLimits, SamplingSpec
from workers.rollout.meter import HostMeter
from workers.rollout.scripted.engine import ScriptedEngine, ScriptedSizes
from workers.rollout.scripted.script import Script, ScriptedAnswer
from workers.rollout.token_record import Sampled
from workers.rollout.turn_loop import LoopPorts, RolloutPlan, TurnLoop
from workers.rollout.weights import VersionGate

ATTEMPT = AttemptId("att_01test")
GROUP: GroupId = group_id(ATTEMPT, 7)
ROLLOUT: RolloutId = rollout_id(GROUP, 0)

VOCABULARY = Vocabulary(
    VocabKind.CHAR, "0123456789^+=cra; abdefghijk", ("<eos>", "<unk>"), "<eos>", "<unk>"
)
"""The characters of `tiny-calc` and some more; padding is the end token, as F3 wants it."""

CHAT = CharFormat(
    vocabulary=VOCABULARY,
    roles={
        "system": Wrapping("", ""),
        "user": Wrapping("^", "="),
        "tool": Wrapping("r", ";"),
    },
    answer=Wrapping("a", ";"),
    call=Wrapping("c", ";"),
    call_name="calculator",
    call_argument="expression",
)

Record = dict[str, object]


def ids(text: str) -> tuple[int, ...]:
    """Ids of a text."""
    return VOCABULARY.encode(text)


def text(token_ids: Sequence[int]) -> str:
    """Text of ids."""
    return VOCABULARY.decode(token_ids)


def limits(**changed: object) -> RolloutLimits:
    """Wide limits, but for what a test says."""
    values: dict[str, object] = {
        "context_tokens": 96,
        "max_turns": 6,
        "max_tokens_per_turn": 8,
        "max_tokens": None,
        "wall_s": 60.0,
    }
    return RolloutLimits(**(values | changed))  # type: ignore[arg-type]  # a test names its own


def sampled(
    answer: str | Sequence[int], *, version: int = 3, finish: str = "stop", logprob: float = -0.5
) -> Sampled:
    """A sampled turn of one version."""
    token_ids = ids(answer) if isinstance(answer, str) else tuple(answer)
    n = len(token_ids)
    return Sampled(token_ids, (logprob,) * n, (version,) * n, finish)


def record(message: Message) -> Record:
    """A message as it travels."""
    return dict(message_to_json(message))


def user(content: str) -> Record:
    """A user message as it travels."""
    return record(Message("user", content))


def tool(content: str, call: str = "call_0_0") -> Record:
    """A tool's reply as it travels."""
    return record(Message("tool", content, (), call))


def reply(turn: int, *messages: Record, done: bool = False, tool_s: float = 0.25) -> JournalTurn:
    """The environment's answer to a turn; the tokens are of no interest to who reads it."""
    return JournalTurn(turn, (), (), (), "stop", True, messages, done, tool_s)


def place(**changed: object) -> Place:
    """A training placement of the one rollout of these tests."""
    values: dict[str, object] = {
        "rollout_id": ROLLOUT,
        "group_id": GROUP,
        "try_": 1,
        "hop": 1,
        "rank": 0,
        "seed": 11,
        "evaluation": False,
        "pinned_version": -1,
        "node_address": "127.0.0.1:1",
        "node_key": "key",
        "task_json": json.dumps({"id": "task-1", "prompt": "1+1"}),
    }
    return Place(**(values | changed))  # type: ignore[arg-type]  # a test names its own


Answering = Callable[[TakeTurn], JournalTurn | None]


def calculator(turn: TakeTurn) -> JournalTurn:
    """An environment that answers each call with `2` and ends at the first answer without one."""
    calls = turn.assistant.get("tool_calls", ())
    assert isinstance(calls, (list, tuple))
    messages = tuple(tool("2", str(call["id"])) for call in calls)
    return reply(turn.turn, *messages, done=not calls)


@dataclass
class AgentTwin:
    """A node agent in memory: one journal, hops, the environment's reply run once for each turn.

    `answer` gives the reply, or None for one that never comes. Faults are set from outside.
    """

    answer: Answering = calculator
    opening: tuple[Record, ...] = (user("1+1"),)
    hop: int = 0
    turns: list[JournalTurn] = field(default_factory=list)
    replies_run: int = 0
    seals: int = 0
    hints: list[InGeneration] = field(default_factory=list)
    lost: bool = False
    refusal: AgentRefusal | None = None
    sealed: Sealed = field(default_factory=lambda: Sealed(0, {"notes.txt": "x"}, {"calls": 1.0}))

    async def attach(self, rollout_id: RolloutId, try_: int, hop: int) -> Attached:
        """Raise the hop and return the journal."""
        self._check(hop)
        self.hop = hop
        return Attached(0, self.opening, tuple(self.turns))

    async def take_turn(self, turn: TakeTurn) -> JournalTurn:
        """Journal the intent; the same one again gets the recorded reply."""
        self._check(turn.hop)
        if turn.turn < len(self.turns):
            known = self.turns[turn.turn]
            if known.token_ids != turn.token_ids:
                raise AgentRefusal("intent", "other tokens")
            if known.replied:
                return known
        else:
            self.turns.append(self._intent(turn))
        answered = self.answer(turn)
        if answered is None:
            await asyncio.Event().wait()
        assert answered is not None
        self.replies_run += 1
        whole = JournalTurn(
            turn.turn,
            turn.token_ids,
            turn.logprobs,
            turn.versions,
            turn.finish,
            True,
            answered.messages,
            answered.done,
            answered.tool_s,
        )
        self.turns[turn.turn] = whole
        return whole

    def hint(self, frame: InGeneration) -> None:
        """Keep what was said of generation."""
        self.hints.append(frame)

    async def seal(self, rollout_id: RolloutId, try_: int, hop: int) -> Sealed:
        """Count the seal and hand out the artefacts."""
        self._check(hop)
        self.seals += 1
        return self.sealed

    def _check(self, hop: int) -> None:
        if self.lost:
            raise AgentLost("no route")
        if self.refusal is not None:
            raise self.refusal
        if hop < self.hop:
            raise AgentRefusal("hop", f"{self.hop} is newer")

    @staticmethod
    def _intent(turn: TakeTurn) -> JournalTurn:
        return JournalTurn(
            turn.turn,
            turn.token_ids,
            turn.logprobs,
            turn.versions,
            turn.finish,
            False,
            (),
            False,
            0.0,
        )


def scripted(
    *answers: ScriptedAnswer | str,
    clock: Clock,
    version: int = 3,
    slots: int = 4,
    mismatched: frozenset[int] = frozenset(),
) -> ScriptedEngine:
    """An engine that gives every rollout these answers."""
    script = Script(
        default=tuple(ScriptedAnswer(ids(a)) if isinstance(a, str) else a for a in answers),
        mismatched_versions=mismatched,
    )
    sizes = ScriptedSizes(VOCABULARY.size, 96, slots)
    return ScriptedEngine("scripted", sizes, script, clock, version=version, weights_sha="sha3")


@dataclass
class Rig:
    """A turn loop with everything around it in the test's hand."""

    engine: ScriptedEngine
    clock: ManualClock
    agent: AgentTwin = field(default_factory=AgentTwin)
    place: Place = field(default_factory=place)
    limits: RolloutLimits = field(default_factory=limits)
    sent: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The gate belongs to the engine, not to one loop."""
        self.gate = VersionGate(self.engine)

    def loop(self, **changed: object) -> TurnLoop:
        """A fresh loop, for instance that of the next host."""
        ports = LoopPorts(
            self.engine,
            self.gate,
            CHAT,
            self.clock,
            self.sent.append,
            HostMeter(self.clock.monotonic),
        )
        plan = RolloutPlan("org_1", SamplingSpec(), self.limits)
        return TurnLoop(replace(self.place, **changed), plan, self.agent, ports)  # type: ignore[arg-type]
