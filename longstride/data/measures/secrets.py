"""Credentials and personal data in text: counted, never copied."""

from __future__ import annotations

import re
from typing import Final

_SECRETS: Final = (
    # A key needs a body: documentation that merely names the header is no leak.
    re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----\s+(?:[A-Za-z0-9+/=:,\- ]+\s+)*?"
               r"[A-Za-z0-9+/=]{40,}"),
    re.compile(r"\b(?:AKIA|ASIA)(?![0-9A-Z]*EXAMPLE)[0-9A-Z]{16}\b"),
    re.compile(r"\bAIza[0-9A-Za-z_\-]{35}\b"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}\b"),
    re.compile(r"\bxox[abprs]-[0-9A-Za-z\-]{20,}\b"),
    re.compile(r"\bhf_[A-Za-z]{34}\b"),
    re.compile(r"\bsk-(?:proj-|ant-)?[A-Za-z0-9_\-]{40,}\b"),
)  # fmt: skip
_MARKS: Final = ("PRIVATE KEY", "AKIA", "ASIA", "AIza", "gh", "xox", "hf_", "sk-")
_EMAIL: Final = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_IP: Final = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
EMAIL_PLACEHOLDER: Final = "email@example.com"
IP_PLACEHOLDER: Final = "192.0.2.1"
_RESERVED: Final = re.compile(
    r"@(?:[\w-]+\.)*(?:example\.(?:com|org|net)|localhost|invalid|test)$", re.IGNORECASE
)


def secret_count(text: str) -> int:
    """Private keys with a body and access tokens of well-known forms."""
    if not any(mark in text for mark in _MARKS):
        return 0
    return sum(len(pattern.findall(text)) for pattern in _SECRETS)


def email_count(text: str) -> int:
    """E-mail addresses outside the domains that are reserved for examples."""
    if "@" not in text:
        return 0
    return sum(1 for found in _EMAIL.findall(text) if not _RESERVED.search(found))


def public_ip_count(text: str) -> int:
    """IPv4 addresses that are routable."""
    return sum(1 for found in _IP.findall(text) if _is_public(found))


def without_emails(text: str) -> tuple[str, int]:
    """The text with a reserved address in place of each counted e-mail address, and how many."""
    count = email_count(text)
    if not count:
        return text, 0
    return _EMAIL.sub(
        lambda found: found[0] if _RESERVED.search(found[0]) else EMAIL_PLACEHOLDER, text
    ), count


def without_public_ips(text: str) -> tuple[str, int]:
    """The text with a reserved address in place of each routable IPv4 address, and how many."""
    count = public_ip_count(text)
    if not count:
        return text, 0
    return _IP.sub(lambda found: IP_PLACEHOLDER if _is_public(found[0]) else found[0], text), count


def _is_public(address: str) -> bool:
    parts = [int(part) for part in address.split(".")]
    if max(parts) > 255 or parts[0] in (0, 10, 127) or parts[0] >= 224:
        return False
    # A dotted version number such as 1.2.3.4 is far more common than an address like it.
    if max(parts) < 30:
        return False
    reserved = {(192, 168), (169, 254), (192, 0), (198, 51), (203, 0)}
    private = parts[0] == 172 and 16 <= parts[1] <= 31
    return not private and (parts[0], parts[1]) not in reserved
