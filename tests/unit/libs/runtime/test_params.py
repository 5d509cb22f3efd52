"""What a caller reads when parameters are wrong."""

from __future__ import annotations

from pydantic import BaseModel, field_validator

from libs.contracts.calls import Answer
from libs.runtime.params import parse


class _Wanted(BaseModel):
    count: int
    name: str = "x"

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if len(name) > 3:
            raise ValueError("use at most 3 characters")
        return name


def test_a_validator_of_ours_is_quoted_and_every_wrong_field_is_named() -> None:
    answer = parse(_Wanted, {"count": "many", "name": "much too long"})
    assert isinstance(answer, Answer) and answer.status == 422
    messages = {error["field"]: error["message"] for error in answer.body["errors"]}
    assert messages["name"] == "use at most 3 characters"
    assert "integer" in messages["count"]
