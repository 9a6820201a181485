"""Signs requests to S3 by Amazon's Signature Version 4, with the tenant's keys alone.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import urlsplit

from adapters.imports.sources import BucketSource

_EMPTY_BODY = hashlib.sha256(b"").hexdigest()


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], source: BucketSource, now: datetime
) -> dict[str, str]:
    """Returns `headers`, in lower case, with those that sign a request without query and body; unchanged for
    a source without keys.
    """
    if source.access_key_id is None or source.secret_access_key is None:
        return dict(headers)
    at, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    parts = urlsplit(url)
    sent = {**headers, "x-amz-content-sha256": _EMPTY_BODY, "x-amz-date": at}
    if source.session_token is not None:
        sent["x-amz-security-token"] = source.session_token
    signed = {"host": parts.netloc, **sent}
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = f"{method}\n{parts.path}\n\n{lines}\n{names}\n{_EMPTY_BODY}"
    scope = f"{day}/{source.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
    key = f"AWS4{source.secret_access_key}".encode()
    for part in (day, source.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    signature = hmac.digest(key, text.encode(), hashlib.sha256).hex()
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={source.access_key_id}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    return sent
