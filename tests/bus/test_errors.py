"""Errors keep their class, code and failure over the wire."""

import pytest

from dsec.bus.errors import BY_CODE, DsecError, Failure


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_an_error_comes_back_as_itself(code: str) -> None:
    error = BY_CODE[code]("what to do", field="limits.disk", retry_after=1.5)
    back = DsecError.from_body(error.body())
    assert type(back) is type(error)
    assert (back.message, back.field, back.retry_after) == ("what to do", "limits.disk", 1.5)
    assert back.failure is error.failure


def test_codes_are_unique() -> None:
    def codes(root: type[DsecError]) -> list[str]:
        return [root.code, *(code for child in root.__subclasses__() for code in codes(child))]

    assert sorted(set(codes(DsecError))) == sorted(codes(DsecError))
    assert set(BY_CODE) <= set(codes(DsecError))


def test_an_unknown_code_of_a_newer_part_keeps_its_failure_class() -> None:
    error = DsecError.from_body({"code": "from_the_future", "failure": "policy", "message": "no"})
    assert error.failure is Failure.POLICY


def test_an_error_that_quotes_a_large_input_still_fits_an_answer() -> None:
    body = DsecError("x" * 1_000_000, field="y" * 1_000_000).body()
    assert len(str(body)) < 3000
