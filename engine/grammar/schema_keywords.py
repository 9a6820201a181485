"""Lists the keywords of JSON Schema that hold schemas, of those that grammars are compiled from."""

from __future__ import annotations

DEFINITIONS = ("$defs", "definitions")
NAMED_SCHEMAS = ("properties", "patternProperties", *DEFINITIONS)
"""Objects of schemas."""
SCHEMA_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
SINGLE_SCHEMAS = ("items", "additionalItems", "additionalProperties")
"""`items` may be a schema or a list of them."""
