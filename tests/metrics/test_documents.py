"""docs/operations.md names every metric, every alarm, and nothing else."""

from __future__ import annotations

import re

from dsec.bus.metrics import names
from tests.docs.documents import ROOT
from tests.metrics.test_dashboards import RULES

TEXT = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def test_every_metric_is_documented_and_no_other() -> None:
    assert set(re.findall(r"`(dsec_\w+)", TEXT)) == set(names.ALL)


def test_every_alarm_is_documented_and_no_other() -> None:
    assert set(re.findall(r"`(Dsec\w+)`", TEXT)) == {rule["alert"] for rule in RULES}
