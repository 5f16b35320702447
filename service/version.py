"""Versions of installed packages, ours included."""

from __future__ import annotations

from importlib import metadata


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # running from a source tree that is not installed
        return "unknown"
