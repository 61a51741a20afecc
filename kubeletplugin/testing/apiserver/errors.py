"""Errors as the API server words them (``k8s.io/apimachinery/pkg/api/errors``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from kubeletplugin.contract import Object


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding of validation: a path in the object and what is wrong there."""

    field: str  # "spec.devices[1].name"
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class StatusError(Exception):
    """Answered to the client as a ``metav1.Status``."""

    def __init__(
        self, code: int, reason: str, message: str, details: Object | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details

    def body(self) -> Object:
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "code": self.code,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        return status


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def internal(message: str) -> StatusError:
    """A plain Go error: the server gives it no reason."""
    return StatusError(500, "", message)


def invalid_options(kind: str, field: str, message: str, reason: str) -> StatusError:
    """Of the request's query; worded like an object without a name."""
    return invalid(kind, "meta.k8s.io", "", [Problem(field, message, reason)])


def not_found(plural: str, group: str, name: str) -> StatusError:
    qualified = f"{plural}.{group}" if group else plural
    return StatusError(
        404, "NotFound", f'{qualified} "{name}" not found', _details(plural, group, name)
    )


def already_exists(plural: str, group: str, name: str) -> StatusError:
    qualified = f"{plural}.{group}" if group else plural
    message = f'{qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    qualified = f"{plural}.{group}" if group else plural
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(plural, group, name))


def invalid(kind: str, group: str, name: str, problems: Sequence[Problem]) -> StatusError:
    qualified = f"{kind}.{group}" if group else kind
    listed = ", ".join(map(str, problems))
    message = f'{qualified} "{name}" is invalid: ' + (f"[{listed}]" if problems[1:] else listed)
    causes = [
        {"reason": found.reason, "message": found.message, "field": found.field}
        for found in problems
    ]
    details = {**_details(kind, group, name), "causes": causes}
    return StatusError(422, "Invalid", message, details)


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def _details(kind: str, group: str, name: str) -> Object:
    named = {"name": name, "group": group, "kind": kind}
    return {field: value for field, value in named.items() if value}
