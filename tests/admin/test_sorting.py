"""Tables sorted by a column of the URL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from admin.web.form_errors import FieldError
from admin.web.sorting import Column, Sort, headings, read_sort, sort_rows
from tenants.actors import OPERATOR
from tenants.key_restrictions import KeyRestrictions
from tests.admin.conftest import Site, sign_in
from tests.admin.test_usage import table

COLUMNS = [Column("Name", "name"), Column("Size", "size", is_number=True, starts_descending=True), Column("")]


def test_the_sort_is_read_and_written() -> None:
    assert read_sort("", COLUMNS) is None
    for written in ("name", "-size"):
        assert str(read_sort(written, COLUMNS)) == written
    for unknown in ("rank", "--size", "-"):
        with pytest.raises(FieldError) as refused:
            read_sort(unknown, [*COLUMNS[:2]])
        assert refused.value.field == "sort"


def test_a_click_turns_the_direction_around() -> None:
    unsorted = headings(COLUMNS, None)
    assert [(one.sort, one.direction) for one in unsorted] == [("name", ""), ("-size", ""), ("", "")]
    by_size = headings(COLUMNS, Sort("size", True))
    assert [(one.sort, one.direction) for one in by_size] == [("name", ""), ("size", "descending"), ("", "")]
    assert headings(COLUMNS, Sort("size", False))[1].sort == "-size"


def test_rows_without_a_value_are_last_and_equals_keep_their_order() -> None:
    rows = [("a", 2), ("b", None), ("c", 1), ("d", 2)]

    def names(is_descending: bool) -> str:
        found = sort_rows(rows, Sort("size", is_descending), lambda row, column: row[1])
        return "".join(name for name, _ in found)

    assert names(False) == "cadb"
    assert names(True) == "adcb"


async def test_adapters_are_sorted_and_totalled(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for name in ("Beech", "ash", "cedar"):
        await site.place.make_ready(await site.place.create(name.lower()), name[0].encode().hex()[0])
    await site.place.create("oak", "sql")
    names = [text.partition(" ")[0] for text in table(await visitor.get("/adapters?sort=name"))]
    assert names == ["ash", "beech", "cedar", "oak", "4"]
    page = await visitor.get("/adapters?sort=-size")
    assert 'aria-sort="descending"><a class="sort" href="/console/adapters?sort=size">Size' in page.text
    assert [*table(page)][3] == "oak", "which has no size yet"
    assert table(page)["4 adapters"][3] == "300 B"
    assert "1–4 of 4 adapters, by size." in page.text
    assert "of 4 adapters" not in (await visitor.get("/adapters")).text
    assert (await visitor.get("/adapters?sort=secret")).status_code == 404


async def test_keys_are_sorted(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    soon = datetime.now(UTC) + timedelta(days=1)
    for name, expires_at in (("Beech", None), ("ash", soon + timedelta(days=9)), ("cedar", soon)):
        await site.keys.create(
            site.tenant_id, name, OPERATOR, restrictions=KeyRestrictions(expires_at=expires_at)
        )
    for sort, first in (("name", "ash"), ("-name", "cedar"), ("expires_at", "cedar"), ("-expires_at", "ash")):
        page = await visitor.get(f"/keys?sort={sort}&show=all")
        names = [name for name in table(page) if name in ("Beech", "ash", "cedar")]
        assert names[0] == first, sort
    assert "/console/keys?show=all&amp;sort=name" in page.text, "sorting keeps revoked keys"
