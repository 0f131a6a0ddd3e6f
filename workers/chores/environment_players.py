"""Who answers in a test run: the package's own cases, or a checkpoint, one rollout at a time."""

import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from domain.engine import EngineRefused, Finish
from venusrl.env.host.cases import Case
from venusrl.env.host.episode import Spoken, Stage, grade_group, play
from venusrl.env.host.manifest import Finding
from venusrl.env.host.playing import Outcome, play_case
from venusrl.env.host.ports import EnvironmentFault, InstanceKey
from venusrl.env.messages import Message, Task
from workers.chores.generate import ONE_REQUEST, GenerateRequest, request_for
from workers.chores.handling import ChoreFailed
from workers.models.folder import ModelFolder, read_folder
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.trainer.checkpoints import WholeCheckpoint, unpack_model


class Player(Protocol):
    """Plays one rollout to its verdict."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    @property
    def task(self) -> Task:
        """The task that is played."""
        ...

    async def play(self, stage: Stage, key: InstanceKey) -> Outcome:
        """Play and grade it; what goes wrong is a finding."""
        ...


@dataclass(frozen=True, slots=True)
class CasePlayer:
    """A case of the package says what is answered, and what comes of it."""

    case: Case
    task: Task

    @property
    def name(self) -> str:
        """The case's own."""
        return self.case.name

    async def play(self, stage: Stage, key: InstanceKey) -> Outcome:
        """See `Player.play`."""
        return await play_case(stage, self.case, self.task, key)


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded checkpoint that answers one request after the other."""

    folder: ModelFolder
    engine: EmbeddedEngine

    async def answer(
        self, messages: Sequence[Message], stage: Stage, asked: GenerateRequest, turn: int
    ) -> Spoken | str:
        """One answer; how the rollout ends where there is none. Raises ChoreFailed."""
        chat = self.folder.chat
        prompt = chat.prompt(messages, stage.process.info.tools)
        try:
            made = await self.engine.generate(request_for(self.folder, prompt, asked))
        except ChoreFailed as failed:
            if failed.code == "context_overflow":
                return failed.code
            raise
        except EngineRefused as refused:
            raise ChoreFailed(refused.reason.value, refused.detail) from refused
        is_cut = made.finish is Finish.LENGTH
        said = chat.parse(made.token_ids, turn).message
        return Spoken(said, "length" if is_cut else "stop", "truncated" if is_cut else None)


@asynccontextmanager
async def loaded(
    saved: WholeCheckpoint, limits: EngineLimits = ONE_REQUEST
) -> AsyncIterator[Model]:
    """The checkpoint's model for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="venus-test-") as name:
        folder = read_folder(unpack_model(saved, Path(name)))
        engine = EmbeddedEngine(saved.checkpoint_id, folder, limits, version=saved.step)
        try:
            yield Model(folder, engine)
        finally:
            await engine.close()


@dataclass(frozen=True, slots=True)
class ModelPlayer:
    """A checkpoint answers; any verdict is a good one."""

    model: Model
    asked: GenerateRequest
    task: Task

    @property
    def name(self) -> str:
        """The checkpoint and its task."""
        return f"{self.asked.checkpoint_id} {self.task.id}"

    async def play(self, stage: Stage, key: InstanceKey) -> Outcome:
        """See `Player.play`."""

        async def speak(messages: Sequence[Message], turn: int) -> Spoken | str:
            return await self.model.answer(messages, stage, self.asked, turn)

        began = time.monotonic()
        try:
            played = await play(stage, key, self.task, speak, seed=self.asked.seed)
            (grade,) = await grade_group(stage, [played.rollout], self.asked.seed)
        except EnvironmentFault as fault:
            finding = Finding("", "", f"task {self.task.id}: {fault}", code=fault.cause)
            return Outcome((finding,), seconds=time.monotonic() - began)
        return Outcome((), played.rollout, grade, time.monotonic() - began)
