"""One job in virtual time: the real coordinator over modelled engines, trainer, sandboxes and tools.

    core.step -> commands -> engines, trainer, sandboxes -> events -> core.accept, core.step -> ...

Nothing here decides: what starts, waits, moves and trains is the core's and the engines' matter.
Sandboxes and verdicts take no time; tools take what the trajectory says.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from domain import commands as c
from domain import events as e
from domain.ids import (
    CheckpointId,
    GroupId,
    HostId,
    RolloutId,
    group_of,
    host_id,
    index_of,
    node_host_id,
    ordinal_of,
    task_ordinal,
)
from domain.plan import Pool
from domain.policy import PolicyRef
from domain.states import End, HostKind, JobState
from kv.rules import rules_of
from scheduler.core.coordinator import Coordinator
from simulation.clock import VirtualClock
from simulation.engine import EngineModel, ModelledEngine
from simulation.faults import Faults, arrange, slowed
from simulation.runs import Episode, GroupOutcome, Outcome, Setup
from simulation.stream import Phase, Prefix, Stream
from simulation.trainer import ModelledTrainer

PAGE_TOKENS: Final = 16


class World:
    """One run; `run` returns its outcome."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.clock = VirtualClock()
        plan = setup.plan
        pool = Pool(engines=setup.engines, trainers=1, sandboxes=10**9, grading_reserve=1)
        self.core = Coordinator(pool, checking=setup.checking)
        self.rules = rules_of(plan.scheduling)
        self.trainer = ModelledTrainer(
            self.clock,
            setup.trainer_tokens_s,
            setup.update_s,
            self.rules.streams,
            self._publish,
        )
        self.engines: dict[HostId, ModelledEngine] = {}
        self.fallen: list[ModelledEngine] = []
        """Engines that died in the run."""
        self.epochs: dict[HostId, int] = {}
        self._is_message_lost = (setup.faults or Faults()).message_chance()
        self.episodes: dict[RolloutId, Episode] = {}
        self.prefixes: dict[tuple[HostId, GroupId], Prefix] = {}
        self.groups: dict[GroupId, GroupOutcome] = {}
        self.steps: list[float] = []
        self.staleness: Counter[int] = Counter()
        self.dropped: Counter[str] = Counter()
        self.trained: list[int] = []
        self.state = JobState.VALIDATING
        self.events = 0
        self.moves = 0
        self._facts: deque[e.Event] = deque()
        self._is_folding = False
        self._keys = 0

    def run(self) -> Outcome:
        """Until the job succeeded. Raises `RuntimeError` when it stands still or fails."""
        plan = self.setup.plan
        self.feed(e.StateRestored())
        self.feed(e.HostJoined(node_host_id(0), 1, HostKind.NODE, None, 0))
        self.feed(e.JobSubmitted(plan, 1))
        self._tick()
        while self.state is not JobState.SUCCEEDED:
            is_over = self.state in (JobState.FAILED, JobState.CANCELLED, JobState.PAUSED)
            is_late = self.clock.now > self.setup.seconds_max
            if is_over or is_late or not self.clock.run_next():
                raise RuntimeError(f"the run stands still: {self.picture()}")
        return Outcome(
            makespan_s=self.steps[-1],
            steps=self.steps,
            staleness=self.staleness,
            dropped=self.dropped,
            groups=sorted(self.groups.values(), key=lambda one: one.ordinal),
            trained=self.trained,
            engines=[*self.fallen, *self.engines.values()],
            trainer=self.trainer,
            events=self.events,
            moves=self.moves,
        )

    def picture(self) -> str:
        """Where the job stands, for a failure's message."""
        view = self.core.view(self.setup.plan.job_id)
        return f"{self.state} at {self.clock.now:.1f} s, {len(self.steps)} steps, {view}"

    def feed(self, event: e.Event) -> None:
        """Hand a fact to the core and execute what follows, facts that it causes included."""
        self._facts.append(event)
        if self._is_folding:
            return
        self._is_folding = True
        core = self.core
        while self._facts:
            fact = self._facts.popleft()
            self.events += 1
            if core.accept(fact) is None:
                for command in core.step(self.clock.now, fact):
                    _HANDLERS[type(command)](self, command)
        self._is_folding = False

    def _tick(self) -> None:
        self.feed(e.Tick())
        if self.state not in (JobState.SUCCEEDED, JobState.FAILED):
            self.clock.after(self.setup.tick_s, self._tick)

    # -- engines ---------------------------------------------------------------------------

    def turn_sampled(self, engine: ModelledEngine, stream: Stream) -> None:
        """The generation of a turn ended: the tool runs, or the rollout is done."""
        episode = self.episodes[stream.rollout_id]
        turn = episode.trajectory.turns[episode.turn]
        episode.turn += 1
        episode.context, episode.sampled = stream.context, episode.sampled + turn.output_tokens
        if episode.oldest is None:
            episode.oldest = stream.oldest_version
        episode.newest = stream.newest_version
        if episode.turn == len(episode.trajectory.turns):
            self._close(engine, stream, episode)
            return
        now = self.clock.now
        episode.tool_until, episode.is_told = now + turn.tool_s, False
        engine.begin_gap(stream, episode.tool_until)
        self.clock.after(turn.tool_s, lambda: self._tool_done(episode))
        self._send(
            e.TurnSampled(
                stream.rollout_id,
                stream.try_,
                stream.hop,
                episode.turn,
                episode.context,
                engine.gaps.residual_s(str(turn.tool), 0.0),
                stream.prefix.tokens,
            )
        )

    def synced(self, engine: ModelledEngine, version: int) -> None:
        """An engine serves a version."""
        self.feed(e.EngineSynced(HostId(engine.name), self.epochs[HostId(engine.name)], version))

    def _send(self, event: e.TurnSampled | e.TurnFinished) -> None:
        """What an engine says of a turn; a fault may lose it, and the rollout goes on."""
        if not self._is_message_lost():
            self.feed(event)

    def _tool_done(self, episode: Episode) -> None:
        turn = episode.trajectory.turns[episode.turn - 1]
        episode.tool_s += turn.tool_s
        stream, engine = episode.stream, episode.engine
        if stream is None or engine is None:
            return
        engine.gaps.add(str(turn.tool), turn.tool_s)
        self._tell_turn(episode, stream)
        if episode.stream is stream and stream.phase is Phase.GAP:
            self._next_turn(episode)

    def _tell_turn(self, episode: Episode, stream: Stream) -> None:
        episode.is_told = True
        nexts = episode.trajectory.turns[episode.turn]
        estimate = self.setup.estimator
        remaining = (
            None
            if estimate is None
            else estimate(episode.rollout_id, episode.trajectory, episode.turn)
        )
        assert episode.oldest is not None
        self._send(
            e.TurnFinished(
                episode.rollout_id,
                stream.try_,
                stream.hop,
                episode.turn,
                episode.context + nexts.new_tokens,
                episode.sampled,
                episode.oldest,
                episode.tool_s,
                stream.prefix.tokens,
                remaining,
            )
        )

    def _next_turn(self, episode: Episode) -> None:
        assert episode.stream is not None
        assert episode.engine is not None
        turn = episode.trajectory.turns[episode.turn]
        episode.engine.wait(episode.stream, turn.new_tokens, turn.output_tokens)

    def _close(self, engine: ModelledEngine, stream: Stream, episode: Episode) -> None:
        engine.leave(stream, keep_unused=True)
        episode.stream = episode.engine = None
        assert episode.oldest is not None
        self.feed(
            e.RolloutClosed(
                stream.rollout_id,
                stream.try_,
                stream.hop,
                End.DONE,
                episode.oldest,
                episode.newest,
                episode.context,
                episode.sampled,
                episode.turn,
            )
        )

    # -- commands --------------------------------------------------------------------------

    def _set_state(self, command: c.SetJobState) -> None:
        self.state = command.state

    def _grant(self, command: c.GrantGang) -> None:
        attempt, setup = command.attempt_id, self.setup
        self._join(host_id(attempt, "trainer"), HostKind.TRAINER, 0)
        policy = self._policy(0)
        self.feed(e.TrainerReady(attempt, host_id(attempt, "trainer"), 1, policy))
        for index in range(command.engines):
            self._start_engine(host_id(attempt, f"engine{index}"), version=0)
        if setup.faults is not None:
            arrange(self, setup.faults)

    def _start_engine(self, name: HostId, version: int) -> None:
        """A process joins under the next epoch, serving this version; -1 when it has no weights."""
        setup = self.setup
        model = EngineModel(
            name,
            setup.physics,
            self.rules,
            PAGE_TOKENS,
            setup.has_host_tier,
            setup.weight_sync_s,
            version,
        )
        self.engines[name] = ModelledEngine(model, self.clock, self)
        self.epochs[name] = self.epochs.get(name, 0) + 1
        self._join(name, HostKind.ENGINE, setup.physics.slots, version)

    # -- faults (`simulation.faults`) --------------------------------------------------------

    def _engine_id(self, engine: int) -> HostId:
        return host_id(self.setup.plan.attempt_id, f"engine{engine}")

    def lose_engine(self, engine: int) -> None:
        """Its process dies with the turns under way; their rollouts live on."""
        name = self._engine_id(engine)
        dead = self.engines.pop(name, None)
        if dead is None:
            return
        dead.stop()
        self.fallen.append(dead)
        for episode in self.episodes.values():
            if episode.engine is dead:
                episode.stream = episode.engine = None
                episode.kept_tokens = 0
        self.prefixes = {key: one for key, one in self.prefixes.items() if key[0] != name}

    def expire_engine(self, engine: int) -> None:
        """The lease of a dead engine ended."""
        name = self._engine_id(engine)
        if name not in self.engines and name in self.epochs:
            self.feed(e.HostLost(name, self.epochs[name], "lease_expired"))

    def revive_engine(self, engine: int) -> None:
        """A new process, if the old one is still gone."""
        name = self._engine_id(engine)
        if name not in self.engines and name in self.epochs:
            self._start_engine(name, version=-1)

    def slow_engine(self, engine: int, factor: float) -> None:
        """Its steps take so many times as long as the regime says."""
        found = self.engines.get(self._engine_id(engine))
        if found is not None:
            found.change_physics(slowed(self.setup.physics, factor))

    def _join(self, name: HostId, kind: HostKind, slots: int, version: int = -1) -> None:
        is_engine = kind is HostKind.ENGINE
        self.feed(
            e.HostJoined(
                name,
                self.epochs.get(name, 1),
                kind,
                self.setup.plan.attempt_id,
                slots,
                policy_version=version,
                kv_tokens=self.setup.physics.kv_capacity_tokens if is_engine else 0,
                may_migrate=is_engine,
            )
        )

    def _policy(self, version: int) -> PolicyRef:
        name = f"sha-{version}"
        return PolicyRef(self.setup.plan.attempt_id, version, name, name, name, 1)

    def _open(self, command: c.OpenGroup) -> None:
        ordinal = task_ordinal(command.ordinal)
        self.groups[command.group_id] = GroupOutcome(ordinal, self.clock.now)

    def _fork(self, command: c.ForkSandboxes) -> None:
        for rollout, try_ in command.members:
            self.feed(e.SandboxReady(rollout, try_, command.node, command.node_epoch))

    def _place(self, command: c.PlaceRollout) -> None:
        rollout, group = command.rollout_id, group_of(command.rollout_id)
        engine = self.engines.get(command.host_id)
        episode = self._episode(rollout)
        if engine is None:
            return
        prefix = self._prefix(command.host_id, group)
        self._keys += 1
        stream = Stream(
            rollout,
            command.try_,
            command.hop,
            self._keys,
            ordinal_of(group),
            episode.trajectory,
            prefix,
            command.rank,
            turn=episode.turn,
            prompt=episode.context,
        )
        stream.oldest_version = episode.oldest
        stream.computed = episode.context
        if command.kv_from is not None and command.kv_from != command.host_id:
            stream.imported = episode.kept_tokens
            stream.import_at = self.clock.now + engine.physics.transfer_s(episode.kept_tokens)
            self.moves += 1
        episode.stream, episode.engine = stream, engine
        engine.join(stream)
        if episode.tool_until > self.clock.now:
            engine.begin_gap(stream, episode.tool_until)
            return
        if not episode.is_told:
            self._tell_turn(episode, stream)
        if episode.stream is stream:
            self._next_turn(episode)

    def _episode(self, rollout: RolloutId) -> Episode:
        found = self.episodes.get(rollout)
        if found is None:
            ordinal = task_ordinal(ordinal_of(group_of(rollout)))
            trajectory = self.setup.workload.trajectory(ordinal, index_of(rollout))
            found = self.episodes[rollout] = Episode(rollout, trajectory)
        return found

    def _prefix(self, host: HostId, group: GroupId) -> Prefix:
        """What all members' first prompts have in common, at the most: the shortest of them."""
        found = self.prefixes.get((host, group))
        if found is None:
            members = self.setup.workload.group(task_ordinal(ordinal_of(group)))
            tokens = min(one.turns[0].new_tokens for one in members)
            found = self.prefixes[host, group] = Prefix(group, tokens, -(-tokens // PAGE_TOKENS))
        return found

    def _suspend(self, command: c.SuspendRollout) -> None:
        episode = self.episodes[command.rollout_id]
        stream, engine = episode.stream, episode.engine
        if stream is None or engine is None or stream.hop != command.hop:
            return
        episode.kept_tokens = stream.cached + stream.hosted if command.keep_kv else 0
        engine.leave(stream, keep_unused=False)
        episode.stream = episode.engine = None

    def _rank(self, command: c.SetRanks) -> None:
        engine = self.engines.get(command.host_id)
        if engine is None:
            return
        ranks = {}
        for rollout, rank in command.ranks:
            stream = self.episodes[rollout].stream
            if stream is not None and self.episodes[rollout].engine is engine:
                ranks[stream] = rank
        engine.rerank(ranks)

    def _sync(self, command: c.SyncEngine) -> None:
        engine = self.engines.get(command.host_id)
        if engine is not None:
            engine.sync(command.policy.version)

    def _grade(self, command: c.GradeGroup) -> None:
        group = command.group_id
        self.groups[group].completed_at = self.clock.now
        record = self.core.state.find_group(group)
        assert record is not None
        episodes = [self.episodes[one.rollout_id] for one in record[1].rollouts]
        oldest = min(one.oldest for one in episodes if one.oldest is not None)
        self.feed(
            e.GroupGraded(group, command.grade_epoch, len(episodes), False, oldest, 0.5),
        )

    def _assign(self, command: c.AssignGroup) -> None:
        outcome = self.groups[command.group_id]
        outcome.trained_step, outcome.staleness = command.step, command.staleness
        self.staleness[command.staleness] += 1
        self.trained.append(outcome.ordinal)
        group = self.setup.workload.group(outcome.ordinal)
        self.trainer.assign(sum(one.context_tokens for one in group))

    def _close_step(self, command: c.CloseStep) -> None:
        self.trainer.close(command.step)

    def _publish(self, step: int) -> None:
        self.steps.append(self.clock.now)
        self.feed(e.StepCommitted(self.setup.plan.attempt_id, step, self._policy(step)))

    def _checkpoint(self, command: c.WriteCheckpoint) -> None:
        name = CheckpointId(f"ckpt_{command.step}")
        self.feed(e.CheckpointWritten(command.attempt_id, command.step, name))

    def _drop(self, command: c.DropGroup) -> None:
        self.dropped[command.reason.value] += 1
        self.groups.pop(command.group_id, None)

    def _close_rollout(self, command: c.CloseRollout) -> None:
        episode = self._episode(command.rollout_id)
        if episode.stream is not None and episode.engine is not None:
            episode.engine.leave(episode.stream, keep_unused=True)
            episode.stream = episode.engine = None
        self.feed(
            e.RolloutClosed(
                command.rollout_id,
                command.try_,
                command.hop,
                command.end,
                episode.oldest,
                episode.newest,
                episode.context,
                episode.sampled,
                episode.turn,
            )
        )
        del self.episodes[command.rollout_id]

    def _end_try(self, command: c.EndTry) -> None:
        """The try is over: its sandbox is gone and the next one begins anew."""
        episode = self.episodes.pop(command.rollout_id, None)
        if episode is not None and episode.stream is not None and episode.engine is not None:
            episode.engine.leave(episode.stream, keep_unused=True)
            episode.stream = episode.engine = None

    def _ignore(self, command: c.Command) -> None:
        """Nothing of the model depends on it."""


_HANDLERS: Final[dict[type[c.Command], Callable[..., None]]] = {
    c.SetJobState: World._set_state,
    c.GrantGang: World._grant,
    c.ReleaseGang: World._ignore,
    c.OpenGroup: World._open,
    c.ForkSandboxes: World._fork,
    c.ReleaseSandboxes: World._ignore,
    c.PlaceRollout: World._place,
    c.SuspendRollout: World._suspend,
    c.SetRanks: World._rank,
    c.SyncEngine: World._sync,
    c.GradeGroup: World._grade,
    c.AssignGroup: World._assign,
    c.CloseStep: World._close_step,
    c.WriteCheckpoint: World._checkpoint,
    c.DropGroup: World._drop,
    c.CloseRollout: World._close_rollout,
    c.EndTry: World._end_try,
    c.NoteJob: World._ignore,
    c.FinishEvaluation: World._ignore,
}
