"""Private PostgreSQL and Redis servers on one machine, for `rootstock up` and for tests."""
