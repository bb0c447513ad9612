"""The base of every contract: unknown keys fail, values are checked on assignment too."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Contract(BaseModel):
    """A pydantic model that refuses unknown keys and non-finite floats."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


def canonical_json(value: Any) -> str:
    """Return one JSON text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON-compatible value, as ``sha256:<hex>``."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()
