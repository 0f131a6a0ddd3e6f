"""Job specs for tests of whole jobs: small, quick, every field that matters said."""

from typing import Any


def small_job(environment: str = "calc", **changes: Any) -> dict[str, Any]:
    """Two groups of four a step on the smallest model, three steps, a checkpoint each, no evaluation.

    `changes` replace top-level fields.
    """
    spec: dict[str, Any] = {
        "name": f"small {environment}",
        "model": {"base": "tiny-calc"},
        "environments": [{"ref": environment}],
        "rollout": {
            "group_size": 4,
            "groups_per_batch": 2,
            "sampling": {"temperature": 1.0, "max_tokens_per_turn": 16},
            # Killing what runs rollouts is the point; it must not pause the job.
            "pause_job_if_failed_share": 1.0,
        },
        "algorithm": {"on_no_signal": "skip"},
        "optimizer": {"lr": 3e-4},
        "evaluation": None,
        "checkpoints": {"every_steps": 1},
        "resources": {"rollout_gpus": {"min": 2, "max": 2}},
        "stop": {"max_steps": 3},
    }
    return {**spec, **changes}
