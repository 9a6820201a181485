"""Builds the links of the OpenAPI document: which operations take the id that another one created or listed.

It knows where a response has the id. Which operations take it follows from the names of their path
parameters.
"""

from __future__ import annotations

import re
from typing import Any

ID = "$response.body#/id"
FIRST = "$response.body#/data/0/id"
SOURCES: dict[str, dict[str, str]] = {
    "createAdapter": {"adapter": ID, "job_id": "$response.body#/calibration_job"},
    "createAdapterVersion": {
        "version": "$response.body#/version",
        "job_id": "$response.body#/calibration_job",
    },
    "createCalibrationJob": {"job_id": ID},
    "createFile": {"file_id": ID},
    "createUpload": {"upload_id": ID},
    "createBatch": {"batch_id": ID},
    "createChatCompletion": {"generation_id": ID},
    "createCompletion": {"generation_id": ID},
    "createResponse": {"generation_id": ID, "response_id": ID},
    "createConversation": {"conversation_id": ID},
    "createProject": {"project_id": ID},
    "createInvite": {"invite_id": ID},
    "createWorkloadIdentityProvider": {"workload_identity_provider_id": ID},
    "createFederationRule": {"workload_identity_federation_rule_id": ID},
    "createScimToken": {"scim_token_id": ID},
    "createSigningKey": {"signing_key_id": ID},
    "createAdminKey": {"key_id": ID},
    "createProjectKey": {"api_key_id": ID},
    "createServiceAccount": {"service_account_id": ID},
    "createSpendAlert": {"alert_id": ID},
    "createProjectSpendAlert": {"alert_id": ID},
    "createWebhookEndpoint": {"webhook_endpoint_id": ID},
    "setLimit": {"limit_id": ID},
    "addProjectUser": {"user_id": ID},
    "listModels": {"model": FIRST},
    "listUsers": {"user_id": FIRST},
    "listRoles": {"role_id": FIRST},
    "createGroup": {"group_id": ID},
    "listGroups": {"group_id": FIRST},
    "listInvoices": {"invoice_id": FIRST},
    "placeLegalHold": {"legal_hold_id": ID},
    "listDeletionCertificates": {"certificate_id": FIRST},
    "listRateLimits": {"rate_limit_id": FIRST},
    "listWebhookDeliveries": {"delivery_id": FIRST},
}
"""By operation, where its answer has the values of path parameters."""
_PARAMETER = re.compile(r"\{(\w+)\}")


def add_links(document: dict[str, Any]) -> None:
    """Put into each source's successful answers a link to every operation that takes what is in it."""
    operations = {
        operation["operationId"]: (path, operation)
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }
    for name, values in SOURCES.items():
        path, source = operations[name]
        links = {
            target: {"operationId": target, "parameters": parameters}
            for target, (other, _) in operations.items()
            if (parameters := _passed_on(path, values, other)) is not None
        }
        for status, response in source["responses"].items():
            if status.startswith("2"):
                response["links"] = links


def _passed_on(path: str, values: dict[str, str], target: str) -> dict[str, str] | None:
    """The target's path parameters, from the answer and from the request; None when it takes none of the
    answer's, or one that neither has.
    """
    found = {}
    known = {name: f"$request.path.{name}" for name in _PARAMETER.findall(path)} | values
    for name in _PARAMETER.findall(target):
        if name not in known:
            return None
        found[name] = known[name]
    return found if found.keys() & values.keys() else None
