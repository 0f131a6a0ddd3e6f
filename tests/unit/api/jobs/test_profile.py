"""The profile of an ended job: what it counted, and nothing that it held."""

from api.jobs.schedule import _at_end
from venusrl.models.schedule import Profile

SAID = {
    "active_batch": {
        "open_groups": 3, "open_groups_max": 12, "groups_per_batch": 8, "async_ratio": 1.5,
        "running_rollouts": 16, "waiting_rollouts": 4, "engine_slots": 64,
    },
    "kv_usage": 0.5,
    "hit_rate": 0.75,
    "engines": [{
        "host": "host_1", "epoch": 1, "policy_version": 2, "rollouts": 16, "slots": 64.0,
        "active": 16.0, "waiting": 2.0, "kv_pages_used": 40.0, "kv_usage": 0.5,
        "sampled_tokens": 900.0, "tokens_per_s": 120.0, "hit_rate": 0.75,
    }],
    "sandboxes": {"held": 16, "free": 7, "total": 31, "declared_bytes": 16 * 2**29,
                  "used_bytes": None, "used_bytes_reason": "nobody measures it"},
    "tokens_per_s": 120.5,
    "filling_staleness": {"0": 2},
    "failed_share": 0.25,
}  # fmt: skip


def test_what_an_ended_job_held_is_given_back() -> None:
    found = Profile.model_validate({**_at_end(SAID), "job_id": "job_1", "state": "succeeded"})
    batch, sandboxes = found.active_batch, found.sandboxes
    assert batch is not None
    assert sandboxes is not None
    assert (batch.open_groups, batch.running_rollouts, batch.engine_slots) == (0, 0, 0)
    assert (sandboxes.held, sandboxes.free, sandboxes.declared_bytes) == (0, None, 0)
    assert (found.kv_usage, found.tokens_per_s, found.filling_staleness) == (None, 0.0, {})
    (engine,) = found.engines
    assert (engine.rollouts, engine.active, engine.kv_usage) == (0, None, None)


def test_what_an_ended_job_counted_stays() -> None:
    found = Profile.model_validate({**_at_end(SAID), "job_id": "job_1", "state": "succeeded"})
    assert (found.hit_rate, found.failed_share) == (0.75, 0.25)
    assert (found.engines[0].sampled_tokens, found.engines[0].slots) == (900.0, 64.0)
