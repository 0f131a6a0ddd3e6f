"""What an audit event calls a request."""

import pytest

from api.audit.call import action_of


@pytest.mark.parametrize(
    ("method", "route", "action"),
    [
        ("POST", "/v1/jobs", "jobs.create"),
        ("POST", "/v1/jobs/{job_id}/pause", "jobs.pause"),
        ("PATCH", "/v1/jobs/{job_id}", "jobs.update"),
        ("DELETE", "/v1/models/{name}", "models.delete"),
        ("PUT", "/v1/secrets/{name}", "secrets.put"),
        ("POST", "/v1/environments/{name}/versions", "environments.versions.create"),
        ("POST", "/v1/api-keys/{key_id}/rotate", "api-keys.rotate"),
        (
            "POST",
            "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
            "webhooks.deliveries.redeliver",
        ),
    ],
)
def test_an_action_is_the_address_without_its_names(method: str, route: str, action: str) -> None:
    assert action_of(method, route) == action
