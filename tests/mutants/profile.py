"""A pytest plugin for mutant runs: Hypothesis draws the same examples each time and does not shrink."""

from hypothesis import Phase, settings

settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutants")
