"""Renders the double's pages for people: the portal, a checkout, an invoice; each says that it is a double.

A page needs no sign-in: its address is the secret, as with Stripe's.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from examples.stripe_double.state import Object, Refused, State

Ask = Callable[[str, str, Object], tuple[int, Any]]
"""Sends a request to the double: method, path, form."""
PREFIX = "/pages/"
_NOTICE = (
    "Test mode. This is a double of Stripe that Rootstock's demo runs on this machine: "
    "no card is charged, and no money moves."
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    ".notice{background:#fff3cd;border:1px solid #d9b84a;padding:.6rem 1rem;border-radius:.4rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.35rem .5rem;"
    "border-bottom:1px solid #ddd}td:last-child{text-align:right}button{font:inherit;padding:.3rem .9rem}"
)


def answer(books: State, ask: Ask, method: str, path: str, form: Object) -> tuple[int, str]:
    """Returns the status, and the page or, with 303, the redirect's target."""
    kind, _, one = path.removeprefix(PREFIX).partition("/")
    try:
        if kind == "checkout":
            return _checkout(books.get(one, "checkout.session"), ask, method)
        if kind == "invoice":
            return _invoice(books.get(one, "invoice"), ask, method, path)
        if kind == "billing":
            return _portal(books, books.get(one, "billing_portal.session"), ask, method, path, form)
    except Refused as refused:
        return refused.status, _page("Not possible", f"<p>{escape(str(refused))}</p>")
    return 404, _page("Not found", "<p>There is no such page.</p>")


def _checkout(session: Object, ask: Ask, method: str) -> tuple[int, str]:
    if method == "POST" and session["status"] == "open":
        ask("POST", "/double/pay_checkout", {"session": session["id"]})
        return 303, session["success_url"]
    if session["status"] != "open":
        return 200, _page("Paid", f"<p><a href='{escape(session['success_url'])}'>Back</a></p>")
    return 200, _page(
        f"Pay {_usd(session['amount_total'])}", _button("", f"Pay {_usd(session['amount_total'])}")
    )


def _invoice(invoice: Object, ask: Ask, method: str, path: str) -> tuple[int, str]:
    if method == "POST":
        ask("POST", f"/v1/invoices/{invoice['id']}/pay", {})
        return 303, path
    rows = [(line["description"], _usd(line["amount"])) for line in invoice["lines"]["data"]]
    rows.append(("Total", _usd(invoice["total"])))
    body = _table(rows) + f"<p>This invoice is <b>{invoice['status']}</b>.</p>"
    return 200, _page(
        invoice["description"] or invoice["id"], body + (_button("", "Pay") if _is_open(invoice) else "")
    )


def _portal(books: State, session: Object, ask: Ask, method: str, path: str, form: Object) -> tuple[int, str]:
    customer = books.get(session["customer"], "customer")
    if method == "POST":
        works = form.get("card") == "ok"
        ask("POST", "/double/card", {"customer": customer["id"], "works": works})
        return 303, path
    works = customer["card"] == "ok"
    rows = [
        (
            _link(f"{PREFIX}invoice/{one['id']}", one["description"] or one["id"], one["status"]),
            _usd(one["total"]),
        )
        for one in books.all("invoice", customer=customer["id"])
        if one["total"]
    ]
    body = (
        f"<p>{escape(customer['name'] or customer['id'])}</p>"
        f"<p>The card on file {'works' if works else '<b>is declined</b>'}. "
        + _button("declined" if works else "ok", "Have it declined" if works else "Take one that works")
        + "</p>"
        + (_table(rows, is_html=True) if rows else "<p>No invoice yet.</p>")
        + f"<p><a href='{escape(session['return_url'] or '/')}'>Back</a></p>"
    )
    return 200, _page("Customer portal", body)


def _is_open(invoice: Object) -> bool:
    return bool(invoice["status"] == "open")


def _button(card: str, text: str) -> str:
    return (
        f"<form method='post' style='display:inline'><input type='hidden' name='card' value='{card}'>"
        f"<button>{escape(text)}</button></form>"
    )


def _link(address: str, text: str, status: str) -> str:
    return f"<a href='{escape(address)}'>{escape(text)}</a>, {escape(status)}"


def _table(rows: list[tuple[str, str]], *, is_html: bool = False) -> str:
    cells = [
        f"<td>{what if is_html else escape(what)}</td><td>{escape(amount)}</td>" for what, amount in rows
    ]
    return f"<table><tr>{'</tr><tr>'.join(cells)}</tr></table>"


def _page(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)} (test mode)</title>"
        f"<style>{_STYLE}</style><p class='notice'>{_NOTICE}</p><h1>{escape(title)}</h1>{body}</html>"
    )


def _usd(cents: int) -> str:
    sign, cents = ("-" if cents < 0 else ""), abs(cents)
    return f"{sign}${cents // 100:,}.{cents % 100:02}"
