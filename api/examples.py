"""Examples of request bodies in the OpenAPI document; a test sends each of them."""

from collections.abc import Mapping
from typing import Any, Final

SMALLEST_JOB: Final[Mapping[str, Any]] = {
    "name": "calc",
    "model": {"base": "tiny-calc"},
    "environments": [{"ref": "calc"}],
}

LARGER_JOB: Final[Mapping[str, Any]] = {
    **SMALLEST_JOB,
    "rollout": {"group_size": 8, "groups_per_batch": 16},
    "algorithm": {"advantage": "grpo", "loss": {"type": "dapo"}},
    "scheduling": {"max_staleness": 2},
    "evaluation": {"tasks": 20, "every_steps": 10},
    "stop": {"max_steps": 40},
    "labels": {"team": "numbers"},
}

EXAMPLES: Final[Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]] = {
    ("post", "/v1/organizations"): {"an organization": {"name": "acme"}},
    ("post", "/v1/projects"): {"a project": {"name": "numbers"}},
    ("post", "/v1/api-keys"): {
        "a key of the organization": {"name": "ci", "role": "admin"},
    },
    ("post", "/v1/api-keys/{key_id}/rotate"): {
        "at once": {},
        "with an hour for the change": {"grace_s": 3600},
    },
    ("post", "/v1/environments"): {"a name": {"name": "sums"}},
    ("post", "/v1/environments/{name}/versions/{version}/yank"): {
        "with the cause": {"reason": "its reward can be gamed"},
    },
    ("post", "/v1/environments/{name}/versions/{version}/test-runs"): {
        "some of the package's cases": {"split": "test", "tasks": 4},
    },
    ("post", "/v1/datasets"): {"a name": {"name": "sums"}},
    ("post", "/v1/jobs"): {"the smallest": SMALLEST_JOB, "with more said": LARGER_JOB},
    ("post", "/v1/jobs/validate"): {"the smallest": SMALLEST_JOB},
    ("patch", "/v1/jobs/{job_id}"): {
        "a longer budget": {"budget": {"max_wall_hours": 8.0}},
        "another end": {"max_steps": 60, "priority": "high"},
    },
    ("post", "/v1/jobs/{job_id}/branch"): {
        "from the newest checkpoint": {"overrides": {"stop": {"max_steps": 60}}},
    },
    ("post", "/v1/plans"): {
        "a spec on a pool": {
            "spec": SMALLEST_JOB,
            "pool": {"engines": 4},
            "profile": {
                "turns": {"p10": 1, "p50": 2, "p90": 4},
                "prompt_tokens": {"p10": 20, "p50": 30, "p90": 40},
                "output_tokens": {"p10": 5, "p50": 10, "p90": 20},
                "observation_tokens": {"p10": 5, "p50": 10, "p90": 20},
                "tool_s": {"p10": 0.01, "p50": 0.05, "p90": 0.5},
            },
        },
    },
    ("post", "/v1/models"): {
        "a hub revision": {
            "name": "tiny",
            "source": {"type": "hub", "repo": "acme/tiny", "revision": "main"},
        },
    },
    ("post", "/v1/sandboxes"): {
        "one": {},
        "four as one fork": {"n": 4, "lifetime_s": 900.0, "env": {"CI": "1"}},
    },
    ("post", "/v1/sandboxes/{sandbox_id}/timeout"): {"ten minutes more": {"lifetime_s": 600.0}},
    ("put", "/v1/secrets/{name}"): {"a key": {"value": "sk-the-key-of-a-judge"}},
    ("patch", "/v1/checkpoints/{checkpoint_id}"): {
        "keep it": {"keep": True},
        "for a month": {"keep": False, "ttl_days": 30},
    },
    ("post", "/v1/checkpoints/{checkpoint_id}/export"): {
        "one file": {"format": "safetensors"},
    },
    ("post", "/v1/webhooks"): {
        "events of all types": {"url": "https://example.com/hooks/venus"},
        "what people wait for": {
            "url": "https://example.com/hooks/venus",
            "types": ["job.state", "checkpoint.*"],
            "description": "the lab's chat",
        },
    },
    ("patch", "/v1/webhooks/{webhook_id}"): {
        "switched off": {"active": False},
        "other types": {"types": ["job.*"]},
    },
    ("post", "/v1/webhooks/{webhook_id}/rotate"): {
        "at once": {},
        "with an hour for the change": {"grace_s": 3600},
    },
    ("post", "/v1/rollouts/{rollout_id}/branch"): {
        "eight from turn 3": {"turns": [3], "n": 8},
        "pass rate by turn": {"n": 4},
        "what if the tool had said": {"turns": [3], "tool_output": "0 tests failed"},
    },
    ("post", "/v1/checkpoints/{checkpoint_id}/generate"): {
        "a look": {"prompt": "12+40", "max_tokens": 16},
    },
}
"""By method and path: summaries and bodies."""


def add_examples(paths: dict[str, Any]) -> None:
    """Put the examples into the document's JSON bodies."""
    for (method, path), bodies in EXAMPLES.items():
        content = paths[path][method]["requestBody"]["content"]["application/json"]
        content["examples"] = {
            f"example{number}": {"summary": summary, "value": dict(body)}
            for number, (summary, body) in enumerate(bodies.items(), 1)
        }
