"""Puts the documentation site into the wheel. All else about the distribution is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSite(build_py):
    """Builds the site beside the packages. An editable installation has none: `make docs` builds it there."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            script = Path(__file__).parent / "docs" / "site" / "build.py"
            runpy.run_path(str(script))["build"](Path(self.build_lib) / "api" / "site" / "built")


setup(cmdclass={"build_py": BuildWithSite})
