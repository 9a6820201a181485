"""Encrypts and authenticates connections over TCP: CURVE keys, and how endpoints name them.

An engine has a key pair of its own for each start. All its clients share one key pair, whose public half the
engine is given; other keys are rejected during the handshake, before any message. While that pair is rotated,
engines are given two. Keys are written as 64 hexadecimal digits.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

import zmq
from zmq.utils import z85

from engine.files import write_secret

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Where libzmq asks whether a client may connect."""
MAX_KEYS = 2
"""Keys in a file: more than two are never valid at a time."""
_HEX_KEY = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public and a secret key, each of 32 bytes."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(z85.decode(public), z85.decode(secret))

    @classmethod
    def read(cls, path: Path) -> KeyPair:
        """Returns the key pair whose secret key is in a file: the first, if it has two. Raises ValueError."""
        return cls.read_all(path)[0]

    @classmethod
    def read_all(cls, path: Path) -> list[KeyPair]:
        """Returns the key pairs whose secret keys are in a file, one a line: the one to use, and while it is
        rotated the other one that is accepted. Raises ValueError.
        """
        try:
            secrets = [decode_key(line) for line in path.read_text().split()]
            if not 1 <= len(secrets) <= MAX_KEYS:
                raise ValueError(f"it has {len(secrets)} keys, and must have 1 or {MAX_KEYS}, one a line")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(
                f"the engine clients' secret key in {path} cannot be used: {error}; "
                "copy the file from the machine that runs `rootstock up`"
            ) from None
        return [cls(z85.decode(zmq.curve_public(z85.encode(secret))), secret) for secret in secrets]

    def write(self, path: Path) -> None:
        """Writes the secret key to a file that only this account reads, unless it exists. Raises OSError."""
        write_secret(path, self.secret.hex())


def decode_key(text: str) -> bytes:
    """Returns a key's 32 bytes. Raises ValueError."""
    if _HEX_KEY.match(text) is None:
        raise ValueError(f"a key has 64 hexadecimal digits, this has {len(text)} characters")
    return bytes.fromhex(text)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens, and the keys that a connection to it needs."""

    endpoint: str
    server: bytes | None = None
    """The engine's public key; None: the connection is not encrypted."""
    client: KeyPair | None = None
    alternatives: tuple[Address, ...] = ()
    """The same place with other keys, for when a connection with these is not accepted."""

    @classmethod
    def shared(cls, endpoint: str, keys: Sequence[KeyPair]) -> Address:
        """Returns the address of an engine that has the same key file as its client: it uses one of `keys`,
        which during a rotation need not be the first.
        """
        first, *others = [cls(endpoint, server.public, keys[0]) for server in keys]
        return dataclasses.replace(first, alternatives=tuple(others))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `ipc://PATH`, `tcp://HOST:PORT` or `tcp://HOST:PORT?key=HEX&secret=FILE`: the engine's public
        key, and the file with the clients' secret key. Raises ValueError.
        """
        endpoint, separator, query = text.partition("?")
        if not text.startswith("tcp://") or not separator:
            return cls(text)
        named = dict(parse_qsl(query, keep_blank_values=True))
        if named.keys() != {"key", "secret"}:
            raise ValueError(f"engine endpoint {text!r}: give tcp://HOST:PORT?key=HEX&secret=FILE")
        try:
            server = decode_key(named["key"])
        except ValueError as error:
            raise ValueError(f"engine endpoint {endpoint}: key: {error}") from None
        return cls(endpoint, server, KeyPair.read(Path(named["secret"])))

    def secure(self, socket: zmq.Socket) -> None:
        """Sets the keys of a socket that is about to connect."""
        if self.server is None:
            return
        assert self.client is not None
        socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(self.server))
        socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(self.client.public))
        socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(self.client.secret))


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The keys of an engine's socket."""

    own: KeyPair
    clients: frozenset[bytes]
    """The public keys that may connect."""


class ClientCheck:
    """Accepts clients by their keys (the protocol is ZAP). Belongs to the thread that polls `socket`."""

    def __init__(self, context: zmq.Context, keys: ServerKeys) -> None:
        """Create it before the server's socket binds: without it libzmq accepts every key."""
        self.num_rejected = 0
        """Connections with a key that is not a client's."""
        self._keys = keys
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)

    def secure(self, server: zmq.Socket) -> None:
        """Makes a socket that is about to bind accept nothing but these clients."""
        server.setsockopt(zmq.CURVE_SERVER, 1)
        server.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(self._keys.own.secret))
        server.setsockopt(zmq.ZAP_DOMAIN, b"rootstock")

    def answer(self) -> None:
        """Answers one question of libzmq, which has been received."""
        version, question, _, _, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
        is_client = mechanism == b"CURVE" and len(credentials) == 1 and credentials[0] in self._keys.clients
        self.num_rejected += not is_client
        status = (b"200", b"OK") if is_client else (b"400", b"unknown key")
        self.socket.send_multipart((version, question, *status, b"", b""))
