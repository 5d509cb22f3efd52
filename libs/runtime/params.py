"""Parse a call's parameters at the edge: a typed model, or a 422 that names every wrong field and the remedy."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from libs.contracts.calls import Answer, problem

P = TypeVar("P", bound=BaseModel)


def parse(model: type[P], params: dict[str, object]) -> P | Answer:
    """`params` as `model`, or the refusal to send back."""
    try:
        return model.model_validate(params)
    except ValidationError as error:
        errors = [
            {"field": ".".join(str(part) for part in item["loc"]) or "(body)", "message": _said(item)}
            for item in error.errors()
        ]
        return invalid(errors)


def _said(item: ErrorDetails) -> str:
    """What is wrong; in our words where a validator of ours said it (pydantic puts "Value error, " before them)."""
    raised = item.get("ctx", {}).get("error")
    return str(raised) if isinstance(raised, ValueError) else item["msg"]


def invalid(errors: list[dict[str, str]]) -> Answer:
    """422 with the fields that are wrong."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return problem(
        422,
        "request.invalid",
        f"{first['field']}: {first['message']}{more}",
        "Correct the fields named in errors and send the request again.",
        errors=errors,
    )
