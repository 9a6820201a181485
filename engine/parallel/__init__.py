"""Runs one engine over several processes that share each step: the ranks of a tensor-parallel group.

Rank 0 is the engine's process: it schedules, draws tokens and talks to clients. It sends the others one small
message per step; they compute their parts of the model.
"""
