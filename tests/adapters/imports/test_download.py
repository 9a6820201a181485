"""Looking files up at a hub and downloading them, over networks and hubs that fail in every way."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from pathlib import Path

import pytest

from adapters.imports.admission import ImportAdmission
from adapters.imports.client import ImportClient, SourceRequest
from adapters.imports.download import FileDownload
from adapters.imports.hub import HubRemote
from adapters.imports.policy import ImportPolicy
from adapters.imports.sources import HubSource
from adapters.jobs.errors import JobFailed
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from tenants.key_secrets import KeySecrets
from tenants.outbound.errors import AddressRefused, EndpointUnreachable
from tests.adapters.imports.conftest import NAME, PIRATE
from tests.support.hub import TOKEN, FakeHub, Repository


def remote_of(hub: FakeHub, **changes: str) -> HubRemote:
    source = dataclasses.replace(HubSource(NAME, endpoint=hub.url), **changes)
    return HubRemote(client_of(hub), source)


def client_of(hub: FakeHub, **changes: float) -> ImportClient:
    policy = ImportPolicy(hubs=(hub.url,), private_hosts=frozenset({hub.host}), timeout=5.0)
    return ImportClient(dataclasses.replace(policy, **changes))


async def download(
    hub: FakeHub, directory: Path, name: str = WEIGHTS_FILE, *, beginning: bytes = b"", **changes: float
) -> bytes:
    """What is in the file afterwards, which held `beginning`."""
    remote = remote_of(hub)
    pinned = await remote.pin()
    (file,) = [one for one in pinned.files if one.name == name]
    path = directory / "partial"
    path.write_bytes(beginning)
    with path.open("a+b") as opened:
        await FileDownload(
            client_of(hub, **changes), remote, file, pinned, opened, lambda present: None, (0.0, 0.0)
        ).run()
    return path.read_bytes()


async def test_a_dropped_connection_is_followed_by_a_request_for_the_rest(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.drop_after = [200_000, 50_000]
    assert await download(hub, tmp_path) == PIRATE[WEIGHTS_FILE]
    ranges = [one.headers.get("range") for one in hub.downloads(WEIGHTS_FILE)]
    assert ranges == [None, "bytes=200000-", "bytes=250000-"]


@pytest.mark.parametrize("status", [408, 429, 500])
async def test_a_status_that_may_pass_is_followed_by_another_try(
    hub: FakeHub, tmp_path: Path, status: int
) -> None:
    remote = remote_of(hub)
    pinned = await remote.pin()
    hub.statuses = [status]
    with (tmp_path / "partial").open("a+b") as opened:
        file = pinned.files[0]
        download = FileDownload(client_of(hub), remote, file, pinned, opened, lambda present: None, (0.0,))
        await download.run()
    assert not hub.statuses
    assert (tmp_path / "partial").read_bytes() == PIRATE[file.name]


async def test_a_server_without_ranges_sends_it_all_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.drop_after, hub.knows_ranges = [200_000], False
    assert await download(hub, tmp_path) == PIRATE[WEIGHTS_FILE]


async def test_connections_that_bring_nothing_are_given_up(hub: FakeHub, tmp_path: Path) -> None:
    hub.drop_after = [0] * 9
    with pytest.raises(JobFailed, match="the connection broke") as failed:
        await download(hub, tmp_path)
    assert failed.value.code == "source_unavailable"
    assert len(hub.downloads(WEIGHTS_FILE)) == 3


@pytest.mark.parametrize("beginning", [b"\0" * 1000, PIRATE[WEIGHTS_FILE] + b"more"])
async def test_a_wrong_beginning_is_downloaded_again(hub: FakeHub, tmp_path: Path, beginning: bytes) -> None:
    assert await download(hub, tmp_path, beginning=beginning) == PIRATE[WEIGHTS_FILE]


@pytest.mark.parametrize("states_lfs", [True, False])
@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
async def test_one_flipped_bit_is_refused(hub: FakeHub, tmp_path: Path, name: str, states_lfs: bool) -> None:
    """Files outside LFS are checked by git's object id."""
    sent = bytearray(PIRATE[name])
    sent[-1] ^= 1
    hub.tampered, hub.states_lfs = {name: bytes(sent)}, states_lfs
    with pytest.raises(JobFailed, match="damaged") as failed:
        await download(hub, tmp_path, name)
    assert (failed.value.code, failed.value.param) == ("source_damaged", name)


async def test_more_bytes_than_the_hub_stated_are_not_written(hub: FakeHub, tmp_path: Path) -> None:
    hub.stated_size = 1000
    with pytest.raises(JobFailed, match="bytes or more, not 1000 as its source stated"):
        await download(hub, tmp_path)
    assert (tmp_path / "partial").stat().st_size <= 1000


async def test_a_download_that_is_too_slow_fails(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.imports.download.GRACE", 0.2)
    hub.holds = asyncio.Event()
    with pytest.raises(JobFailed, match="took more than") as failed:
        await download(hub, tmp_path, min_rate=1e9)
    assert failed.value.code == "source_too_slow"


async def test_a_server_that_falls_silent_is_asked_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.holds = asyncio.Event()
    almost = PIRATE[WEIGHTS_FILE][:-16]
    with pytest.raises(JobFailed, match="it sent nothing for too long"):
        await download(hub, tmp_path, beginning=almost, timeout=0.1)
    assert len(hub.downloads(WEIGHTS_FILE)) > 3


async def test_weights_as_pickle_only_are_named(hub: FakeHub) -> None:
    hub.repositories[NAME].commit({CONFIG_FILE: b"{}", "adapter_model.bin": b"\x80\x02."})
    with pytest.raises(JobFailed) as failed:
        await remote_of(hub).pin()
    assert (failed.value.code, failed.value.param) == ("pickle_only", WEIGHTS_FILE)
    assert "adapter_model.bin" in failed.value.message
    assert "safe_serialization=True" in failed.value.message


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"revision": "v9"}, "source_not_found", "source.revision"),
        ({"repository": "acme/absent"}, "source_forbidden", "source.token"),
        ({"repository": "acme/empty"}, "source_not_found", CONFIG_FILE),
        ({"repository": "acme/private", "token": "hf_wrong"}, "source_forbidden", "source.token"),
    ],
)
async def test_what_the_hub_does_not_give_names_the_field(
    hub: FakeHub, changes: dict[str, str], code: str, param: str
) -> None:
    for name in ("acme/empty", "acme/private"):
        hub.repositories[name] = Repository(is_private=name == "acme/private")
        hub.repositories[name].commit({"README.md": b"nothing"})
    with pytest.raises(JobFailed) as failed:
        await remote_of(hub, **changes).pin()
    assert (failed.value.code, failed.value.param) == (code, param)


async def test_a_hub_that_states_no_digest_is_not_trusted(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.states_lfs = False
    monkeypatch.setattr("tests.support.hub.git_id", lambda data: None)
    with pytest.raises(JobFailed, match="states no size and digest"):
        await remote_of(hub).pin()


# Addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"]
)
async def test_no_request_goes_to_a_private_address(hub: FakeHub, address: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34", address]  # one of several is enough to refuse

    client = ImportClient(ImportPolicy(), resolve=resolve)
    with pytest.raises(AddressRefused, match="no public address"):
        async with client.send(SourceRequest("https://huggingface.co/api")):
            pass


async def test_the_address_that_was_checked_is_the_one_connected_to(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves to another address the second time has no second time."""
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    connected = []

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    async def connect(self: object, host: str, port: int, *rest: object) -> object:
        connected.append((host, port))
        raise OSError("a test connects nowhere")

    monkeypatch.setattr("httpcore2.AnyIOBackend.connect_tcp", connect)
    client = ImportClient(ImportPolicy(), resolve=resolve)
    with pytest.raises(EndpointUnreachable, match="the connection cannot be made"):
        async with client.send(SourceRequest("https://huggingface.co/api")):
            pass
    assert connected == [("93.184.216.34", 443)]


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("https://10.0.0.1/weights", "no public address"),
        ("https://169.254.169.254/latest/meta-data", "no public address"),
        ("http://93.184.216.34/weights", "does not begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("https://user@93.184.216.34/", "no user"),
    ],
)
async def test_each_redirect_is_checked_anew(
    hub: FakeHub, tmp_path: Path, location: str, reason: str
) -> None:
    hub.redirect_to = location
    with pytest.raises(JobFailed, match=reason) as failed:
        await download(hub, tmp_path)
    assert failed.value.code == "source_refused"


async def test_a_location_may_be_as_long_as_signed_urls_are(hub: FakeHub, tmp_path: Path) -> None:
    digest = hashlib.sha256(PIRATE[WEIGHTS_FILE]).hexdigest()
    hub.redirect_to = f"{hub.url}/store/{digest}/{WEIGHTS_FILE}?policy={'x' * 5000}&name=a|b \u00e9#part"
    assert await download(hub, tmp_path) == PIRATE[WEIGHTS_FILE]


async def test_redirects_are_counted(hub: FakeHub, tmp_path: Path) -> None:
    hub.redirect_to = f"{hub.url}/{NAME}/resolve/main/{WEIGHTS_FILE}"
    with pytest.raises(JobFailed, match="redirects more than 5 times"):
        await download(hub, tmp_path)


async def test_a_public_hub_cannot_redirect_to_a_mirror_of_the_operators(hub: FakeHub) -> None:
    """Only an endpoint that the operator vouches for leads to private hosts."""
    client = client_of(hub)
    first = hub.url.replace("127.0.0.1", "localhost")  # not listed as private

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = ImportClient(client.policy, resolve=resolve)
    with pytest.raises(AddressRefused):
        async with client.send(SourceRequest(first)):
            pass
    assert hub.asked == []


async def test_credentials_stay_with_the_first_host(hub: FakeHub) -> None:
    """`localhost` is another host than `127.0.0.1`."""
    other = f"localhost:{hub.port}"
    policy = ImportPolicy((hub.url,), (), frozenset({hub.host, other}))
    hub.redirect_to = f"http://{other}/store/elsewhere"
    request = SourceRequest(
        f"{hub.url}/{NAME}/resolve/main/{WEIGHTS_FILE}", credentials={"authorization": f"Bearer {TOKEN}"}
    )
    with pytest.raises(EndpointUnreachable):
        async with ImportClient(policy).send(request):
            pass
    first, second = hub.asked
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert (second.headers["host"], second.headers.get("authorization")) == (other, None)


# Credentials ----------------------------------------------------------------------------------------------


def test_credentials_are_sealed_for_one_adapter() -> None:
    admission = ImportAdmission(ImportPolicy(), "s" * 32)
    source = admission.admitted(HubSource("a/b", token=TOKEN))
    assert TOKEN not in repr(source)
    stored = admission.sealed(source, "ten_1", "adp_1")
    assert TOKEN not in str(stored)
    assert admission.opened(stored, "ten_1", "adp_1") == source
    for other in (("ten_1", "adp_2"), ("ten_2", "adp_1")):
        with pytest.raises(ValueError, match="decrypted"):
            admission.opened(stored, *other)
    with pytest.raises(ValueError, match="decrypted"):
        ImportAdmission(ImportPolicy(), "t" * 32).opened(stored, "ten_1", "adp_1")


def test_credentials_are_opened_while_the_key_secret_is_rotated() -> None:
    source = HubSource("a/b", endpoint="https://huggingface.co", token=TOKEN)
    stored = ImportAdmission(ImportPolicy(), "s" * 32).sealed(source, "ten_1", "adp_1")
    rotating = ImportAdmission(ImportPolicy(), KeySecrets("t" * 32, "s" * 32))
    assert rotating.opened(stored, "ten_1", "adp_1") == rotating.admitted(source)
