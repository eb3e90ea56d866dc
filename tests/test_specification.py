"""SPECIFICATION.md lists what the code has."""

import re
from pathlib import Path

import dsec.sdk
from dsec.bus.errors import DsecError

TEXT = (Path(__file__).parent.parent / "SPECIFICATION.md").read_text()


def tree(root: type[DsecError]) -> dict[str, str]:
    found = {root.code: root.failure.value}
    for child in root.__subclasses__():
        found |= tree(child)
    return found


def test_every_error_code_is_listed_with_its_failure_class() -> None:
    assert dsec.sdk.CommandFailed.code in tree(DsecError)
    listed = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", TEXT, re.MULTILINE))
    assert listed == tree(DsecError)
