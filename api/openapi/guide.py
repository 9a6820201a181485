"""Holds texts of the OpenAPI document that belong to no single route: introduction, tags, parameters."""

from __future__ import annotations

DESCRIPTION = """\
Rootstock serves one base model and your own LoRA adapters of it through an API that is compatible with
OpenAI's: point the stock client at `https://HOST/v1` and send `base:adapter` as the model.

**Authentication.** Send an API key as `Authorization: Bearer <key>`. Inference keys generate, upload files
and manage adapters; admin keys manage the organization under `/v1/organization`.

**Errors.** A failed request is answered with a JSON object whose `error` has a `message` for people, a
`code` for programs, and the `param` that caused it. `x-should-retry` says whether the same request can
succeed later.

**Idempotent requests.** Send an `Idempotency-Key` header with any POST: repeated within a day with the same
key, the request runs once and its first response is sent again, with `idempotency-replayed: true`.

**Pagination.** Lists take `limit`, `order` and `after`, the id of the last object of the page before, and
say in `has_more` whether there is another page.

**Request ids.** Every response has an `x-request-id`. Quote it when you report a problem.
"""
KEYS = "An API key: `Authorization: Bearer <key>`."
EVENTS = (
    " With `stream`, server-sent events: the `data` of each is one JSON object, and the last event is "
    "`data: [DONE]`."
)
TAGS = {
    "Chat": "Generate the next message of a conversation.",
    "Completions": "Continue a text.",
    "Responses": "Generate responses that can be stored, continued and run in the background.",
    "Conversations": "Conversations that responses read from and add to.",
    "Batches": "Files of requests that run in the background, at a price of their own.",
    "Tokens": "Text to tokens and back, without generating.",
    "Models": "The models that your key can use, with their context length and prices.",
    "Files": "Files of adapters, calibration samples and batches.",
    "Uploads": "Large files, uploaded in parts.",
    "Adapters": "LoRA adapters of your own and their versions.",
    "Shared adapters": "Adapters that you share with other organizations, and theirs that you use.",
    "Calibration": "Jobs that measure a version of an adapter before it serves, and their reports.",
    "Usage": "What was used and what it costs: reports, exports and receipts of single requests.",
    "Organization": "Your organization and its plan.",
    "Projects": "Projects, their members, service accounts and rules.",
    "Keys": "API keys of projects and of administrators.",
    "Users": "Members, invitations and roles.",
    "Single sign-on": "The identity provider that members sign in with by SAML 2.0.",
    "Provisioning": "SCIM tokens of your identity provider, and the roles of its groups.",
    "Workload identity": "CI systems and other workloads that get short-lived keys for tokens of their own.",
    "Limits": "Rate limits, budgets, spend limits and spend alerts.",
    "Audit": "The log of all changes, and proof that it is complete.",
    "Retention": "How long data is kept, legal holds, and certificates of deletion.",
    "Billing": "Payment, invoices, balance and credits.",
    "Webhooks": "Endpoints that receive events, and their deliveries.",
    "SLA": "Service levels promised and delivered.",
    "Operations": "Health and metrics of the server. They need no API key.",
}
"""In the order of the reference."""
GROUPS = {
    "Inference": ["Responses", "Conversations", "Chat", "Completions", "Batches", "Tokens", "Models"],
    "Adapters": ["Files", "Uploads", "Adapters", "Shared adapters", "Calibration"],
    "Organization": ["Organization", "Projects", "Keys", "Users", "Audit", "Retention"],
    "Identity": ["Single sign-on", "Provisioning", "Workload identity"],
    "Money and limits": ["Usage", "Limits", "Billing", "Webhooks", "SLA"],
    "Server": ["Operations"],
}
SUMMARIES = {
    "createChatCompletion": "Create a chat completion",
    "createCompletion": "Create a completion",
    "usageCompletions": "Report usage",
    "usageExport": "Export usage",
    "costs": "Report costs",
    "exchangeToken": "Exchange a token for a key",
    "verifyAuditLogs": "Verify the audit log",
    "listAuditLogs": "List audit log entries",
    "livez": "Check that the process is alive",
    "readyz": "Check that requests can be served",
    "health": "Check that requests can be served (vLLM's name)",
    "metrics": "Retrieve metrics",
}
"""Of operations whose id does not read as a sentence."""
SPELLINGS = {"api": "API", "sla": "SLA", "pdf": "PDF", "scim": "SCIM", "saml": "SAML"}
PATH_PARAMETERS = {
    "data_class": "The class of data.",
    "legal_hold_id": "The legal hold.",
    "certificate_id": "The certificate of deletion.",
    "adapter": "The adapter's id or name.",
    "version": "The version's number.",
    "share_id": "The share's id.",
    "received_share_id": "The id of a share that another organization offers.",
    "job_id": "The calibration job's id.",
    "batch_id": "The batch's id.",
    "chart": "The chart's name, as the report has it.",
    "file_id": "The file's id.",
    "upload_id": "The upload's id.",
    "model": "`base`, `base:adapter`, `base:adapter@version`, `base:owner/adapter` or an adapter's id.",
    "generation_id": "The `id` of the completion or response.",
    "response_id": "The response's id.",
    "conversation_id": "The conversation's id.",
    "item_id": "The item's id.",
    "project_id": "The project's id.",
    "user_id": "The user's id.",
    "role_id": "The role's id, such as `role-admin`.",
    "workload_identity_provider_id": "The workload identity provider's id.",
    "workload_identity_federation_rule_id": "The federation rule's id.",
    "scim_token_id": "The SCIM token's id.",
    "signing_key_id": "The signing key's id.",
    "group_id": "The group's id.",
    "invite_id": "The invitation's id.",
    "key_id": "The admin key's id.",
    "api_key_id": "The key's id.",
    "service_account_id": "The service account's id.",
    "limit_id": "The limit's id.",
    "rate_limit_id": "`rl-` and the model's name; `rl-*` for all models together.",
    "alert_id": "The spend alert's id.",
    "invoice_id": "The invoice's id.",
    "webhook_endpoint_id": "The webhook endpoint's id.",
    "delivery_id": "The delivery's id.",
}
