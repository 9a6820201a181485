"""Collects the routes of `/v1/organization`, except for usage reports."""

from __future__ import annotations

from api.openapi.routing import Router
from api.organization import (
    account,
    admin_keys,
    audit_logs,
    data_retention,
    deletion_certificates,
    groups,
    invites,
    limits,
    project_keys,
    project_rules,
    project_users,
    projects,
    rate_limits,
    retention,
    roles,
    saml_connection,
    scim_tokens,
    service_accounts,
    signing_keys,
    spend_limits,
    users,
    workload_identity,
)

router = Router()
for part in (
    account,
    admin_keys,
    audit_logs,
    data_retention,
    signing_keys,
    retention,
    deletion_certificates,
    invites,
    users,
    roles,
    saml_connection,
    scim_tokens,
    groups,
    projects,
    project_users,
    service_accounts,
    project_keys,
    workload_identity,
    project_rules,
    limits,
    rate_limits,
    spend_limits,
):
    router.include_router(part.router)
