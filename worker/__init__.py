"""The worker process: Celery tasks for adapter jobs, billing, service levels and periodic work."""
