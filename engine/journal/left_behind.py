"""Bills what engines left on the disk of a host on which they run no longer: a cluster may place an engine
elsewhere after its host was lost. Any engine that starts on the host bills it.
"""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import structlog

from engine.journal.meter import FLUSH_SECONDS, Meter
from engine.journal.salvage import PendingUsage, pending_usage
from engine.journal.usage_journal import JournalError

log = structlog.get_logger(__name__)

RETRY_SECONDS = 30.0
_LOOK_SECONDS = 0.05


def start_billing_left_behind(engines: Path, own_id: str, redis_url: str) -> None:
    """Bills in a thread of its own, again and again until Redis has everything. Its arguments are those of
    `bill_left_behind`.
    """

    def run() -> None:
        while not bill_left_behind(engines, own_id, redis_url):
            time.sleep(RETRY_SECONDS)

    threading.Thread(target=run, name="left behind", daemon=True).start()


def bill_left_behind(engines: Path, own_id: str, redis_url: str) -> bool:
    """Writes to the journal what engines that do not run here left in their folders. Returns whether nothing
    is left. `engines`: the folder of all engines' folders; `own_id`: the engine that asks.

    Call it when the other engines of this host have had time to lock their folders: one that starts while its
    folder is being read fails, and is started again.
    """
    others = [folder for folder in sorted(engines.iterdir()) if folder.is_dir() and folder.name != own_id]
    is_billed = [_is_billed(folder, redis_url) for folder in others]
    return all(is_billed)


def _is_billed(folder: Path, redis_url: str) -> bool:
    """Bills what a folder has, if no engine holds it. Returns whether nothing is left for another try."""
    try:
        return pending_usage(folder) == PendingUsage(0, 0) or _bill(folder, redis_url)
    except BlockingIOError:
        return True  # it runs here, and bills what is its own
    except (OSError, JournalError) as error:
        log.error("usage of an engine that was placed elsewhere waits", folder=str(folder), reason=str(error))
        return False


def _bill(folder: Path, redis_url: str) -> bool:
    """Returns whether Redis took everything.

    Raises: BlockingIOError where an engine holds the folder, OSError, JournalError.
    """
    meter = Meter(
        state_dir=folder,
        redis_url=redis_url,
        engine_id=folder.name,
        incarnation=uuid.uuid4().hex,
        on_settled=lambda _: None,
        on_failed=lambda _: None,
    )
    log.warning("billing what an engine that was placed elsewhere left", engine=folder.name)
    until = time.monotonic() + FLUSH_SECONDS
    while meter.num_spooled and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    is_written = not meter.num_spooled
    meter.close()
    if is_written:
        log.info("billed what an engine that was placed elsewhere left", engine=folder.name)
    return is_written
