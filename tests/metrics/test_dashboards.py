"""Prometheus' and Grafana's files name only metrics and labels that exist.

That each metric of the list is told by a process, and no other, is tested in `test_node` and `test_platform`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsec.bus.errors import BY_CODE, Failure
from dsec.bus.messages import Standing
from dsec.bus.metrics import names

COMPOSE = Path(__file__).parent.parent.parent / "compose"
RULES = yaml.safe_load((COMPOSE / "prometheus-rules.yml").read_text())["groups"][0]["rules"]
BOARD = json.loads((COMPOSE / "grafana/dashboards/dsec.json").read_text())
SUFFIXES = ("_bucket", "_count", "_sum")
OUTSIDE = {"instance", "job", "le"}
"""Labels that Prometheus adds, and a histogram's."""
_SELECTOR = re.compile(r"\b((?:dsec|process|up)\w*)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_BY = re.compile(r"\b(?:by|without) \(([^)]*)\)")


def expressions() -> list[str]:
    panels = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    return [rule["expr"] for rule in RULES] + panels


def metric_of(name: str) -> names.Metric | None:
    """None for those of Prometheus and of the process."""
    for suffix in SUFFIXES:
        found = names.ALL.get(name.removesuffix(suffix))
        if name.endswith(suffix) and found is not None and found.kind == "histogram":
            return found
    if name.startswith("dsec"):
        assert names.ALL[name].kind != "histogram", f"{name} has only {SUFFIXES}"
        return names.ALL[name]
    return None


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    found = _SELECTOR.findall(expression)
    assert found
    labels = set(OUTSIDE)
    for name, matchers in found:
        metric = metric_of(name)
        own = set() if metric is None or metric in names.OF_PROCESS else {*names.COMMON, *metric.labels}
        labels |= own
        assert {label for label, _ in _MATCHER.findall(matchers)} <= own | OUTSIDE, name
    grouped = {label.strip() for group in _BY.findall(expression) for label in group.split(",")}
    assert grouped <= labels


@pytest.mark.parametrize("expression", expressions())
def test_what_labels_are_compared_with_can_be_told(expression: str) -> None:
    known = {
        "code": {"ok", *BY_CODE},
        "failure": {"", *Failure},
        "standing": {"held", *Standing},
        "by": {"load", "project"},
        "outcome": {"ran", "failed", "stored", "refused", "sent_again"},
    }
    for label, value in _MATCHER.findall(expression):
        if label in known:
            assert set(value.split("|")) <= known[label]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alarm_has_a_severity_and_a_summary_with_labels_that_it_has(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = {label.strip() for group in _BY.findall(rule["expr"]) for label in group.split(",")}
    assert used <= (grouped or {*OUTSIDE, *names.COMMON})


def test_every_metric_has_a_place_in_the_dashboard() -> None:
    shown = {
        metric.name
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
        for name, _ in _SELECTOR.findall(target["expr"])
        if (metric := metric_of(name)) is not None
    }
    beside = {"dsec_build_info", "dsec_requests_unserved_total", "dsec_records_total"}
    assert set(names.ALL) - shown - beside <= {"dsec_journal_commit_seconds_total", "dsec_stream_max_bytes"}


def test_the_files_fit_together() -> None:
    prometheus = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (job, _) = prometheus["scrape_configs"]
    assert job["job_name"] == "dsec"
    for file in (*prometheus["rule_files"], *job["file_sd_configs"][0]["files"]):
        assert (COMPOSE / Path(file).name).exists()
    provisioned = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text())
    uid = provisioned["datasources"][0]["uid"]
    sources = [panel["datasource"]["uid"] for panel in BOARD["panels"] if "datasource" in panel]
    assert set(sources) == {uid}
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
