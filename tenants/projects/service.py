"""Manages a tenant's projects: creates, changes and archives them.

Every method is one transaction. Resolver caches are invalidated after the commit, within a second.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import Database, WriteSession
from engine.protocol import PriorityClass
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import DefaultProjectKept, NameTaken, ProjectArchived, ProjectNotFound
from tenants.key_restrictions import KEEP, Keep, checked_models
from tenants.models import ApiKey, Project
from tenants.projects.repository import ProjectRepository
from tenants.repository import KeyRepository
from tenants.resolver import publish_key_changes, revoke_keys
from tenants.validation import checked_name

DEFAULT_NAME = "Default"


@dataclass(frozen=True, slots=True)
class ProjectCounts:
    keys: int
    """Keys that are not revoked."""
    members: int


class ProjectService:
    """Projects of all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(
        self,
        tenant_id: str,
        *,
        with_archived: bool = False,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[Project]:
        """Returns projects after the one with the id `after`, in order of creation."""
        async with self._database.read(tenant_id) as session:
            page = await ProjectRepository(session, tenant_id).page(
                with_archived=with_archived, after=after, limit=limit, newest_first=newest_first
            )
        return [*page]

    async def counts(self, tenant_id: str, project_ids: Collection[str]) -> dict[str, ProjectCounts]:
        """Returns the numbers of keys and members by project, for projects of the tenant."""
        async with self._database.read(tenant_id) as session:
            rows = await ProjectRepository(session, tenant_id).counts(project_ids)
        return {project_id: ProjectCounts(keys, members) for project_id, keys, members in rows}

    async def get(self, tenant_id: str, project_id: str) -> Project:
        """Returns a project, also if it is archived. Raises ProjectNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await ProjectRepository(session, tenant_id).find(project_id)
        if found is None:
            raise ProjectNotFound(project_id)
        return found

    async def default(self, tenant_id: str) -> Project:
        """Returns the tenant's default project. Raises ProjectNotFound if there is no such tenant."""
        async with self._database.read(tenant_id) as session:
            found = await ProjectRepository(session, tenant_id).default()
        if found is None:
            raise ProjectNotFound("default")
        return found

    async def create(self, tenant_id: str, name: str, actor: Actor) -> Project:
        """Creates a project. Raises NameTaken if a project that is not archived has the name, ValueError."""
        project = new_project(tenant_id, checked_name("name", name))
        try:
            async with self._database.write(tenant_id) as session:
                await add_project(session, project, actor)
        except IntegrityError as error:
            raise NameTaken("project name", project.name) from error
        return project

    async def rename(self, tenant_id: str, project_id: str, name: str, actor: Actor) -> Project:
        """Renames a project. Raises ProjectNotFound, ProjectArchived, NameTaken, ValueError."""
        name = checked_name("name", name)
        try:
            async with self._database.write(tenant_id) as session:
                project = await live_project(session, tenant_id, project_id)
                project.name = name
                await AuditLog.record(
                    session,
                    tenant_id,
                    actor,
                    "project.updated",
                    ("project", project_id),
                    {"name": name},
                    project_id=project_id,
                )
        except IntegrityError as error:
            raise NameTaken("project name", name) from error
        return project

    async def set_models(
        self, tenant_id: str, project_id: str, models: Collection[str], actor: Actor, *, denied: bool = False
    ) -> Project:
        """Restricts all keys of a project to `models`, or with `denied` to all other models, in every process
        within a second. A key's own list still applies. Empty: no such rule. Raises ProjectNotFound,
        ProjectArchived, ValueError.
        """
        columns = {"models": checked_models(models), "models_denied": denied and bool(models)}
        return await self._change(tenant_id, project_id, columns, actor)

    async def set_service_tiers(
        self,
        tenant_id: str,
        project_id: str,
        actor: Actor,
        *,
        tiers: Collection[PriorityClass] | Literal[Keep.KEEP] | None = KEEP,
        auto: PriorityClass | Literal[Keep.KEEP] | None = KEEP,
    ) -> Project:
        """Sets the service tiers that keys of a project can request besides `default` (None: all of the
        plan's), and the tier that `auto` stands for (None: the best), in every process within a second.
        Raises ProjectNotFound, ProjectArchived, ValueError.
        """
        columns: dict[str, Any] = {}
        if tiers is not KEEP:
            columns["service_tiers"] = None if tiers is None else sorted({*tiers} - {PriorityClass.DEFAULT})
        if auto is not KEEP:
            if auto == PriorityClass.FLEX:
                raise ValueError("default: must not be flex, which requests have to name themselves")
            columns["auto_tier"] = auto
        return await self._change(tenant_id, project_id, columns, actor)

    async def _change(
        self, tenant_id: str, project_id: str, columns: dict[str, Any], actor: Actor
    ) -> Project:
        async with self._database.write(tenant_id) as session:
            project = await live_project(session, tenant_id, project_id)
            for name, value in columns.items():
                setattr(project, name, value)
            digests = await KeyRepository(session, tenant_id).digests(ApiKey.project_id == project_id)
            session.after_commit(lambda: publish_key_changes(self._redis, digests))
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "project.updated",
                ("project", project_id),
                columns,
                project_id=project_id,
            )
        return project

    async def archive(self, tenant_id: str, project_id: str, actor: Actor) -> Project:
        """Archives a project: revokes its keys in every process within a second, and deletes its service
        accounts. Repeating it changes nothing. Raises ProjectNotFound, DefaultProjectKept.
        """
        async with self._database.write(tenant_id) as session:
            projects = ProjectRepository(session, tenant_id)
            project = await projects.lock(project_id)
            if project is None:
                raise ProjectNotFound(project_id)
            if project.is_default:
                raise DefaultProjectKept(project_id)
            if project.archived_at is None:
                project.archived_at = datetime.now(UTC)
                await projects.delete_accounts(project_id)
                its = ApiKey.project_id == project_id
                revoked = await revoke_keys(session, self._redis, tenant_id, its)
                await AuditLog.record(
                    session,
                    tenant_id,
                    actor,
                    "project.archived",
                    ("project", project_id),
                    {"name": project.name, "revoked_keys": revoked},
                    project_id=project_id,
                )
        return project


def new_project(tenant_id: str, name: str, *, is_default: bool = False) -> Project:
    return Project(
        id=new_id("proj"),
        tenant_id=tenant_id,
        name=name,
        is_default=is_default,
        created_at=datetime.now(UTC),
    )


async def add_project(session: WriteSession, project: Project, actor: Actor) -> None:
    ProjectRepository(session, project.tenant_id).add_own(project)
    await AuditLog.record(
        session,
        project.tenant_id,
        actor,
        "project.created",
        ("project", project.id),
        {"name": project.name},
        project_id=project.id,
    )


async def live_project(session: WriteSession, tenant_id: str, project_id: str) -> Project:
    """Locks the project for writing and returns it. Raises ProjectNotFound, ProjectArchived."""
    project = await ProjectRepository(session, tenant_id).lock(project_id)
    if project is None:
        raise ProjectNotFound(project_id)
    if project.archived_at is not None:
        raise ProjectArchived(project_id)
    return project
