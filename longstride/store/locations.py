"""Places by URI: a folder on this machine, or a prefix of a bucket behind the S3 protocol.

Endpoint, region and credentials of S3 come from where every S3 client looks for them
(AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, a web
identity, the instance's role); none of them is ever part of a URI, a recipe or a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from longstride.errors import StoreError

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+,@-]*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
CONNECT_SECONDS = 10
READ_SECONDS = 60
ATTEMPTS = 2
"""Of each request by the client library; s3fs repeats every request up to five times above that."""


@dataclass(frozen=True)
class Location:
    """A place: `scheme` is `file` or `s3`; `root` is an absolute path, or bucket/prefix."""

    scheme: str
    root: str

    @property
    def uri(self) -> str:
        """The place as a URI."""
        return f"{self.scheme}://{self.root}"

    @property
    def bucket(self) -> str:
        """Bucket of an S3 place."""
        return self.root.partition("/")[0]


def parse_location(uri: str) -> Location:
    """Read `s3://bucket/prefix`, `file:///folder` or a plain path.

    Raises:
        StoreError: Another scheme, credentials or a query inside the URI, or no bucket name.
    """
    scheme, _, _ = uri.partition("://")
    if scheme == uri:
        return Location("file", str(Path(uri).expanduser().resolve()))
    parts = urlsplit(uri)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise StoreError(
            f"a URI of scheme {scheme!r} carries a query, a fragment or credentials; give "
            "scheme://bucket/prefix alone, and credentials in the environment"
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreError(f"{uri} names the host {parts.netloc!r}; write file:///folder")
        return Location("file", str(Path(unquote(parts.path)).resolve()))
    if scheme != "s3":
        raise StoreError(f"{uri} has scheme {scheme!r}; use s3://bucket/prefix or a folder")
    if not _BUCKET.fullmatch(parts.netloc):
        raise StoreError(f"{uri} names no bucket ({parts.netloc!r}); write s3://bucket/prefix")
    prefix = parts.path.strip("/")
    if prefix:
        require_name(prefix)
    return Location("s3", f"{parts.netloc}/{prefix}" if prefix else parts.netloc)


def require_name(name: str) -> str:
    """Refuse what is no plain relative name: `..`, absolute, backslash, %-escapes, NUL, blanks.

    Raises:
        StoreError: Names the value.
    """
    if len(name) > 900 or not all(_SEGMENT.fullmatch(part) for part in name.split("/")):
        raise StoreError(
            f"{name[:200]!r} is not a name in a store: parts of letters, digits and ._=+,@- that "
            "begin with a letter or digit, separated by single slashes"
        )
    return name


def s3_files() -> Any:
    """An s3fs file system with limits on every wait, from the environment's settings."""
    import s3fs

    return s3fs.S3FileSystem(
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"mode": "standard", "max_attempts": ATTEMPTS},
        },
    )


@contextmanager
def storage_errors(location: Location, doing: str) -> Iterator[None]:
    """Turn what a storage client raises into `StoreError` with the fix.

    A missing object stays FileNotFoundError, an existing one FileExistsError: the caller knows
    what they mean.
    """
    if location.scheme == "file":
        try:
            yield
        except (FileNotFoundError, FileExistsError, StoreError):
            raise
        except OSError as error:
            raise StoreError(
                f"cannot {doing} in {location.uri}: {error.strerror or error}"
            ) from error
        return
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (FileExistsError, StoreError):
        raise
    except FileNotFoundError as error:
        if "specified bucket" not in str(error).lower():
            raise
        raise StoreError(_explained(location, doing, error)) from error
    except (BotoCoreError, ClientError, OSError) as error:
        raise StoreError(_explained(location, doing, error)) from error


def _explained(location: Location, doing: str, error: Exception) -> str:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    where = f"{location.uri} at {endpoint or 'the default S3 endpoint'}"
    return f"cannot {doing} in {where}: {_first_line(error)}; {_fix(location, error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__


def _fix(location: Location, error: Exception) -> str:
    """What to mend, by the kind of failure."""
    kinds = {type(one).__name__ for one in _chain(error)}
    text = " ".join(str(one) for one in _chain(error))
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a secret that does "
            "(infra/README.md)"
        )
    if any(code in text for code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "Token")):
        return "the endpoint does not know these credentials; check key, secret and endpoint"
    if "bucket" in text.lower() and ("exist" in text.lower() or "NoSuchBucket" in text):
        return f"create the bucket {location.bucket!r}, or mend its name"
    if isinstance(error, PermissionError) or "AccessDenied" in text or "Forbidden" in text:
        return f"these credentials may not do this in bucket {location.bucket!r}; grant it"
    if kinds & {
        "EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError", "SSLError",
        "ReadTimeoutError", "ClientConnectorError", "ConnectionRefusedError",
    }:  # fmt: skip
        return "check that AWS_ENDPOINT_URL is right and that the server answers there"
    return "check endpoint, bucket and credentials: longstride store check URI"


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain
