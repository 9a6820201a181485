"""The database layer: sessions, tenant-scoped repositories, row cache, outbox, migrations and task queues."""
