"""Assigns every table of tenants to a class of data, to the deletion of an organization, or to what is kept.

A new table with a tenant has to be added to one of `CLASS_RULES`, `CASCADES`, `ORGANIZATION_RULES` and
`KEPT`: a test fails until it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, and_, bindparam, cast, exists, func, literal, or_
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.orm import InstrumentedAttribute

from adapters.files.models import Purpose, StoredFile, Upload, UploadPart, UploadStatus
from adapters.jobs.models import Job, JobStatus
from adapters.models import Adapter, AdapterEvent, AdapterVersion, VersionState
from adapters.sharing.models import AdapterShare
from adapters.signing.models import AdapterSignature
from batches.models import OPEN, Batch
from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from billing.request_metadata.models import StoredMetadata
from billing.spend.models import SpendAlert
from conversations.models import Conversation, StoredResponse
from tenants.limits.models import LimitRow
from tenants.models import (
    ApiKey,
    Identity,
    Invite,
    PasswordReset,
    Project,
    ProjectMember,
    SecondFactor,
    ServiceAccount,
    User,
)
from tenants.refusals.models import RefusedCall, RefusedHour
from tenants.retention.classes import DataClass
from tenants.retention.models import RetentionSetting
from tenants.saml.models import SamlConnection
from tenants.scim.models import ScimGroup, ScimGroupMember, ScimToken, ScimUser
from tenants.signing_keys.models import TenantSigningKey
from tenants.workload_identity.models import FederationRule, WorkloadIdentityProvider

REFUSED_DAYS = 31
"""Most days of refused calls. Their partitions are dropped after 30; while a hold keeps these, rows are
deleted.
"""
ERASED_DOMAIN = "erased.invalid"
"""Of the addresses of users whose names were erased."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How the rows of one table are deleted, or their personal content erased."""

    model: Any
    moment: ColumnElement[Any] | InstrumentedAttribute[Any]
    """From which a row's age counts. Rows without one do not age."""
    data_class: DataClass | None = None
    """None: rows go with the organization alone."""
    where: ColumnElement[bool] | None = None
    """Rows of the table that the rule is about."""
    has_ended: ColumnElement[bool] | None = None
    """Rows that periods may delete: the others are in use. An organization's deletion takes all."""
    row_id: ColumnElement[Any] | InstrumentedAttribute[Any] | None = None
    """What a certificate lists. None: the rows have no id that is known outside."""
    held_by: tuple[Any, ...] = ()
    """Columns with ids of objects that a hold may be on."""
    objects: tuple[Any, ...] = ()
    """Columns with keys of objects that go with the row, as text or as an array of texts."""
    cascades: Mapping[str, str] = field(default_factory=dict)
    """Tables whose rows go with the row, and their column with its id."""
    expired: ColumnElement[bool] | None = None
    """Rows whose time is over whatever the period says."""
    goes_when_silent: bool = False
    """Whether an organization that stores nothing loses the rows at once."""
    most_days: int | None = None
    """Most days of this table, also without a setting."""
    erases: Mapping[str, Any] | None = None
    """Values that replace the content of rows that stay; None: rows are deleted."""

    @property
    def table(self) -> str:
        return str(self.model.__tablename__)


PLAN_DAYS = "plan_days"
"""Parameter of queries by `moment`: the days for which the plan keeps responses."""
_LAST_USE = func.coalesce(
    Conversation.used_at,
    # Of a conversation that was last used before there was that column.
    func.greatest(
        Conversation.created_at,
        Conversation.expires_at - func.make_interval(0, 0, 0, bindparam(PLAN_DAYS, type_=Integer)),
    ),
)
_CLOCK = func.clock_timestamp()
_WITHOUT_PARTS = ~exists().where(UploadPart.upload_id == Upload.id)
_OPEN_JOBS = (JobStatus.VALIDATING_FILES, JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.PAUSED)
_JOB_ENDED = Job.status.not_in(_OPEN_JOBS)
_JOB_OF_VERSION = exists().where(
    Job.adapter_id == AdapterVersion.adapter_id,
    Job.version == AdapterVersion.version,
    Job.status.in_(_OPEN_JOBS),
)
_SETTLED_STATES = (VersionState.READY, VersionState.FAILED, VersionState.DISABLED)
_BATCH_ENDED_AT = func.coalesce(
    Batch.completed_at, Batch.failed_at, Batch.expired_at, Batch.cancelled_at, Batch.created_at
)
_OF_BATCHES = (Purpose.BATCH, Purpose.BATCH_OUTPUT)
_WAITING = exists().where(Delivery.notification_id == Notification.id, Delivery.state == "pending")
_INVITE_ENDED_AT = func.coalesce(func.least(Invite.accepted_at, Invite.deleted_at), Invite.expires_at)
_FILE_EXPIRED = StoredFile.expires_at <= _CLOCK


def _keys_in(column: InstrumentedAttribute[Any], path: str) -> ColumnElement[Any]:
    return func.jsonb_path_query_array(column, cast(path, JSONPATH), type_=JSONB)


def _file_rule(data_class: DataClass, where: ColumnElement[bool]) -> Rule:
    return Rule(
        StoredFile,
        StoredFile.created_at,
        data_class,
        where=where,
        row_id=StoredFile.id,
        held_by=(StoredFile.id,),
        objects=(StoredFile.object_key,),
        expired=_FILE_EXPIRED,
    )


CLASS_RULES: tuple[Rule, ...] = (
    Rule(
        StoredResponse,
        StoredResponse.submitted_at,
        DataClass.RESPONSES,
        row_id=StoredResponse.id,
        held_by=(StoredResponse.id, StoredResponse.conversation_id),
        cascades={"response_events": "response_id"},
        expired=StoredResponse.expires_at <= _CLOCK,
        goes_when_silent=True,
    ),
    Rule(
        Conversation,
        _LAST_USE,
        DataClass.RESPONSES,
        row_id=Conversation.id,
        held_by=(Conversation.id,),
        cascades={"conversation_items": "conversation_id"},
        expired=Conversation.expires_at <= _CLOCK,
        goes_when_silent=True,
    ),
    _file_rule(DataClass.FILES, StoredFile.purpose.not_in(_OF_BATCHES)),
    Rule(
        Upload,
        Upload.created_at,
        DataClass.FILES,
        where=_WITHOUT_PARTS,
        has_ended=Upload.status != UploadStatus.PENDING,
        row_id=Upload.id,
        held_by=(Upload.id, Upload.file_id),
    ),
    _file_rule(DataClass.BATCHES, StoredFile.purpose.in_(_OF_BATCHES)),
    Rule(
        Batch,
        _BATCH_ENDED_AT,
        DataClass.BATCHES,
        has_ended=Batch.status.not_in(OPEN),
        row_id=Batch.id,
        held_by=(Batch.id, Batch.input_file_id, Batch.output_file_id, Batch.error_file_id),
        objects=(Batch.input_key,),
        cascades={"batch_lines": "batch_id"},
    ),
    Rule(
        AdapterVersion,
        func.coalesce(AdapterVersion.ready_at, AdapterVersion.created_at),
        DataClass.ADAPTER_SOURCES,
        where=AdapterVersion.sources != literal({}, AdapterVersion.sources.type),
        has_ended=and_(AdapterVersion.state.in_(_SETTLED_STATES), ~_JOB_OF_VERSION),
        row_id=AdapterVersion.adapter_id + "@" + cast(AdapterVersion.version, Text),
        held_by=(AdapterVersion.adapter_id,),
        objects=(_keys_in(AdapterVersion.sources, "$.*.key"),),
        erases={"sources": {}},
    ),
    Rule(
        Job,
        func.coalesce(Job.finished_at, Job.created_at),
        DataClass.ADAPTER_SOURCES,
        where=Job.parameters.has_key("calibration"),
        has_ended=_JOB_ENDED,
        row_id=Job.id,
        held_by=(Job.id, Job.adapter_id),
        objects=(_keys_in(Job.parameters, "$.calibration.key"),),
        erases={"parameters": Job.parameters.op("-")(literal("calibration", Text))},
    ),
    Rule(
        StoredMetadata,
        StoredMetadata.submitted_at,
        DataClass.REQUESTS,
        row_id=StoredMetadata.request_id,
        held_by=(StoredMetadata.request_id,),
        goes_when_silent=True,
    ),
    Rule(
        RefusedCall,
        RefusedCall.at,
        DataClass.REQUESTS,
        row_id=RefusedCall.request_id,
        held_by=(RefusedCall.request_id, RefusedCall.generation_id),
        most_days=REFUSED_DAYS,
    ),
    Rule(
        Notification,
        Notification.created_at,
        DataClass.NOTIFICATIONS,
        has_ended=~_WAITING,
        row_id=Notification.id,
        held_by=(Notification.id,),
        cascades={"deliveries": "notification_id"},
    ),
    Rule(
        PasswordReset,
        PasswordReset.expires_at,
        DataClass.SIGN_IN,
        held_by=(PasswordReset.user_id,),
    ),
    Rule(
        Invite,
        _INVITE_ENDED_AT,
        DataClass.SIGN_IN,
        has_ended=_INVITE_ENDED_AT <= _CLOCK,
        row_id=Invite.id,
        held_by=(Invite.id,),
    ),
    Rule(
        User,
        User.removed_at,
        DataClass.FORMER_MEMBERS,
        where=User.email.not_like(f"%@{ERASED_DOMAIN}"),
        has_ended=User.removed_at.is_not(None),
        row_id=User.id,
        held_by=(User.id,),
        erases={
            "email": User.id + f"@{ERASED_DOMAIN}",
            "name": "",
            "password_hash": None,
            "removed_at": func.coalesce(User.removed_at, func.now()),
        },
    ),
)
"""By class. The audit log's entries are deleted by `retention.audit_entries`: they are a chain."""

_NOT_ENDED = AdapterShare.state.in_(("offered", "active"))
ORGANIZATION_RULES: tuple[Rule, ...] = (
    # Rows that refer to others go first.
    Rule(
        UploadPart,
        UploadPart.created_at,
        row_id=UploadPart.id,
        objects=(UploadPart.object_key,),
    ),
    *(
        Rule(model, moment)
        for model, moment in (
            (ScimGroupMember, _CLOCK),
            (AdapterSignature, _CLOCK),
            (ScimUser, ScimUser.updated_at),
            (Identity, Identity.created_at),
            (SecondFactor, SecondFactor.created_at),
            (ProjectMember, ProjectMember.added_at),
            (LimitRow, LimitRow.updated_at),
            (RefusedHour, RefusedHour.hour),
            (RetentionSetting, RetentionSetting.changed_at),
        )
    ),
    *(
        Rule(model, model.created_at, row_id=model.id)
        for model in (
            *(ScimGroup, ScimToken, FederationRule, WorkloadIdentityProvider, SamlConnection),
            *(TenantSigningKey, AdapterEvent),
        )
    ),
    Rule(
        SpendAlert,
        SpendAlert.created_at,
        row_id=SpendAlert.id,
        cascades={"spend_alerts_raised": "alert_id"},
    ),
    Rule(WebhookEndpoint, WebhookEndpoint.created_at, row_id=WebhookEndpoint.id),
    Rule(
        AdapterShare,
        AdapterShare.created_at,
        where=_NOT_ENDED,
        row_id=AdapterShare.id,
        erases={"state": "ended", "ended_at": func.now()},
    ),
    Rule(
        AdapterVersion,
        AdapterVersion.created_at,
        where=AdapterVersion.state != VersionState.DELETING,
        row_id=AdapterVersion.adapter_id + "@" + cast(AdapterVersion.version, Text),
        erases={"state": VersionState.DELETING},
    ),
    Rule(
        Adapter,
        Adapter.created_at,
        where=or_(Adapter.deleted_at.is_(None), Adapter.name != Adapter.id),
        row_id=Adapter.id,
        erases={
            "name": Adapter.id,
            "description": None,
            "active_version": None,
            "previous_version": None,
            "deleted_at": func.coalesce(Adapter.deleted_at, func.now()),
        },
    ),
    Rule(
        Job,
        Job.created_at,
        row_id=Job.id,
    ),
    Rule(
        ApiKey,
        ApiKey.created_at,
        where=or_(ApiKey.revoked_at.is_(None), ApiKey.name != ""),
        row_id=ApiKey.id,
        erases={"name": "", "revoked_at": func.coalesce(ApiKey.revoked_at, func.now())},
    ),
    *(
        Rule(
            model, model.created_at, where=model.name != model.id, row_id=model.id, erases={"name": model.id}
        )
        for model in (ServiceAccount, Project)
    ),
)
"""What goes with an organization beside the classes, in this order."""

CASCADES: Mapping[str, str] = {
    "response_events": "stored_responses",
    "conversation_items": "conversations",
    "batch_lines": "batches",
    "deliveries": "notifications",
    "spend_alerts_raised": "spend_alerts",
}
"""Tables whose rows go with the rows of another."""

BOOKS = "the books: invoices are proved by it, and law asks for them"
COUNTS = "counts without content or ids; credits are computed from them"
PROOF = "proves what was deleted, and what was not"
KEPT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("usage_records", "usage_rollups", "usage_rollup_hours", "usage_rollup_days", "reversals"),
            *("charges", "adapter_storage", "calibrations_due", "share_earnings", "spend_adjustments"),
            *("invoices", "invoice_lines", "invoice_payments", "credit_notes", "credits", "prepaid_periods"),
            *("billing_accounts", "meter_events", "stripe_documents", "stripe_invoices"),
            *("stripe_subscriptions", "reconciliation_differences", "tenant_plans", "sharing_handles"),
        ),
        BOOKS,
    ),
    **dict.fromkeys(("sla_minutes", "sla_hours", "sla_days"), COUNTS),
    **dict.fromkeys(
        ("legal_holds", "deletions", "deletion_counts", "owed_objects", "deletion_certificates"), PROOF
    ),
    "audit_heads": "the end of the audit log's chain; entries have a class of their own",
}
"""Tables that nothing deletes from, and why."""
