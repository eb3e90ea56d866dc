"""`dsec job` against a real control plane with simulated nodes."""

from __future__ import annotations

from tests.cli.conftest import Outcome, dsec_process
from tests.control.cluster import PRINCIPAL, Cluster
from tests.jobs.support import held, nodes


async def test_a_job_is_made_told_paused_and_killed(cluster: Cluster) -> None:
    where = ("--url", cluster.url, "--credentials", str(cluster.home.credentials / f"{PRINCIPAL}.json"))

    async def job(verb: str, *argv: str) -> Outcome:
        return await dsec_process("job", verb, *where, *argv)

    async with nodes(cluster, prefix="cli") as running:
        made = await job("create", "--json", "--wait", "--backend", "sim", "--image", "any", "12")
        assert (made.code, made.objects[0]["running"], made.objects[0]["failures"]) == (0, 12, {})
        name = made.objects[0]["job"]
        assert len(held(running)) == 12
        table = [line.split() for line in (await job("pause", name)).out.splitlines()]
        assert ["paused", "12"] in table
        told = (await job("stat", "--json", name)).objects[0]
        assert (told["states"], told["batches"][0]["running"]) == ({"paused": 12}, 12)
        assert (await job("kill", name)).code == 0
        assert held(running) == []
        refused = await job("stat", "not-a-job")
        assert (refused.code, "bad_id" in refused.err) == (2, True)
