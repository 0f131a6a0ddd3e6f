"""The probe after a sync: the packed weights must give the trainer's log-probabilities."""

import math

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
    check(probe, model)
    worst, tokens = 0.0, 0
    with torch.inference_mode():
        for sequence in probe.sequences:
            measured = score(model, sequence.token_ids, adapter).cpu()
            delta = (measured - torch.tensor(sequence.logprobs)).abs().nan_to_num(nan=float("inf"))
            worst = max(worst, float(delta.max()))
            tokens += len(sequence.logprobs)
    if worst > probe.tolerance:
        detail = f"largest |delta log p| is {worst:.3g}, allowed are {probe.tolerance:.3g}"
        raise SyncFailed(Refusal.PROBE_MISMATCH, detail)
    return ProbeReport(version, worst, tokens)


def check(probe: Probe, model: PackedModel) -> None:
    """Raise `SyncFailed` where a probe cannot be computed, or would hold for any weights."""
    config = model.config
    if not probe.sequences:
        raise SyncFailed(Refusal.PROBE_MISMATCH, "the probe is empty and proves nothing")
    if not (math.isfinite(probe.tolerance) and probe.tolerance >= 0.0):
        raise SyncFailed(Refusal.PROBE_MISMATCH, f"its tolerance is {probe.tolerance}")
    for sequence in probe.sequences:
        ids, context = sequence.token_ids, config.max_position_embeddings
        if not 2 <= len(ids) <= context:
            detail = f"a sequence has {len(ids)} tokens, not 2..{context}"
            raise SyncFailed(Refusal.PROBE_MISMATCH, detail)
        if len(sequence.logprobs) != len(ids) - 1:
            detail = f"{len(sequence.logprobs)} log-probabilities for {len(ids)} tokens"
            raise SyncFailed(Refusal.PROBE_MISMATCH, detail)
        if not 0 <= min(ids) <= max(ids) < config.vocab_size:
            detail = f"token {min(ids) if min(ids) < 0 else max(ids)} is outside the vocabulary"
            raise SyncFailed(Refusal.PROBE_MISMATCH, detail)
