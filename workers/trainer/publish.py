"""Commit, then publish: weights and probe are written create-only before the step's row commits."""

from dataclasses import dataclass
from typing import Final

from domain.engine import Probe
from domain.ids import AttemptId, JobId
from infra.codec import to_json
from infra.failpoints import hit
from infra.names import probe_path, weights_path
from stores.blobs import Blobs

WEIGHTS_WRITTEN: Final = "weights.written"
"""Failpoint after the files and before the row that refers to them."""

STEP_COMMITTED: Final = "step.committed"
"""Failpoint after the row and before the leader hears of it."""


@dataclass(frozen=True, slots=True)
class Published:
    """Paths of a policy version's files."""

    weights_uri: str
    probe_uri: str


@dataclass(frozen=True, slots=True)
class Publisher:
    """Writes the files of one attempt under one epoch."""

    blobs: Blobs
    job_id: JobId
    attempt_id: AttemptId
    epoch: int

    async def write(self, step: int, weights: bytes, probe: Probe) -> Published:
        """Files of a step with new weights."""
        uri = weights_path(self.job_id, self.attempt_id, step, self.epoch)
        await self.blobs.create(uri, weights)
        probe_uri = await self._write_probe(step, probe)
        hit(WEIGHTS_WRITTEN)
        return Published(uri, probe_uri)

    async def write_unchanged(self, step: int, weights_uri: str, probe: Probe) -> Published:
        """A step without an update: its version points at the weights that are there already."""
        probe_uri = await self._write_probe(step, probe)
        hit(WEIGHTS_WRITTEN)
        return Published(weights_uri, probe_uri)

    async def _write_probe(self, step: int, probe: Probe) -> str:
        uri = probe_path(self.job_id, self.attempt_id, step, self.epoch)
        await self.blobs.create(uri, to_json(probe))
        return uri
