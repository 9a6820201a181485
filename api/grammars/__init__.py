"""Checks the grammars of requests in limited processes, before the engine gets them, and caches results."""
