"""Operators from the command line."""

from __future__ import annotations

from tests.cli.test_accounts import Run, run, table

__all__ = ["run"]


def test_operators_come_and_go(run: Run) -> None:
    assert run("operator", "list")[1].splitlines() == ["EMAIL  NAME  MAY  CREATED"]
    words = "long enough words\n"
    made = run("operator", "add", "Op@service.example", "--name", "Olga", typed=words)
    assert made == (0, "op@service.example can sign in at /console\n", "")
    assert run("operator", "add", "eve@service.example", "--read-only", typed=words)[0] == 0
    assert [row[:3] for row in table(run("operator", "list")[1])] == [
        ["op@service.example", "Olga", "change"],
        ["eve@service.example", "-", "look"],
    ]
    # The service is no tenant, for any command.
    assert table(run("tenant", "list")[1]) == []
    assert run("tenant", "disable", "operator")[0] == 1
    assert run("user", "create", "operator", "x@service.example", typed=words)[0] == 1
    for wrong, typed, said in (
        ("op@service.example", words, "is taken"),
        ("op2@service.example", "short\n", "password must have"),
        ("nobody", words, "email"),
    ):
        code, _, error = run("operator", "add", wrong, typed=typed)
        assert code == 1
        assert said in error, error
    code, token, _ = run("operator", "reset", "eve@service.example", "--second-factor")
    assert code == 0
    assert token.startswith("rs_reset_")
    assert run("operator", "reset", "nobody@service.example")[0] == 1
    assert run("operator", "remove", "nobody@service.example")[0] == 1
    # Somebody always stays who may change things.
    assert run("operator", "remove", "op@service.example")[0] == 1
    assert run("operator", "remove", "eve@service.example")[0] == 0
    assert "operator" in run("audit", "list")[1]
    assert run("audit", "verify")[0] == 0
