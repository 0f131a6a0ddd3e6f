"""One engine of each kind over the same small model."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.clock import SystemClock
from tests.support.engines import decoder, model_folder
from workers.models.decoder import Decoder
from workers.models.folder import ModelFolder, weights_sha
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.rollout.ports import Engine
from workers.rollout.scripted.engine import ScriptedEngine, ScriptedSizes
from workers.rollout.scripted.script import Script, ScriptedAnswer

LONG_CONTEXT = 4096
"""Room for a turn that is still running when the test gets to look at it."""

Make = Callable[[int], Engine]
"""An engine with this many slots."""


@dataclass(frozen=True)
class Small:
    """The model under test and its folder."""

    model: Decoder
    folder: ModelFolder


@pytest.fixture
def small(tmp_path: Path) -> Small:
    model = decoder(context=LONG_CONTEXT)
    return Small(model, model_folder(tmp_path / "model", model))


def scripted(small: Small, slots: int) -> ScriptedEngine:
    """Answers that last far longer than any test that does not abort them."""
    script = Script(
        default=(ScriptedAnswer(token_ids=(13, 1, 16)),),
        by_rollout={
            "ro_long": (ScriptedAnswer(token_ids=(1,) * 4000, delay_s=3600.0),),
        },
        mismatched_versions=frozenset({13}),
    )
    sizes = ScriptedSizes(small.folder.config.vocab_size, LONG_CONTEXT, slots)
    sha = weights_sha(small.model.state_dict())
    return ScriptedEngine("small", sizes, script, SystemClock(), weights_sha=sha)


@pytest.fixture(params=["embedded", "scripted"])
async def make(request: pytest.FixtureRequest, small: Small) -> AsyncIterator[Make]:
    """A factory of engines that are closed after the test."""
    async with AsyncExitStack() as stack:

        def build(slots: int) -> Engine:
            engine: Engine
            if request.param == "embedded":
                engine = EmbeddedEngine("small", small.folder, EngineLimits(slots))
            else:
                engine = scripted(small, slots)
            stack.push_async_callback(engine.close)
            return engine

        yield build


@pytest.fixture
async def embedded(small: Small) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine("small", small.folder, EngineLimits(slots=8))
    yield engine
    await engine.close()
