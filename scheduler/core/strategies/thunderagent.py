"""ThunderAgent (MIT; arXiv 2602.13692): `thunderagent-upstream` and `thunderagent-paper`.

Source and accounting: `programs.py`. Every 5 s programs are resumed where there is room, then paused where
there is too little; a paused program waits at the end of its turn, off its engine, and goes on wherever
the packing puts it, with its KV recomputed there. A new program is admitted only while nobody waits, on
the engine with the fewest tokens that has room. After 1800 s of waiting a program goes on whatever the room.

`-upstream` is the snapshot as it is: marks do not reduce the overflow, a shared prefix is charged to each
member, tools do not decay. `-paper` does what the paper says: it stops when marked tokens cover the
overflow, charges the prefix once, and lets the charge of a tool halve each second when it resumes.

It has no trainer: groups are counted like those of `slime-bounded`, within the job's a and m. Upstream
estimates a first prompt from its characters; here a new program is charged what its siblings have shown
of their common prefix. A program is paused only where its engine may let go of it.
"""

from typing import TYPE_CHECKING

from domain.ids import HostId, RolloutId
from domain.plan import Scheduling
from scheduler.core import placement
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.strategies.programs import (
    Phase,
    Program,
    ProgramRules,
    choose_pauses,
    choose_resumes,
    used_tokens,
)
from scheduler.core.strategies.slime import SlimeBounded

if TYPE_CHECKING:
    from scheduler.core.state import Pass


class ThunderAgent(SlimeBounded):
    """Both variants; their defaults differ, not their code."""

    holds_places = True

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._accounting = ProgramRules(
            buffer_tokens=self.knob("buffer_tokens"),
            acting_weight=self.knob("acting_weight"),
            decay=self.knob("decay") == 1.0,
            counts_marks=self.knob("counts_marks") == 1.0,
            shares_prefix=self.knob("shares_prefix") == 1.0,
        )
        self._interval_s = self.knob("interval_s")
        self._timeout_s = self.knob("timeout_s")
        self._programs: dict[RolloutId, Program] = {}
        self._check_at = 0.0

    def choose_engine(
        self,
        run: "Pass",
        job: JobRecord,
        member: tuple[GroupRecord, RolloutRecord],
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """Where the router sent it; a new or displaced program is admitted or waits in the queue."""
        group, rollout = member
        if not group.is_training:
            return super().choose_engine(run, job, member, fitting)
        program = self._programs.get(rollout.rollout_id)
        if program is not None and program.is_paused:
            return None
        sent = None if program is None else program.engine
        engine = next((e for e in fitting if e.host_id == sent), None)
        if engine is not None:
            return engine
        return self._admit(run, self._enter(run, group, rollout), fitting)

    def on_gap(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """The answer is there: the program acts, or is paused if it was marked."""
        program = self._note(group, rollout)
        if program is None:
            return
        program.phase, program.acting_since = Phase.ACTING, run.now
        if program.is_marked:
            _pause(program, run.now)

    def on_turn(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """The next request arrives: a paused program waits here, one that was sent elsewhere moves."""
        program = self._note(group, rollout)
        if program is None or rollout.host is None:
            return
        program.phase = Phase.REASONING
        program.steps += 1
        if program.is_marked:
            _pause(program, run.now)
        if program.engine == rollout.host:
            return
        if not run.state.hosts[rollout.host].may_migrate:
            program.engine = rollout.host
            return
        placement.suspend(run, job, group, rollout)
        if program.is_paused:
            program.waiting_since = run.now
        else:
            placement.resume(run, job, rollout)

    def on_left(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """The program is released; who waits is looked at with the next check."""
        self._programs.pop(rollout.rollout_id, None)

    def on_tick(self, run: "Pass", job: JobRecord) -> None:
        """Each interval: forced resumes, resumes, then pauses until each engine fits."""
        if run.now < self._check_at:
            return
        self._check_at = run.now + self._interval_s
        engines = run.state.engines_of(job)
        self._resume_overdue(run, job, engines)
        placed = self._by_engine()
        room = {
            engine.host_id: _capacity(engine)
            - used_tokens(placed.get(engine.host_id, []), self._accounting, run.now)
            for engine in engines
        }
        paused = [program for program in self._programs.values() if program.is_paused]
        for program, target in choose_resumes(paused, room, self._accounting):
            self._resume(run, job, program, target)
        placed = self._by_engine()
        for engine in engines:
            programs = placed.get(engine.host_id, [])
            pausing, marking = choose_pauses(programs, _capacity(engine), self._accounting)
            for program in pausing:
                _pause(program, run.now)
            for program in marking:
                program.is_marked = True

    def _enter(self, run: "Pass", group: GroupRecord, rollout: RolloutRecord) -> Program:
        """The program of a rollout that waits for a place, in the queue until it is admitted."""
        program = self._programs.get(rollout.rollout_id)
        if program is None:
            program = Program(rollout.rollout_id, group.group_id, steps=rollout.turn + 1)
            self._programs[rollout.rollout_id] = program
        program.tokens = max(rollout.tokens, group.shared_tokens)
        program.shared_tokens = group.shared_tokens
        program.phase, program.engine, program.is_marked = Phase.REASONING, None, False
        program.waiting_since = run.now
        return program

    def _admit(self, run: "Pass", program: Program, fitting: list[HostRecord]) -> HostRecord | None:
        others = (p for p in self._programs.values() if p is not program)
        if any(other.is_paused for other in others):
            return None
        placed = self._by_engine()
        needed = program.tokens + self._accounting.buffer_tokens
        used = {
            engine.host_id: used_tokens(placed.get(engine.host_id, []), self._accounting)
            for engine in fitting
        }
        roomy = [e for e in fitting if _capacity(e) - used[e.host_id] >= needed]
        if not roomy:
            return None
        engine = min(roomy, key=lambda e: (used[e.host_id], e.host_id))
        program.engine = engine.host_id
        return engine

    def _resume_overdue(self, run: "Pass", job: JobRecord, engines: list[HostRecord]) -> None:
        """Who has waited too long goes on, on its former engine or the one with the fewest programs."""
        for program in list(self._programs.values()):
            is_waiting = program.is_paused and program.phase is Phase.REASONING
            if not is_waiting or run.now - program.waiting_since <= self._timeout_s or not engines:
                continue
            live = {engine.host_id for engine in engines}
            counts = {name: len(programs) for name, programs in self._by_engine().items()}
            fewest = min(engines, key=lambda e: (counts.get(e.host_id, 0), e.host_id)).host_id
            former = program.former_engine
            target = former if former is not None and former in live else fewest
            self._resume(run, job, program, target)

    def _resume(self, run: "Pass", job: JobRecord, program: Program, engine: HostId) -> None:
        program.engine = engine
        found = run.state.find_rollout(program.rollout_id)
        if found is not None and found[2].is_suspended:
            placement.resume(run, job, found[2])

    def _note(self, group: GroupRecord, rollout: RolloutRecord) -> Program | None:
        """The program with its present size; None for evaluations."""
        program = self._programs.get(rollout.rollout_id)
        if program is None and group.is_training and rollout.host is not None:
            program = Program(rollout.rollout_id, group.group_id, steps=rollout.turn)
            program.engine = rollout.host
            self._programs[rollout.rollout_id] = program
        if program is not None:
            program.tokens, program.shared_tokens = rollout.tokens, group.shared_tokens
        return program

    def _by_engine(self) -> dict[HostId, list[Program]]:
        placed: dict[HostId, list[Program]] = {}
        for program in self._programs.values():
            if program.engine is not None:
                placed.setdefault(program.engine, []).append(program)
        return placed


def _pause(program: Program, now: float) -> None:
    program.former_engine, program.engine = program.engine, None
    program.is_marked = False
    program.waiting_since = now


def _capacity(engine: HostRecord) -> float:
    """KV tokens of an engine; one that does not say is never full."""
    return float(engine.kv_tokens) if engine.kv_tokens > 0 else float("inf")
