"""Sharing an adapter, in the console of both organizations."""

from __future__ import annotations

import html
from datetime import UTC, datetime

import httpx
import pytest

from adapters.sharing.models import ShareState
from billing.rates import Rate
from engine.protocol import AdapterRef, Usage
from tenants.share_terms import ShareTerms
from tests.admin.conftest import Site, sign_in
from tests.admin.test_adapters import act
from tests.support import booked
from tests.support.onboarding import BASE_DIGEST

PARTNER, PARTNERS_PASSWORD = "carl@birch.example", "another long password"


@pytest.fixture
async def partner(site: Site) -> str:
    """Another organization with a member."""
    tenant = await site.tenants.create_tenant("Birch")
    await site.accounts.create(tenant.id, PARTNER, PARTNERS_PASSWORD)
    return tenant.id


async def words(visitor: httpx.AsyncClient, path: str) -> str:
    return html.unescape((await visitor.get(path)).text)


async def test_from_the_offer_to_what_is_earned(site: Site, visitor: httpx.AsyncClient, partner: str) -> None:
    made = await site.adapters.register_version(
        site.tenant_id, "pirate", AdapterRef("c" * 64, 8), base_digest=BASE_DIGEST
    )
    here = f"/adapters/{made.adapter_id}"
    await sign_in(visitor)
    assert "Not shared." in await words(visitor, here)
    assert site.tenant_id in await words(visitor, "/settings")
    form = {
        "organization_id": partner,
        "input_surcharge": "1.25",
        "output_surcharge": "$5",
        "owner_percent": "70 %",
    }
    for field, value, told in (
        ("organization_id", "tnt_none", "there is no organization"),
        ("organization_id", site.tenant_id, "not your own"),
        ("input_surcharge", "much", "US dollars"),
        ("owner_percent", "81", "from 0 to 80"),
        ("owner_percent", "half", "whole number of percent"),
    ):
        refused = await act(visitor, f"{here}/shares/new", f"{here}/shares", **form | {field: value})
        assert refused.status_code in (400, 404, 422), (field, refused.status_code)
        assert told in html.unescape(refused.text), field
        assert f'id="problem-{field}"' in refused.text
    assert (await act(visitor, f"{here}/shares/new", f"{here}/shares", **form)).status_code == 303
    page = await words(visitor, here)
    assert "Birch" in page
    assert "$1.25" in page
    assert "70 %" in page
    (share,) = await site.place.onboarding.sharing.shares(site.tenant_id, made.adapter_id)

    async with site.visitor() as other:
        await sign_in(other, PARTNER, PARTNERS_PASSWORD)
        seen = await words(other, "/adapters")
        assert "Offered" in seen
        assert share.row.model in seen
        assert "70 %" not in seen, "what the owner keeps is not the user's business"
        assert (await act(other, "/adapters", f"/shares/{share.row.id}/accept")).status_code == 303
        assert "Active" in await words(other, "/adapters")
        terms = ShareTerms(share.row.id, site.tenant_id, 10**6, 10**6, 70)
        now = datetime.now(UTC).timestamp()
        rate = Rate("prc_1", 0, 0, 0, share=terms)
        asked = booked.request(
            partner, now, usage=Usage(2_000_000, 0, 0), rate=rate, model=f"{share.row.model}@1"
        )
        await booked.write(site.place.database, [asked])
        assert "$1.40" in await words(visitor, here), "70 % of two dollars"
        assert (await act(other, "/adapters", f"/shares/{share.row.id}/end")).status_code == 303
    (ended,) = await site.place.onboarding.sharing.shares(site.tenant_id, made.adapter_id)
    assert (ended.row.state, ended.row.ended_by) == (ShareState.ENDED, partner)
    assert "Ended" in await words(visitor, here)


async def test_an_owner_takes_an_offer_back_and_others_cannot(
    site: Site, visitor: httpx.AsyncClient, partner: str
) -> None:
    made = await site.adapters.register_version(
        site.tenant_id, "pirate", AdapterRef("c" * 64, 8), base_digest=BASE_DIGEST
    )
    here = f"/adapters/{made.adapter_id}"
    await sign_in(visitor)
    form = {"organization_id": partner, "input_surcharge": "0", "output_surcharge": "0"}
    await act(visitor, f"{here}/shares/new", f"{here}/shares", **form)
    sharing = site.place.onboarding.sharing
    (share,) = await sharing.shares(site.tenant_id, made.adapter_id)
    own = await act(visitor, "/settings", f"/shares/{share.row.id}/accept")
    assert own.status_code == 404, "the owner does not answer its own offer"
    assert (await act(visitor, here, f"{here}/shares/{share.row.id}/end")).status_code == 303
    async with site.visitor() as other:
        await sign_in(other, PARTNER, PARTNERS_PASSWORD)
        foreign = await act(other, "/settings", f"{here}/shares/{share.row.id}/end")
        assert foreign.status_code == 404
        late = await act(other, "/settings", f"/shares/{share.row.id}/accept")
        assert late.status_code == 409
