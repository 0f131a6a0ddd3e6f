"""Hosts that answer the coordinator's commands at once and keep its jobs busy, on a virtual clock.

They model no engine: a turn takes a drawn time whatever runs beside it, because only the mix of events
and the size of the state matter here. Nothing of this module's own time is counted.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from benchmarks.step.shapes import GROUP_SIZE, NODES, Shape
from domain.commands import (
    CloseRollout,
    CloseStep,
    Command,
    EndTry,
    ForkSandboxes,
    GradeGroup,
    GrantGang,
    PlaceRollout,
    ReplaceHost,
    SyncEngine,
    WriteCheckpoint,
)
from domain.events import (
    CheckpointWritten,
    EngineSynced,
    Event,
    GroupGraded,
    HeldRollout,
    HostJoined,
    HostLost,
    JobSubmitted,
    RolloutClosed,
    SandboxReady,
    StepCommitted,
    Tick,
    TrainerReady,
    TryFailed,
    TurnFinished,
    TurnSampled,
)
from domain.ids import (
    AttemptId,
    CheckpointId,
    GroupId,
    HostId,
    RolloutId,
    group_of,
    host_id,
    node_host_id,
)
from domain.policy import PolicyRef
from domain.states import End, HostKind

TURNS_MEAN: Final = 46.0
"""Of a rollout; the base trajectories of the regime `many` have about as many."""

SPREAD: Final = 0.4
"""Sigma of the log-normal stretch of a rollout's turns."""

TURN_S: Final = 8.0
TOOL_S: Final = 4.0
TICK_S: Final = 0.5
FORK_S: Final = 1.0
GRADE_S: Final = 3.0
UPDATE_S: Final = 10.0
SYNC_S: Final = 5.0
HOST_LOSS_S: Final = 2.0
"""Between losses of an engine; every eighth loss is a node's."""

FAILED_TURNS: Final = 0.0002
"""Share of turns that end in a failed try: about one rollout in a hundred."""

PROMPT_TOKENS: Final = 2000
TURN_TOKENS: Final = 700


@dataclass(slots=True)
class Run:
    """A rollout as the outside knows it."""

    rollout_id: RolloutId
    left: int
    try_: int = 1
    hop: int = 0
    turn: int = 0
    tokens: int = 0
    oldest: int = -1
    host: HostId | None = None
    node: HostId | None = None


@dataclass(slots=True)
class Hosts:
    """All hosts of the pool: `next_event` is what happens next, `obey` takes what was decided."""

    shape: Shape
    seed: int = 1
    now: float = 0.0
    is_young: bool = True
    """The first groups are drawn at every stage of their lives, or all would end together."""
    begun: int = 0
    """Placements so far."""
    lives: dict[GroupId, tuple[int, list[int]]] = field(default_factory=dict)
    """Turns that a group has lived, and that those of its members have which have not begun."""
    runs: dict[RolloutId, Run] = field(default_factory=dict)
    versions: dict[HostId, int] = field(default_factory=dict)
    epochs: dict[HostId, int] = field(default_factory=dict)
    placed: dict[HostId, dict[RolloutId, Run]] = field(default_factory=dict)
    kept: dict[HostId, dict[RolloutId, Run]] = field(default_factory=dict)
    policies: dict[AttemptId, PolicyRef] = field(default_factory=dict)
    oldest: dict[GroupId, int] = field(default_factory=dict)
    submitted: int = 0
    losses: int = 0
    _chance: Random = field(init=False)
    _heap: list[tuple[float, int, Callable[..., Event | None], tuple[object, ...]]] = field(
        default_factory=list
    )
    _sequence: int = 0

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)
        for index in range(NODES):
            self._after(0.0, self._join, node_host_id(index), HostKind.NODE, None)
        for _ in range(self.shape.jobs):
            self._after(0.0, self._submit)
        self._after(TICK_S, self._tick)

    def submit_later(self, seconds: float) -> None:
        """One more job than the engines are meant for."""
        self._after(seconds, self._submit)

    def break_later(self) -> None:
        """Begin to lose hosts."""
        self._after(HOST_LOSS_S, self._lose_some)

    def next_event(self) -> Event:
        """The next fact; the clock moves to it."""
        while True:
            self.now, _, act, arguments = heapq.heappop(self._heap)
            event = act(*arguments)
            if event is not None:
                return event

    def obey(self, commands: list[Command]) -> None:
        """Do what was decided; answers follow as events."""
        for command in commands:
            match command:
                case PlaceRollout():
                    self._place(command)
                case ForkSandboxes():
                    for rollout, try_ in command.members:
                        self._after(FORK_S, self._ready, rollout, try_, command.node)
                case GradeGroup():
                    self._after(GRADE_S, self._grade, command.group_id, command.grade_epoch)
                case SyncEngine():
                    delay = SYNC_S * self._chance.uniform(0.8, 1.2)
                    self._after(delay, self._sync, command.host_id, command.policy.version)
                case CloseStep():
                    self._after(UPDATE_S, self._commit, command.attempt_id, command.step)
                case WriteCheckpoint():
                    self._after(UPDATE_S, self._checkpoint, command.attempt_id, command.step)
                case GrantGang():
                    self._start(command)
                case EndTry():
                    self._end_try(command)
                case CloseRollout():
                    self._after(0.1, self._cancel, command.rollout_id, command.end)
                case ReplaceHost():
                    self._after(1.0, self._lose, command.host_id)
                case _:
                    pass

    def _after(self, delay: float, act: Callable[..., Event | None], *arguments: object) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, act, arguments))

    def _tick(self) -> Event:
        self._after(TICK_S, self._tick)
        return Tick()

    def _submit(self) -> Event:
        self.submitted += 1
        return JobSubmitted(self.shape.plan(self.submitted), 1)

    def _start(self, command: GrantGang) -> None:
        attempt = command.attempt_id
        self.policies[attempt] = _policy(attempt, 0)
        trainer = host_id(attempt, "trainer")
        self._after(0.1, self._join, trainer, HostKind.TRAINER, attempt)
        self._after(0.2, self._train, attempt, trainer)
        for index in range(command.engines):
            name = host_id(attempt, f"engine{index}")
            self._after(0.3, self._join, name, HostKind.ENGINE, attempt)

    def _join(self, host: HostId, kind: HostKind, attempt: AttemptId | None) -> Event:
        self.epochs.setdefault(host, 1)
        version = self.versions[host] = 0 if kind is HostKind.ENGINE else -1
        if attempt is not None and kind is HostKind.ENGINE:
            version = self.versions[host] = self.policies[attempt].version
        self.placed[host], self.kept[host] = {}, {}
        return HostJoined(host, self.epochs[host], kind, attempt, 256, (), version, 366_000, True)

    def _train(self, attempt: AttemptId, trainer: HostId) -> Event:
        return TrainerReady(attempt, trainer, self.epochs[trainer], self.policies[attempt])

    def _ready(self, rollout: RolloutId, try_: int, node: HostId) -> Event | None:
        run = self.runs.get(rollout)
        if node not in self.kept:
            return None
        if run is None:
            lived, turns = self._draw_member(group_of(rollout))
            run = Run(rollout, max(turns - lived, 1), turn=min(lived, turns - 1))
            self.runs[rollout] = run
        run.node = node
        self.kept[node][rollout] = run
        return SandboxReady(rollout, try_, node, self.epochs[node])

    def _draw_turns(self) -> int:
        stretch = self._chance.lognormvariate(-(SPREAD**2) / 2, SPREAD)
        return max(round(TURNS_MEAN * stretch), 1)

    def _draw_member(self, group: GroupId) -> tuple[int, int]:
        """Turns that its group has lived, and all that it will have."""
        known = self.lives.get(group)
        if known is None:
            turns = [self._draw_turns() for _ in range(GROUP_SIZE)]
            least = self.shape.lived(int(group.split("_")[1].partition("x")[0]))
            share = self._chance.uniform(least, 1.0) if self.is_young else 0.0
            lived = round(share * max(turns))
            known = self.lives[group] = (lived, turns)
        drawn = known[1].pop()
        if not known[1]:
            del self.lives[group]
        return known[0], drawn

    def _place(self, command: PlaceRollout) -> None:
        run = self.runs[command.rollout_id]
        self.begun += 1
        run.try_, run.hop, run.host = command.try_, command.hop, command.host_id
        self.placed[command.host_id][run.rollout_id] = run
        self._after(self._chance.expovariate(1.0 / TURN_S), self._sample, run, run.hop)

    def _sample(self, run: Run, hop: int) -> Event | None:
        if run.host is None or run.hop != hop:
            return None
        if run.oldest < 0:
            run.oldest = self.versions[run.host]
        run.tokens = max(run.tokens, PROMPT_TOKENS) + TURN_TOKENS
        delay = self._chance.expovariate(1.0 / TOOL_S)
        self._after(delay, self._end_turn, run, hop)
        turn = run.turn + 1
        return TurnSampled(run.rollout_id, run.try_, hop, turn, run.tokens, TOOL_S, PROMPT_TOKENS)

    def _end_turn(self, run: Run, hop: int) -> Event | None:
        if run.host is None or run.hop != hop:
            return None
        run.turn += 1
        run.left -= 1
        if run.left <= 0:
            return self._close(run, End.DONE)
        if self._chance.random() < FAILED_TURNS:
            self._leave(run)
            return TryFailed(run.rollout_id, run.try_, hop, End.ENV_FAILED, "modelled")
        self._after(self._chance.expovariate(1.0 / TURN_S), self._sample, run, hop)
        return TurnFinished(
            run.rollout_id,
            run.try_,
            hop,
            run.turn,
            run.tokens,
            run.turn * 300,
            run.oldest,
            run.turn * TOOL_S,
            PROMPT_TOKENS,
        )

    def _close(self, run: Run, end: End) -> Event:
        self._leave(run)
        self.runs.pop(run.rollout_id, None)
        oldest = run.oldest if run.oldest >= 0 else None
        group = group_of(run.rollout_id)
        if oldest is not None:
            self.oldest[group] = min(self.oldest.get(group, oldest), oldest)
        return RolloutClosed(
            run.rollout_id,
            run.try_,
            run.hop,
            end,
            oldest,
            oldest,
            run.tokens,
            run.turn * 300,
            run.turn,
        )

    def _cancel(self, rollout: RolloutId, end: End) -> Event | None:
        run = self.runs.get(rollout)
        return None if run is None else self._close(run, end)

    def _leave(self, run: Run) -> None:
        if run.host is not None:
            self.placed.get(run.host, {}).pop(run.rollout_id, None)
        if run.node is not None:
            self.kept.get(run.node, {}).pop(run.rollout_id, None)
        run.host = run.node = None

    def _end_try(self, command: EndTry) -> None:
        run = self.runs.get(command.rollout_id)
        if run is not None:
            self._leave(run)
            run.turn, run.tokens, run.oldest = 0, 0, -1
            run.left = self._draw_turns()

    def _grade(self, group: GroupId, epoch: int) -> Event:
        oldest = self.oldest.pop(group, None)
        return GroupGraded(group, epoch, 8, False, oldest, 0.5)

    def _commit(self, attempt: AttemptId, step: int) -> Event:
        policy = self.policies[attempt] = _policy(attempt, step)
        return StepCommitted(attempt, step, policy)

    def _checkpoint(self, attempt: AttemptId, step: int) -> Event:
        return CheckpointWritten(attempt, step, CheckpointId(f"ckpt_{step}"))

    def _sync(self, host: HostId, version: int) -> Event | None:
        if host not in self.placed:
            return None
        self.versions[host] = version
        return EngineSynced(host, self.epochs[host], version)

    def _lose_some(self) -> Event | None:
        """An engine, or now and then a node, dies and comes back; some only dial again."""
        self._after(HOST_LOSS_S, self._lose_some)
        self.losses += 1
        is_node = self.losses % 8 == 0
        live = [name for name in self.placed if ("node" in name) is is_node]
        host = self._chance.choice([name for name in live if "trainer" not in name])
        if self.losses % 2:
            return self._dial(host)
        return self._lose(host)

    def _dial(self, host: HostId) -> Event:
        """The link broke: the host joins again with the same epoch and all that it holds."""
        kind, attempt = _kind_of(host)
        runs = self.kept[host] if kind is HostKind.NODE else self.placed[host]
        held = tuple(
            HeldRollout(r.rollout_id, r.try_, r.hop, r.turn, r.oldest, r.tokens)
            for r in runs.values()
        )
        version = self.versions[host]
        return HostJoined(host, self.epochs[host], kind, attempt, 256, held, version, 366_000, True)

    def _lose(self, host: HostId) -> Event | None:
        if host not in self.placed:
            return None
        kind, attempt = _kind_of(host)
        epoch = self.epochs[host]
        self.epochs[host] = epoch + 1
        for run in self.placed.pop(host).values():
            run.host = None
        self.kept.pop(host)
        self._after(2.0, self._join, host, kind, attempt)
        return HostLost(host, epoch, "lease_expired")


def _policy(attempt: AttemptId, version: int) -> PolicyRef:
    return PolicyRef(attempt, version, f"{version:064d}", f"p/{version}", f"q/{version}", 1)


def _kind_of(host: HostId) -> tuple[HostKind, AttemptId | None]:
    if "node" in host:
        return HostKind.NODE, None
    attempt, _, role = host.removeprefix("host_").rpartition("_")
    kind = HostKind.TRAINER if role == "trainer" else HostKind.ENGINE
    return kind, AttemptId(f"att_{attempt}")
