"""The schedule: what is sent how often, and how long it is good for."""

from __future__ import annotations

from db.tasks import JOBS_QUEUE, QUEUES, RUN_JOB_EXPIRES
from worker.app import create_app
from worker.settings import WorkerSettings


def test_what_waits_among_jobs_waits_as_long_as_they_do() -> None:
    schedule = create_app(WorkerSettings(redis_url="redis://localhost")).conf.beat_schedule
    assert {entry["options"]["queue"] for entry in schedule.values()} == set(QUEUES)
    for task, entry in schedule.items():
        good_for, interval = entry["options"]["expires"], entry["schedule"]
        assert good_for <= 3600, task
        if entry["options"]["queue"] == JOBS_QUEUE:
            assert good_for >= RUN_JOB_EXPIRES, task
        else:
            assert good_for <= interval, task
