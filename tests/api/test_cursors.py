"""Cursors of pages: on every list, what is not the id of an object in it is refused in the same words."""

from __future__ import annotations

import httpx

from tests.api.everything import Everything, Operation, absent
from tests.api.test_isolation_matrix import LISTED, NOT_IDS

CURSORS = ("after", "before")
CHANNEL = {"type": "email", "recipients": ["ann@ours.example"]}
MALFORMED = ("", "x", "'", "a b", "\x00", "a\x00b", "é", "1" * 1000, "9" * 9, "@1", "rl-none", "role-none")
"""Of no list."""
TURNS = 4
"""Each list is asked for one of so many of the ids that it surely knows nothing of, and all lists for all."""


async def ask(both: Everything, operation: Operation, **query: str) -> httpx.Response:
    client = both.ours.admin if operation.of_account else both.ours.inference
    return await client.get(operation.url(both.ours.ids | NOT_IDS), params=query)


async def listed(both: Everything, operation: Operation, **query: str) -> list[str]:
    """Ids of the objects on the page."""
    return [one["id"] for one in (await ask(both, operation, limit="100", **query)).json()["data"]]


async def test_every_list_refuses_what_is_no_cursor_of_it(both: Everything) -> None:
    theirs = [id_ for kind, id_ in both.theirs.ids.items() if kind != "model"]
    found, asked, turn = {}, set(), 0
    for operation in both.operations():
        for name in set(operation.query_parameters) & set(CURSORS):
            asked.add(operation.name)
            words = f"Invalid value for '{name}': it must be the id of an object in this list."
            wanted = (400, {"message": words, "type": "invalid_request_error", "param": name})
            mine = await listed(both, operation)
            others = [id_ for kind, id_ in both.ours.ids.items() if id_ not in mine and kind != "model"]
            nearest = [both.theirs.ids[kind] for kind in [LISTED.get(operation.name)] if kind is not None]
            turn = (turn + 1) % TURNS
            far = [*theirs, *map(absent, theirs)][turn::TURNS]
            own = others if name == "after" else others[turn::TURNS]
            for cursor in (*MALFORMED, *nearest, *map(absent, nearest), *far, *own):
                for more in ({}, {"stream": "true"}) if "stream" in operation.query_parameters else ({},):
                    answer = await ask(both, operation, **{name: cursor}, **more)
                    error = answer.json().get("error", {})
                    code = error.pop("code", None)
                    if (answer.status_code, error) != wanted or code != "invalid_value":
                        found[f"{operation.name} {name}={cursor[:40]!r}"] = answer.text[:200]
    assert len(asked) >= 20
    assert found == {}


async def test_every_list_goes_on_from_each_of_its_objects(both: Everything) -> None:
    asked = set()
    for operation in both.operations():
        for name in set(operation.query_parameters) & set(CURSORS):
            ids = [one["id"] for one in (await ask(both, operation, limit="100")).json()["data"]]
            pages = [
                (await ask(both, operation, limit="100", **{name: cursor})).json()["data"] for cursor in ids
            ]
            shown = [[one["id"] for one in data] for data in pages]
            expected = [ids[n + 1 :] if name == "after" else ids[:n] for n in range(len(ids))]
            assert shown == expected, (operation.name, name)
            if len(ids) > 1:
                asked.add(operation.name)
    assert len(asked) >= 6


async def test_an_object_that_a_filter_leaves_out_is_still_a_place_to_go_on_from(
    both: Everything,
) -> None:
    project = both.ours.ids["project_id"]
    path = "/v1/organization/projects"
    await both.ours.admin.post(f"{path}/{project}/archive")
    listed = (await both.ours.admin.get(path, params={"after": project})).json()["data"]
    assert len(listed) == 1
    assert (
        await both.ours.inference.get("/v1/files", params={"after": both.ours.files[1], "purpose": "none"})
    ).json()["data"] == []


async def test_a_client_may_delete_the_objects_of_a_page_before_the_next(both: Everything) -> None:
    ours, theirs = both.ours, both.theirs
    project = f"/v1/organization/projects/{ours.ids['project_id']}"
    for user in (await ours.admin.get("/v1/organization/users")).json()["data"]:
        await ours.admin.post(f"{project}/users", json={"user_id": user["id"], "role": "member"})
    for number in range(2):
        hook = {"name": "hook", "url": "https://ours.example/", "event_types": ["invoice.finalized"]}
        await ours.admin.post("/v1/webhook_endpoints", json=hook)
        alert = {"threshold_amount": 1 + number, "currency": "USD", "interval": "month"}
        await ours.admin.post(f"{project}/spend_alerts", json=alert | {"notification_channel": CHANNEL})
    await theirs.inference.delete(f"/v1/files/{theirs.files[0]}")
    of_others, lists = [theirs.files[0]], []
    for client, path in (
        (ours.inference, "/v1/files"),
        (ours.admin, "/v1/webhook_endpoints"),
        (ours.admin, f"{project}/spend_alerts"),
        (ours.admin, f"{project}/users"),
    ):
        there = [one["id"] for one in (await client.get(path)).json()["data"]]
        found, after = [], {}
        while page := (await client.get(path, params=after | {"limit": "1"})).json()["data"]:
            found.append(page[0]["id"])
            assert (await client.delete(f"{path}/{found[-1]}")).is_success, path
            after = {"after": found[-1]}
        assert len(found) > 1
        assert found == there
        lists.append((client, path))
        of_others.append(found[0])
    for number, (client, path) in enumerate(lists):
        for place, cursor in enumerate(of_others):
            wanted = 200 if place == number + 1 else 400
            assert (await client.get(path, params={"after": cursor})).status_code == wanted, (path, place)
    of_all = await ours.admin.get("/v1/organization/spend_alerts", params={"after": of_others[3]})
    assert of_all.status_code == 400, "it was an alert of a project"


async def test_a_page_of_a_report_must_be_one_of_it(both: Everything) -> None:
    for path in ("usage/completions", "costs"):
        for page in ("", "x", "\x00", "page_1", "1" * 400):
            answer = await both.ours.admin.get(
                f"/v1/organization/{path}", params={"start_time": "86400", "page": page}
            )
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "page")
