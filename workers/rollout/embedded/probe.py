"""The probe after a sync: the packed weights must give the trainer's log-probabilities."""

import torch

from domain.engine import Probe, ProbeReport, Refusal, SyncFailed
from workers.rollout.embedded.adapters import PackedAdapter
from workers.rollout.embedded.forward import score
from workers.rollout.embedded.packing import PackedModel


def compare(
    model: PackedModel,
    version: int,
    sha: str,
    probe: Probe,
    adapter: PackedAdapter | None = None,
) -> ProbeReport:
    """Score the probe's sequences; raises `SyncFailed` on any difference beyond its tolerance.

    With an adapter, version and sha are the adapter's.
    """
    if (probe.version, probe.sha) != (version, sha):
        detail = f"the probe is of version {probe.version}, the engine holds {version}"
        raise SyncFailed(Refusal.PROBE_MISMATCH, detail)
    worst, tokens = 0.0, 0
    with torch.inference_mode():
        for sequence in probe.sequences:
            measured = score(model, sequence.token_ids, adapter).cpu()
            delta = (measured - torch.tensor(sequence.logprobs)).abs().nan_to_num(nan=float("inf"))
            worst = max(worst, float(delta.max()))
            tokens += len(sequence.logprobs)
    if not tokens:
        raise SyncFailed(Refusal.PROBE_MISMATCH, "the probe is empty and proves nothing")
    if worst > probe.tolerance:
        detail = f"largest |delta log p| is {worst:.3g}, allowed are {probe.tolerance:.3g}"
        raise SyncFailed(Refusal.PROBE_MISMATCH, detail)
    return ProbeReport(version, worst, tokens)
