"""Constructs the services for adapters and their jobs, over one object store, sandbox and outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import redis.asyncio

from adapters.announcer import Announcer
from adapters.bases import Bases
from adapters.catalogue import AdapterCatalogue
from adapters.deletion import AdapterDeletion
from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.imports.admission import ImportAdmission
from adapters.inspection.sandbox import Sandbox
from adapters.jobs.service import JobService
from adapters.pending_uploads import PendingUploads
from adapters.pinning import Engine, Pinning
from adapters.recalibration import Recalibration
from adapters.reports import ReportReader
from adapters.service import AdapterService
from adapters.shares import DEFAULT_PLATFORM_PERCENT, SharingService
from adapters.signing.reader import SignatureReader
from adapters.signing.uploads import UploadSignatures
from adapters.source_copies import SourceCopies
from adapters.storage import ObjectStore
from adapters.submission import AdapterSubmission, GivenFiles
from api.services import Onboarding
from db.outbox import Outbox
from db.session import Database
from db.tasks import TaskSender
from engine.signing.keys import NO_KEYS, TrustedKeys


@asynccontextmanager
async def open_onboarding(
    database: Database,
    redis_client: redis.asyncio.Redis,
    store: ObjectStore,
    files: FileService,
    uploads: UploadService,
    sandbox: Sandbox,
    engines: Mapping[str, Engine],
    *,
    redis_url: str,
    base_configs: Mapping[str, Path],
    imports: ImportAdmission,
    platform_percent: int = DEFAULT_PLATFORM_PERCENT,
    signing_keys: TrustedKeys = NO_KEYS,
) -> AsyncIterator[Onboarding]:
    """Yields the started services and closes them at the end of the block. The caller closes what it passes
    in.

    `platform_percent`: the least that the platform keeps of the surcharges of shared adapters.
    `signing_keys`: the platform's public keys.
    `engines`, the default base's first, and `base_configs`, the paths of `config.json`: by base.
    """
    async with AsyncExitStack() as opened:
        sender = TaskSender(redis_url)
        opened.callback(sender.close)
        outbox = Outbox(database, sender)
        opened.push_async_callback(outbox.close)
        bases = Bases(*engines)
        pinning = Pinning(database, engines)
        await pinning.start()
        opened.push_async_callback(pinning.close)
        announcer = Announcer(redis_client, pinning)
        copies = SourceCopies(store, files, sandbox, UploadSignatures(database, store), base_configs)
        waiting = PendingUploads(database, announcer, uploads, copies, outbox)
        uploads.follower = waiting
        yield Onboarding(
            store=store,
            submission=AdapterSubmission(
                database,
                announcer,
                GivenFiles(files, uploads, imports),
                copies,
                waiting,
                outbox,
                bases,
            ),
            waiting=waiting,
            catalogue=AdapterCatalogue(database, bases),
            adapters=AdapterService(database, redis_client, bases, pinning),
            deletion=AdapterDeletion(database, redis_client, bases, pinning),
            sharing=SharingService(database, redis_client, bases, platform_percent=platform_percent),
            jobs=JobService(database, outbox, announcer.changed),
            recalibration=Recalibration(database, announcer, files, copies, outbox, bases),
            reports=ReportReader(store),
            signatures=SignatureReader(database, bases, signing_keys),
            outbox=outbox,
        )
