"""Holds requests back until their grammars are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraint import CompiledGrammar
from engine.grammar.store import GrammarKey
from engine.protocol import Submit


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose grammar is known to compile, or not to, or whose client has given it up."""

    submit: Submit
    grammar: CompiledGrammar | None
    problem: str
    """Why the grammar cannot be compiled."""
    is_aborted: bool = False
    """Its client has given it up. It has no grammar any more."""


class GrammarAdmission:
    """The requests that wait for the compiler. A grammar that several wait for is compiled once."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._waiting: dict[GrammarKey, list[Submit]] = {}
        self._aborted: list[Submit] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._aborted)

    @property
    def has_compiled(self) -> bool:
        """Whether `take` does anything."""
        return bool(self._aborted) or self._compiler.has_compiled

    def compiled(self, submit: Submit) -> CompiledGrammar | None:
        """Returns the request's grammar if it has been compiled lately."""
        return self._compiler.cached(_key(submit))

    def wait(self, submit: Submit) -> None:
        """Has the request's grammar compiled; the request waits until `take`."""
        key = _key(submit)
        if key not in self._waiting:
            self._waiting[key] = []
            self._compiler.start(key)
        self._waiting[key].append(submit)

    def abort(self, request_id: str) -> None:
        """Ends a request's wait, if it waits. Its grammar is compiled nevertheless."""
        for waiting in self._waiting.values():
            for submit in waiting:
                if submit.request_id == request_id:
                    waiting.remove(submit)
                    self._aborted.append(submit)
                    return

    def take(self) -> Iterator[Admitted]:
        """Yields the requests whose grammars were compiled, or that were aborted, since the last call."""
        aborted, self._aborted = self._aborted, []
        for submit in aborted:
            # It generates nothing.
            yield Admitted(msgspec.structs.replace(submit, grammar=None), None, "", is_aborted=True)
        for key, compiled in self._compiler.take():
            for submit in self._waiting.pop(key):
                if isinstance(compiled, CompiledGrammar):
                    yield Admitted(submit, compiled, "")
                else:
                    yield Admitted(submit, None, compiled)


def _key(submit: Submit) -> GrammarKey:
    assert submit.grammar is not None
    measured = submit.grammar.compiled_bytes
    # The grammar is the same whatever was measured.
    grammar = msgspec.structs.replace(submit.grammar, compiled_bytes=0)
    return GrammarKey(submit.tenant, grammar, measured)
