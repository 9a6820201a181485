"""Serves `/scim/v2` (RFC 7644): users, groups and discovery, for the bearer of an organization's SCIM token.

An ASGI application of its own: errors have SCIM's form, and its schemas describe it in place of the OpenAPI
document. Nothing here is counted, limited or billed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from api.authentication import address_of, bearer_of
from api.edge import Receive, Scope, Send
from api.errors import ERROR_RESPONSES, InvalidScim, RouteNotFound, response_for
from api.json_bodies import read_json
from api.scim import discovery
from api.scim.patch import patched
from api.scim.query import Query, read_query, read_search
from api.scim.resources import (
    Document,
    group_document,
    group_resource,
    read_group,
    read_user,
    user_document,
    user_resource,
)
from api.services import Services, served
from tenants.actors import Actor
from tenants.errors import NameTaken
from tenants.provisioning.errors import InvalidFilter
from tenants.provisioning.groups import GroupProvisioning
from tenants.provisioning.profiles import (
    GroupProfile,
    ProvisionedGroup,
    ProvisionedUser,
    UserProfile,
)
from tenants.provisioning.users import UserProvisioning
from tenants.service import AccountServices

PATH = "/scim/v2"
MEDIA_TYPE = "application/scim+json"
_ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"
_LIST = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
Profile = TypeVar("Profile")
Found = TypeVar("Found")
FoundCo = TypeVar("FoundCo", covariant=True)
_KNOWN: tuple[type[Exception], ...] = (HTTPException, ValueError, *ERROR_RESPONSES)


class ScimApp:
    """The application below `PATH`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._router = Router(
            [
                Route("/ServiceProviderConfig", self._config, methods=["GET"]),
                Route("/ResourceTypes", self._resource_types, methods=["GET"]),
                Route("/ResourceTypes/{id}", self._resource_type, methods=["GET"]),
                Route("/Schemas", self._schemas, methods=["GET"]),
                Route("/Schemas/{id}", self._schema, methods=["GET"]),
                Route("/.search", self._search_all, methods=["POST"]),
                *_resource_routes("/Users", _Users(self)),
                *_resource_routes("/Groups", _Groups(self)),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["starlette.exception_handlers"] = ({}, {})  # not those of the API, which would answer first
        request = Request(scope, receive, send)
        try:
            token = await self.accounts.scim_tokens.authenticate(bearer_of(request))
            scope["state"]["log"] = {"tenant_id": token.tenant_id, "scim_token_id": token.id}
            request.state.tenant_id = token.tenant_id
            request.state.actor = Actor("scim_token", token.id, address_of(request), request.state.request_id)
            await self._router(scope, receive, send)
        except _KNOWN as error:
            await _shown(error)(scope, receive, send)

    @property
    def accounts(self) -> AccountServices:
        """Raises NotServing in a process without accounts."""
        return served(self._services.accounts, "Accounts")

    async def _config(self, request: Request) -> Response:
        return answer(discovery.service_provider_config(base_of(request)))

    async def _resource_types(self, request: Request) -> Response:
        return _discovered(discovery.resource_types(base_of(request)))

    async def _resource_type(self, request: Request) -> Response:
        return _one_of(discovery.resource_types(base_of(request)), request)

    async def _schemas(self, request: Request) -> Response:
        return _discovered(discovery.schemas(base_of(request)))

    async def _schema(self, request: Request) -> Response:
        return _one_of(discovery.schemas(base_of(request)), request)

    async def _search_all(self, request: Request) -> Response:
        return _error(501, "Search /Users/.search or /Groups/.search: both at once are not supported.")


class _Provisioning(Protocol[Profile, FoundCo]):
    """What changes the users, or the groups, of a tenant."""

    async def create(self, tenant_id: str, profile: Profile, actor: Actor, /) -> FoundCo: ...

    async def update(
        self, tenant_id: str, id: str, change: Callable[[Profile], Profile], actor: Actor, /
    ) -> FoundCo: ...

    async def delete(self, tenant_id: str, id: str, actor: Actor, /) -> None: ...


class _Resources(ABC, Generic[Profile, Found]):
    """What the routes of one kind of resource do."""

    def __init__(
        self,
        read: Callable[[Mapping[str, Any]], Profile],
        document: Callable[[Profile], Document],
        resource: Callable[[Found, str], dict[str, Any]],
    ) -> None:
        """The functions of `api.scim.resources` for this kind."""
        self._read, self._document, self._resource = read, document, resource

    @property
    @abstractmethod
    def _provisioning(self) -> _Provisioning[Profile, Found]: ...

    @abstractmethod
    async def _list(self, tenant_id: str, query: Query) -> tuple[int, Sequence[Found]]: ...

    @abstractmethod
    async def _one(self, tenant_id: str, id: str, query: Query) -> Found: ...

    async def find(self, request: Request, query: Query) -> tuple[int, list[dict[str, Any]]]:
        total, found = await self._list(request.state.tenant_id, query)
        return total, [self._resource(one, base_of(request)) for one in found]

    async def get(self, request: Request, query: Query) -> dict[str, Any]:
        found = await self._one(request.state.tenant_id, request.path_params["id"], query)
        return self._resource(found, base_of(request))

    async def create(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        state = request.state
        made = await self._provisioning.create(state.tenant_id, self._read(body), state.actor)
        return self._resource(made, base_of(request))

    async def replace(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        profile = self._read(body)
        return await self._update(request, lambda before: profile)

    async def patch(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._update(request, lambda before: self._read(patched(self._document(before), body)))

    async def delete(self, request: Request) -> None:
        state = request.state
        await self._provisioning.delete(state.tenant_id, request.path_params["id"], state.actor)

    async def _update(self, request: Request, change: Callable[[Profile], Profile]) -> dict[str, Any]:
        state = request.state
        found = await self._provisioning.update(
            state.tenant_id, request.path_params["id"], change, state.actor
        )
        return self._resource(found, base_of(request))


class _Users(_Resources[UserProfile, ProvisionedUser]):
    def __init__(self, app: ScimApp) -> None:
        super().__init__(read_user, user_document, user_resource)
        self._app = app

    @property
    def _provisioning(self) -> UserProvisioning:
        return self._app.accounts.provisioned_users

    async def _list(self, tenant_id: str, query: Query) -> tuple[int, Sequence[ProvisionedUser]]:
        return await self._provisioning.list(
            tenant_id, query.condition, offset=query.offset, limit=query.limit
        )

    async def _one(self, tenant_id: str, id: str, query: Query) -> ProvisionedUser:
        return await self._provisioning.get(tenant_id, id)


class _Groups(_Resources[GroupProfile, ProvisionedGroup]):
    """Members are looked up where the answer shows them."""

    def __init__(self, app: ScimApp) -> None:
        super().__init__(read_group, group_document, group_resource)
        self._app = app

    @property
    def _provisioning(self) -> GroupProvisioning:
        return self._app.accounts.provisioned_groups

    async def _list(self, tenant_id: str, query: Query) -> tuple[int, Sequence[ProvisionedGroup]]:
        return await self._provisioning.list(
            tenant_id,
            query.condition,
            offset=query.offset,
            limit=query.limit,
            with_members=query.shows("members"),
        )

    async def _one(self, tenant_id: str, id: str, query: Query) -> ProvisionedGroup:
        return await self._provisioning.get(tenant_id, id, with_members=query.shows("members"))


def _resource_routes(path: str, kind: _Resources[Any, Any]) -> list[Route]:
    async def listed(request: Request, query: Query) -> Response:
        total, found = await kind.find(request, query)
        return _listed(total, query.offset, [query.select(one) for one in found])

    async def find(request: Request) -> Response:
        return await listed(request, read_query(request.query_params))

    async def search(request: Request) -> Response:
        return await listed(request, read_search(await _body(request)))

    async def get(request: Request) -> Response:
        query = read_query(request.query_params)
        return answer(query.select(await kind.get(request, query)))

    async def create(request: Request) -> Response:
        query, made = read_query(request.query_params), await kind.create(request, await _body(request))
        return answer(query.select(made), 201, made["meta"]["location"])

    async def replace(request: Request) -> Response:
        query = read_query(request.query_params)
        return answer(query.select(await kind.replace(request, await _body(request))))

    async def patch(request: Request) -> Response:
        query = read_query(request.query_params)
        return answer(query.select(await kind.patch(request, await _body(request))))

    async def delete(request: Request) -> Response:
        await kind.delete(request)
        return Response(status_code=204)

    one = f"{path}/{{id}}"
    return [
        Route(path, find, methods=["GET"]),
        Route(path, create, methods=["POST"]),
        Route(f"{path}/.search", search, methods=["POST"]),
        Route(one, get, methods=["GET"]),
        Route(one, replace, methods=["PUT"]),
        Route(one, patch, methods=["PATCH"]),
        Route(one, delete, methods=["DELETE"]),
    ]


def base_of(request: Request) -> str:
    """Returns the URL of the service, as the client knows it."""
    return str(request.base_url).rstrip("/")


def answer(body: Mapping[str, Any], status: int = 200, location: str | None = None) -> Response:
    headers = {} if location is None else {"location": location}
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


async def _body(request: Request) -> dict[str, Any]:
    """Returns the body, which must be a JSON object. Raises InvalidScim, UnsupportedMediaType."""
    try:
        body = msgspec.json.decode(await read_json(request))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidScim("the body is not valid JSON", "invalidSyntax") from error
    if not isinstance(body, dict):
        raise InvalidScim("the body must be a JSON object", "invalidSyntax")
    return body


def _listed(total: int, offset: int, found: list[dict[str, Any]]) -> Response:
    return answer(
        {
            "schemas": [_LIST],
            "totalResults": total,
            "startIndex": offset + 1,
            "itemsPerPage": len(found),
            "Resources": found,
        }
    )


def _discovered(found: list[dict[str, Any]]) -> Response:
    return _listed(len(found), 0, found)


def _one_of(found: list[dict[str, Any]], request: Request) -> Response:
    wanted = request.path_params["id"]
    for one in found:
        if one["id"] == wanted:
            return answer(one)
    raise RouteNotFound(f"there is no {request.url.path[:200]}")


def _shown(error: Exception) -> Response:
    """Returns the SCIM error for any error that requests can cause."""
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail)
    if isinstance(error, ValueError) and type(error) not in ERROR_RESPONSES:
        return _error(400, str(error), "invalidValue")
    response = response_for(error)
    if response.status == 401:
        return _error(401, "Send a valid SCIM token as 'Authorization: Bearer <token>'.")
    return _error(response.status, response.message or str(error), _scim_type(error))


def _scim_type(error: Exception) -> str | None:
    if isinstance(error, InvalidScim):
        return error.scim_type
    if isinstance(error, NameTaken):
        return "uniqueness"
    return "invalidFilter" if isinstance(error, InvalidFilter) else None


def _error(status: int, detail: str, scim_type: str | None = None) -> Response:
    body = {"schemas": [_ERROR], "status": str(status), "detail": detail}
    response = answer(body if scim_type is None else body | {"scimType": scim_type}, status)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
