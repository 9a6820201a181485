"""Private PostgreSQL and Redis servers for one machine: for `rootstock up` and for tests.

Owns finding a server program, starting it on a Unix socket, and stopping it. Production passes URLs and never
comes here. Refuses to know schemas, tenants and engines.
"""
