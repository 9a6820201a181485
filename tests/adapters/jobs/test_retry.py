"""A job that failed, repeated: from where its version stands, on the same files, and once at a time."""

from __future__ import annotations

import pytest

from adapters.inspection import InspectionRefused
from adapters.jobs.errors import JobFinished, JobNotFound, JobUnfinished
from adapters.jobs.models import JobStatus
from adapters.models import VersionState
from tenants.actors import OPERATOR
from tests.adapters.test_pipeline import BAD, GOOD, Shop, shop

__all__ = ["shop"]


async def test_what_the_gate_refused_is_judged_again(shop: Shop) -> None:
    made = await shop.place.create("pirate")
    assert made.job_id is not None
    jobs, tenant = shop.place.onboarding.jobs, shop.place.tenants[0]
    shop.steps.verdict = BAD
    failed, version = await shop.run(made.job_id)
    assert (failed.status, version.state) == (JobStatus.FAILED, VersionState.FAILED)
    with pytest.raises(JobNotFound):
        await jobs.retry(shop.place.tenants[1], failed.id, by=OPERATOR)
    again = await jobs.retry(tenant, failed.id, by=OPERATOR)
    with pytest.raises(JobUnfinished):
        await jobs.retry(tenant, failed.id, by=OPERATOR)
    with pytest.raises(JobUnfinished):
        await jobs.retry(tenant, again.id, by=OPERATOR)
    _, version = await shop.look(again.id)
    assert (version.state, version.error) == (VersionState.CALIBRATING, None)
    shop.steps.verdict = GOOD
    done, version = await shop.run(again.id)
    assert (done.status, version.state) == (JobStatus.SUCCEEDED, VersionState.READY)
    assert shop.steps.seen[0].artifacts == shop.steps.seen[1].artifacts, "it is packed once"
    with pytest.raises(JobFinished):
        await jobs.retry(tenant, done.id, by=OPERATOR)


async def test_what_failed_before_it_was_packed_begins_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await shop.place.create("pirate")
    assert made.job_id is not None

    async def refuse(*_: object) -> None:
        raise InspectionRefused("r", "the disk was full")

    with monkeypatch.context() as broken:
        broken.setattr(shop.steps, "inspect", refuse)
        failed, version = await shop.run(made.job_id)
    assert (failed.status, version.error) == (JobStatus.FAILED, "r: the disk was full")
    again = await shop.place.onboarding.jobs.retry(shop.place.tenants[0], failed.id, by=OPERATOR)
    _, version = await shop.look(again.id)
    assert version.state == VersionState.VALIDATING
    done, version = await shop.run(again.id)
    assert (done.status, version.state) == (JobStatus.SUCCEEDED, VersionState.READY)
