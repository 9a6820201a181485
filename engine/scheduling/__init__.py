"""Plans each step: which requests run, with how many tokens, and which wait, are preempted or rejected."""
