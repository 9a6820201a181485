"""Serves `/scim/v2` (RFC 7644): users, groups and discovery, for the bearer of an organization's SCIM token.

An ASGI application of its own: errors have SCIM's form, and its schemas describe it in place of the OpenAPI
document. Nothing here is counted, limited or billed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from tenants.service import AccountServices

PATH = "/scim/v2"
MEDIA_TYPE = "application/scim+json"
_ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"
_LIST = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
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


class _Users:
    """What the routes of `/Users` do."""

    def __init__(self, app: ScimApp) -> None:
        self._app = app

    async def find(self, request: Request, query: Query) -> tuple[int, list[dict[str, Any]]]:
        total, users = await self._app.accounts.provisioned_users.list(
            request.state.tenant_id, query.condition, offset=query.offset, limit=query.limit
        )
        return total, [user_resource(user, base_of(request)) for user in users]

    async def get(self, request: Request, query: Query) -> dict[str, Any]:
        users = self._app.accounts.provisioned_users
        found = await users.get(request.state.tenant_id, request.path_params["id"])
        return user_resource(found, base_of(request))

    async def create(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        users, state = self._app.accounts.provisioned_users, request.state
        return user_resource(
            await users.create(state.tenant_id, read_user(body), state.actor), base_of(request)
        )

    async def replace(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        users, state = self._app.accounts.provisioned_users, request.state
        profile = read_user(body)
        found = await users.update(
            state.tenant_id, request.path_params["id"], lambda before: profile, state.actor
        )
        return user_resource(found, base_of(request))

    async def patch(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        users, state = self._app.accounts.provisioned_users, request.state
        found = await users.update(
            state.tenant_id,
            request.path_params["id"],
            lambda before: read_user(patched(user_document(before), body)),
            state.actor,
        )
        return user_resource(found, base_of(request))

    async def delete(self, request: Request) -> None:
        users, state = self._app.accounts.provisioned_users, request.state
        await users.delete(state.tenant_id, request.path_params["id"], state.actor)


class _Groups:
    """What the routes of `/Groups` do."""

    def __init__(self, app: ScimApp) -> None:
        self._app = app

    async def find(self, request: Request, query: Query) -> tuple[int, list[dict[str, Any]]]:
        total, groups = await self._app.accounts.provisioned_groups.list(
            request.state.tenant_id,
            query.condition,
            offset=query.offset,
            limit=query.limit,
            with_members=query.shows("members"),
        )
        return total, [group_resource(group, base_of(request)) for group in groups]

    async def get(self, request: Request, query: Query) -> dict[str, Any]:
        groups = self._app.accounts.provisioned_groups
        group_id, with_members = request.path_params["id"], query.shows("members")
        found = await groups.get(request.state.tenant_id, group_id, with_members=with_members)
        return group_resource(found, base_of(request))

    async def create(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        groups, state = self._app.accounts.provisioned_groups, request.state
        return group_resource(
            await groups.create(state.tenant_id, read_group(body), state.actor), base_of(request)
        )

    async def replace(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        groups, state = self._app.accounts.provisioned_groups, request.state
        profile = read_group(body)
        found = await groups.update(
            state.tenant_id, request.path_params["id"], lambda before: profile, state.actor
        )
        return group_resource(found, base_of(request))

    async def patch(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        groups, state = self._app.accounts.provisioned_groups, request.state
        found = await groups.update(
            state.tenant_id,
            request.path_params["id"],
            lambda before: read_group(patched(group_document(before), body)),
            state.actor,
        )
        return group_resource(found, base_of(request))

    async def delete(self, request: Request) -> None:
        groups, state = self._app.accounts.provisioned_groups, request.state
        await groups.delete(state.tenant_id, request.path_params["id"], state.actor)


def _resource_routes(path: str, kind: _Users | _Groups) -> list[Route]:
    async def listed(request: Request, query: Query) -> Response:
        total, found = await kind.find(request, query)
        return answer(
            {
                "schemas": [_LIST],
                "totalResults": total,
                "startIndex": query.offset + 1,
                "itemsPerPage": len(found),
                "Resources": [query.select(one) for one in found],
            }
        )

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


def _discovered(found: list[dict[str, Any]]) -> Response:
    count = len(found)
    return answer(
        {
            "schemas": [_LIST],
            "totalResults": count,
            "startIndex": 1,
            "itemsPerPage": count,
            "Resources": found,
        }
    )


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
