"""Finds what a version is made from: uploaded files, uploads to wait for, or a source to import from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from adapters.errors import InvalidAdapter
from adapters.files.models import Purpose, StoredFile
from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.imports.admission import ImportAdmission
from adapters.imports.sources import Source
from adapters.pending_uploads import GIVE, file_kind, find_pending, is_complete
from adapters.source_copies import CALIBRATION_FILE

DTYPES = ("auto", "bfloat16", "float8_e4m3")
Dtype = Literal["auto", "bfloat16", "float8_e4m3"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the version is to be measured."""

    file_id: str | None = None
    """The tenant's own samples; None: the default set."""
    dtype: Dtype = "auto"
    """Type of the packed weights; auto: chosen by the calibration."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a version is made of. Exactly one of the first three is given; a list has both files in any
    order, and the signature if there is one.
    """

    file_ids: Sequence[str] | None = None
    upload_ids: Sequence[str] | None = None
    source: Source | None = None
    activate: bool = True
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True, slots=True)
class Meant:
    """The files or uploads of a submission."""

    files: Mapping[str, StoredFile]
    """Files to copy now, by file name."""
    uploads: Mapping[str, str]
    """Uploads to wait for, by file name; empty when the files exist."""
    source: Source | None = None
    """What the job imports the files from."""


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The services that know the files, uploads and sources which submissions name."""

    files: FileService
    uploads: UploadService
    imports: ImportAdmission

    async def find(self, tenant_id: str, submission: Submission) -> Meant:
        """Returns the files, uploads or source that a submission names. Raises InvalidAdapter and the errors
        of the file services.
        """
        given = (submission.file_ids, submission.upload_ids, submission.source)
        if sum(one is not None for one in given) != 1:
            raise InvalidAdapter(
                "file_ids", "give one of file_ids and upload_ids, with all files, or a source to import from"
            )
        if submission.source is not None:
            source = self.imports.admitted(submission.source)
            return Meant(await self._samples(tenant_id, submission), {}, source)
        param, file_ids = "file_ids", submission.file_ids
        found: dict[str, StoredFile] = {}
        if submission.upload_ids is not None:
            uploads = await find_pending(self.uploads, tenant_id, submission.upload_ids)
            if uploads is not None:
                return Meant(await self._samples(tenant_id, submission), uploads)
            param, file_ids = "upload_ids", await self._uploaded(tenant_id, submission.upload_ids)
        assert file_ids is not None
        for file_id in file_ids:
            file = await self.files.get(tenant_id, file_id)
            if file.purpose != Purpose.ADAPTER:
                raise InvalidAdapter(param, f"{file_id} was uploaded for the purpose '{file.purpose}'")
            kind = file_kind(file.filename)
            if kind in found:
                raise InvalidAdapter(param, GIVE)
            found[kind] = file
        if not is_complete(found):
            raise InvalidAdapter(param, GIVE)
        return Meant(found | await self._samples(tenant_id, submission), {})

    async def _samples(self, tenant_id: str, submission: Submission) -> dict[str, StoredFile]:
        return await samples_of(self.files, tenant_id, submission.calibration, "calibration.file_id")

    async def _uploaded(self, tenant_id: str, upload_ids: Sequence[str]) -> list[str]:
        file_ids = []
        for upload_id in upload_ids:
            upload = (await self.uploads.get(tenant_id, upload_id)).upload
            if upload.file_id is None:
                raise InvalidAdapter("upload_ids", f"{upload_id} is {upload.status}, not completed")
            file_ids.append(upload.file_id)
        return file_ids


async def samples_of(
    files: FileService, tenant_id: str, calibration: Calibration, param: str
) -> dict[str, StoredFile]:
    """Returns the tenant's own samples, if any, as files to copy. Raises FileNotFound, and InvalidAdapter
    naming `param`.
    """
    file_id = calibration.file_id
    if file_id is None:
        return {}
    file = await files.get(tenant_id, file_id)
    if file.purpose != Purpose.CALIBRATION:
        raise InvalidAdapter(param, f"{file_id} was uploaded for the purpose '{file.purpose}'")
    return {CALIBRATION_FILE: file}
