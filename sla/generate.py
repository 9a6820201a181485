"""`python -m sla.generate` writes the Prometheus rules and the Grafana dashboard under `deploy/`."""

from __future__ import annotations

from pathlib import Path

from sla.dashboard import dashboard_json
from sla.rules import rules_yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
FILES = {DEPLOY / "prometheus" / "rules.yml": rules_yaml, DEPLOY / "grafana" / "serving.json": dashboard_json}

if __name__ == "__main__":
    for path, content in FILES.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content())
