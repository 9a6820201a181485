"""The command `plan-capacity`; `engine.planner` computes the plan."""
