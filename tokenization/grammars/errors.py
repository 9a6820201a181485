"""Defines what goes wrong with a grammar that is to be checked."""

from __future__ import annotations

from tokenization.grammars.messages import SchemaPath


class GrammarRefused(Exception):
    """Requests cannot be held to the grammar.

    Args:
        path: the part of the schema at fault; empty: all of it, or not a schema.
        reason: what is wrong with it.
        is_final: a repeated check comes to the same result.
    """

    def __init__(self, path: SchemaPath, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.is_final = is_final


class GrammarsUnsupported(Exception):
    """The base's tokenizer does not allow grammars."""


class GrammarsUnavailable(Exception):
    """No process can be started to check grammars."""
