"""Formats that the API server checks: names, versions."""

import re

# ASCII: without it \d takes digits of every script. fullmatch: $ would allow a newline.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_NUMBER = r"(0|[1-9]\d*)"
_DOTTED = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_DOTTED})?(?:\+{_DOTTED})?", re.ASCII)


def is_label(text: str) -> bool:
    """A DNS label (RFC 1123) of at most 63 characters."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str, limit: int = 253) -> bool:
    """Lower-case DNS names, each part as in ``is_label`` but for its length."""
    return 0 < len(text) <= limit and all(_LABEL.fullmatch(part) for part in text.split("."))


def is_qualified_name(text: str) -> bool:
    """C identifier of at most 32 characters, with or without ``<domain>/`` before it."""
    domain, slash, name = text.rpartition("/")
    if slash and not is_subdomain(domain, 63):
        return False
    return len(name) <= 32 and _IDENTIFIER.fullmatch(name) is not None


def is_label_name(text: str) -> bool:
    """Keys of labels and taints: ``[<domain>/]<name of at most 63 characters>``."""
    domain, slash, name = text.rpartition("/")
    if slash and not is_subdomain(domain):
        return False
    return is_label_value(name) and bool(name)


def is_label_value(text: str) -> bool:
    return len(text) <= 63 and (not text or _LABEL_NAME.fullmatch(text) is not None)


def semver(text: str) -> tuple[int, int, int]:
    """Semantic version 2.0.0; prerelease and build are checked and left out.

    Raises ``ValueError``.
    """
    match = _SEMVER.fullmatch(text)
    if match is None or len(text) > 64:
        raise ValueError(f"not a semantic version of at most 64 characters: {text!r}")
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch)
