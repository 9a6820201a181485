"""The clients that docs/clients.md has examples of: pinned packages, installed apart from ours."""
