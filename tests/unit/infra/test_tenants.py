"""Shares of organizations in the environment."""

import pytest

from domain.ids import OrganizationId
from domain.plan import TenantShare
from infra.settings import BadSettingError, Settings
from infra.tenants import tenant_shares

A, B = OrganizationId("org_a"), OrganizationId("org_b")


def test_a_weight_alone_and_a_weight_with_a_guarantee() -> None:
    shares = (TenantShare(A, 5.0), TenantShare(B, 2.0, engines=4, trainers=1, sandboxes=16))
    assert tenant_shares("org_a=5, org_b=2:4:1:16") == shares
    assert tenant_shares("") == ()


@pytest.mark.parametrize(
    "text", ["org_a", "=1", "org_a=0", "org_a=-1", "org_a=nan", "org_a=1:2", "org_a=1:1:-1:1",
             "org_a=x", "org_a=1,org_a=2"],
)  # fmt: skip
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        tenant_shares(text)


def test_the_setting_is_read_and_a_bad_one_is_named() -> None:
    assert Settings.from_env({"VENUS_TENANTS": "org_a=5"}).tenants == (TenantShare(A, 5.0),)
    assert Settings.from_env({}).tenants == ()
    with pytest.raises(BadSettingError, match="VENUS_TENANTS"):
        Settings.from_env({"VENUS_TENANTS": "org_a"})
