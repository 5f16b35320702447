"""Versions of what is installed, ours included."""

from __future__ import annotations

from importlib import metadata


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
