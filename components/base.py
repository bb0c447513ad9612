"""What every component shares: the pinned image and no installation at run time."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import resources
from typing import Any

import yaml
from kfp import dsl


def image() -> str:
    """The image that components run in on a cluster, pinned by digest.

    LONGSTRIDE_IMAGE overrides the committed reference at compile time.
    """
    override = os.environ.get("LONGSTRIDE_IMAGE")
    if override:
        return override
    text = resources.files("components").joinpath("images.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["longstride"])


def component(function: Callable[..., Any]) -> Any:
    """`dsl.component` in our image, which already holds everything that the body imports."""
    return functools.partial(dsl.component, base_image=image(), install_kfp_package=False)()(
        function
    )
