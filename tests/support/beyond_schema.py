"""Lists the rules of requests that JSON Schema cannot state, and has schemathesis accept refusals by them.

schemathesis loads this module for a run of its command line:
`SCHEMATHESIS_HOOKS=tests.support.beyond_schema schemathesis run URL/openapi.json --checks all -H ...`. Only
refusals with the statuses and the parameters below are accepted, and every other check still applies to them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import schemathesis
from schemathesis.core.failures import Failure
from schemathesis.openapi.checks import EnsureResourceAvailability
from schemathesis.specs.openapi.checks import RejectedPositiveData

from tests.support import character_classes

character_classes.install()
STATUSES = frozenset({400, 413, 415, 422})
BEYOND_A_SCHEMA = {
    "after": "must be in the list",
    "before": "must be in the list, and is not given with `after`, another parameter",
    "page": "must be a page of this very report",
    "end_time": "is compared with start_time, another parameter",
    "limit": "of a report is bounded by bucket_width, another parameter",
    "month": "must have begun",
    "base_model": "must be the one that is served",
    "version": "is compared with the one in the model's name",
    "createCalibrationJob model": "must be a version whose files are stored",
    "best_of": "is compared with n",
    "logit_bias": "takes tokens of the vocabulary",
    "response_format.json_schema.schema": "has to compile",
    "response_format": "is of one kind, and goes with no other constraint of the output",
    "min_tokens": "goes with no constraint of the output, of which there are four",
    "ignore_eos": "goes with no constraint of the output, of which there are four",
    "regex": "has to compile",
    "grammar": "has to compile",
    "choice": "has a bound on its bytes, and is compiled",
    "tools": "need a model whose template takes tools",
    "tools[].function.name": "must be another than those before",
    "tools[].function.parameters": "are bounded in depth and size",
    "tools[].function.parameters.type": "must be object, in a schema that may have any field",
    "tools[].function.parameters.properties": "must be an object, in a schema that may have any field",
    "tools[].custom.name": "must be another than those before",
    "tools[].custom.format": "needs a model that is held to it",
    "tools[].custom.format.grammar.definition": "has to compile, without recursion",
    "tool_choice": "needs tools, and not every choice is supported yet",
    "tool_choice.function.name": "must be in tools",
    "tool_choice.allowed_tools.tools[].function.name": "must be in tools",
    "tool_choice.custom.name": "must be in tools",
    "tool_choice.allowed_tools.tools[].custom.name": "must be in tools",
    "reasoning_effort": "needs a model that thinks, and is compared with other fields",
    "thinking_budget": "needs a model that thinks, and is compared with the effort",
    "thinking_token_budget": "needs a model that thinks, and is compared with the budget's other name",
    "chat_template_kwargs.enable_thinking": "needs a model that thinks, and is compared with the effort",
    "chat_template_kwargs.thinking": "needs a model that thinks, and is compared with the effort",
    "messages[].reasoning": "needs a model that thinks, and a message of the role assistant",
    "messages[].reasoning_content": "needs a model that thinks, and a message of the role assistant",
    "messages[].tool_calls": "need a model whose template takes tools",
    "messages[].role": "needs a model whose template takes tools, if it is tool",
    "messages[].tool_call_id": "must be in an earlier message",
    "input": "has results of calls that are in it, too",
    "tools[].name": "must be another than those before",
    "tools[].parameters": "are bounded in depth and size",
    "tools[].parameters.type": "must be object, in a schema that may have any field",
    "tools[].parameters.properties": "must be an object, in a schema that may have any field",
    "tools[].format": "needs a model that is held to it",
    "tools[].format.definition": "has to compile, without recursion",
    "tool_choice.name": "must be in tools",
    "tool_choice.tools[].name": "must be in tools",
    "text.format": "needs a model that is held to it",
    "text.format.schema": "has to compile",
    "reasoning.effort": "needs a model that reasons",
    "createInvite projects": "have an id of their own each",
    "testWebhookEndpoint url": "must answer",
    "setSamlConnection metadata": "is a document of another kind than JSON",
    "setSamlConnection sso_url": "must be https",
    "setSamlConnection certificates": "are certificates of keys that are long enough",
    "networks": "have no bits set after the prefix",
    "file": "has its name outside of the form's schema",
    "expires_after[seconds]": "is digits in a form, where a schema's integer may be 3600.0",
    "bytes": "are bounded by the plan",
    "verification.jwks": "are keys",
    "public_key": "is a key",
    "subject_token": "is signed by an issuer that is trusted",
    "attribute_matchers": "have claims of their own, printable and with one * at most",
    "amount": "is bounded by the plan",
}
"""Parameters, or `operationId parameter`, and what no schema says of them."""

ABSENT_AT_FIRST = {
    "retrieveModelPermissions": "a new project has none, which allows every model",
    "retrieveAdapterSignature": "a new version is not signed yet",
    "retrieveSpendLimit": "a new organization has none",
    "retrieveProjectSpendLimit": "a new project has none",
}
"""Operations that answer 404 about something that was created, and why."""


@schemathesis.hook
def filter_failure(
    context: schemathesis.HookContext, failure: Failure, case: schemathesis.Case, response: Any
) -> bool:
    """Returns whether the failure is one: False for a refusal by one of the rules above, and for what is
    absent at first.
    """
    if isinstance(failure, EnsureResourceAvailability):
        return case.operation.definition.raw["operationId"] not in ABSENT_AT_FIRST
    return not (isinstance(failure, RejectedPositiveData) and is_beyond_a_schema(case, response))


def is_beyond_a_schema(case: schemathesis.Case, response: Any) -> bool:
    """Returns whether the response refuses the request for a rule that no schema states."""
    if response.status_code == 431:
        return True  # parameters are bounded together, by the size of the request line
    if response.status_code not in STATUSES:
        return False
    parameter = re.sub(r"\[\d+\]", "[]", json.loads(response.content)["error"]["param"] or "")
    operation_id = case.operation.definition.raw["operationId"]
    return not BEYOND_A_SCHEMA.keys().isdisjoint({parameter, f"{operation_id} {parameter}"})
