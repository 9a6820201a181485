"""Constrains output to grammars: compiles them, follows each choice through them, and fills token masks."""
