"""Storm's REST interface: every route with the fields and types that a client of Storm expects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError, NotAliveError
from sparkstorm.control_plane.insight.records import UserMetricView
from sparkstorm.web.storm_answers import pretty
from sparkstorm.web.storm_components import lag, sanitised
from sparkstorm.web.storm_rest import named_worker
from tests.insight.watched import watched
from tests.web.served import served

S, I, D, B, L, O, N = str, int, float, bool, list, dict, type(None)  # noqa: E741 - as in the reference's tables


def all_of(kind: Any, names: str) -> dict[str, Any]:
    """Return fields of one type, by names with spaces between them."""
    return dict.fromkeys(names.split(), kind)


_TOPOLOGY = (
    all_of(S, "id encodedId owner name status uptime requestedGenericResources")
    | all_of(I, "uptimeSeconds tasksTotal workersTotal executorsTotal replicationCount")
    | all_of(D, "requestedMemOnHeap requestedTotalMem requestedCpu")
    | all_of(D, "assignedMemOnHeap assignedTotalMem")
)
_COMMON = (
    all_of(I, "executors tasks emitted transferred acked failed")
    | all_of(D, "requestedMemOnHeap requestedCpu")
    | all_of(S, "lastError errorHost errorWorkerLogLink")
)
_EXECUTOR = all_of(S, "id uptime host workerLogLink") | all_of(I, "port emitted acked")
_WINDOW = all_of(S, "window windowPretty") | all_of(I, "emitted transferred acked failed")
_WORKER = all_of(S, "supervisorId host topologyId topologyName owner") | {
    "port": I,
    "componentNumTasks": O,
}
_SUPERVISOR = all_of(S, "id host uptime version logLink") | {
    "slotsTotal": I,
    "totalMem": D,
    "blacklisted": B,
}
_BOLT = all_of(S, "capacity executeLatency processLatency") | {"executed": I}
ROUTES: dict[str, dict[str, Any]] = {
    "/cluster/configuration": {"ui.pagination": I, "ui.port": I},
    "/cluster/summary": all_of(I, "supervisors topologies slotsTotal slotsUsed slotsFree")
    | all_of(I, "executorsTotal tasksTotal")
    | all_of(S, "stormVersion memAssignedPercentUtil")
    | all_of(D, "totalMem availCpu")
    | {"stormVersionInfo": O, "schedulerDisplayResource": B},
    "/nimbus/summary": {"nimbuses": L},
    "/supervisor/summary": {"supervisors": [_SUPERVISOR], "logviewerPort": I, "logviewerScheme": S},
    "/supervisor?id=node1": {"supervisors": [_SUPERVISOR], "workers": [_WORKER]},
    "/supervisor?host=host-node1": {"supervisors": [_SUPERVISOR], "workers": [_WORKER]},
    "/history/summary": {"topo-history": [S]},
    "/owner-resources": {
        "owners": [{"owner": S, "totalTopologies": I, "isolatedNodes": I, "memoryGuarantee": S}]
    },
    "/owner-resources/root": {"owner": S, "topologies": [_TOPOLOGY], "totalReqMem": D},
    "/topology/summary": {"topologies": [_TOPOLOGY], "schedulerDisplayResource": B},
    "/topology/{id}": _TOPOLOGY
    | all_of(S, "window windowHint")
    | {
        "msgTimeout": I,
        "debug": B,
        "samplingPct": D,
        "configuration": O,
        "visualizationTable": L,
        "topologyStats": [{**_WINDOW, "completeLatency": S}],
        "workers": [_WORKER],
        "spouts": [_COMMON | all_of(S, "spoutId encodedSpoutId completeLatency")],
        "bolts": [_COMMON | _BOLT | {"boltId": S}],
    },
    "/topology/{id}/metrics": {"topologyStats": L},
    "/topology/{id}/lag": {},
    "/topology/{id}/logconfig": {"namedLoggerLevels": O},
    "/topology/{id}/visualization": {
        "split": {":type": S, ":capacity": D, **all_of(O, ":latency :transferred")}
        | all_of(L, ":stats :inputs")
    },
    "/topology/{id}/visualization-init": {"visualizationTable": L},
    "/topology/{id}/component/split": all_of(S, "id name topologyId topologyStatus componentType")
    | {
        "executors": I,
        "componentErrors": L,
        "boltStats": [_WINDOW | _BOLT],
        "inputStats": [
            all_of(S, "component stream executeLatency") | all_of(I, "executed acked failed")
        ],
        "outputStats": [{"stream": S, "emitted": I, "transferred": I}],
        "executorStats": [_EXECUTOR | _BOLT],
    },
    "/topology/{id}/component/lines": {
        "spoutSummary": [{**_WINDOW, "completeLatency": D, "lastError": S}],
        "outputStats": [
            all_of(S, "stream completeLatency") | all_of(I, "emitted transferred acked failed")
        ],
        "executorStats": [{**_EXECUTOR, "completeLatency": S}],
    },
    "/topology-workers/{id}": {"hostPortList": [{"host": S, "port": I}]},
}


def check(value: Any, form: Any, where: str) -> None:
    """Assert that a value has a form: a type, an object's fields, or a list of one form (not
    empty).
    """
    if isinstance(form, type):
        assert isinstance(value, (int, float) if form is float else form), f"{where} is {value!r}"
        assert form is bool or not isinstance(value, bool), f"{where} is {value!r}"
    elif isinstance(form, list):
        assert value, f"{where} is empty"
        for each in value:
            check(each, form[0], f"{where}[]")
    else:
        for name, inner in form.items():
            assert name in value, f"{where} lacks {name}"
            check(value[name], inner, f"{where}.{name}")


def test_every_route_has_storms_fields_and_types() -> None:
    with served() as at:
        at.run.feed(10)
        for path, form in ROUTES.items():
            answer = at.client.get(f"/api/v1{path.format(id=at.id)}")
            assert answer.status_code == 200, (path, answer.text)
            assert answer.headers["content-type"] == "application/json;charset=utf-8"
            assert "access-control-allow-origin" not in answer.headers
            check(answer.json(), form, path)


def test_figures_are_the_exact_counts() -> None:
    with served() as at:
        at.run.feed(100)
        page = at.client.get(f"/api/v1/topology/{at.id}?window=600").json()
        assert page["windowHint"] == "10m 0s"
        assert {each["spoutId"]: (each["emitted"], each["acked"]) for each in page["spouts"]} == {
            "lines": (100, 100)
        }
        result = {each["boltId"]: each["executed"] for each in page["bolts"]}
        assert result == {"split": 100, "count": 200}
        component = at.client.get(f"/api/v1/topology/{at.id}/component/split").json()
        assert sum(each["executed"] for each in component["executorStats"]) == 100
        assert component["outputStats"] == [
            {"stream": "default", "emitted": 200, "transferred": 200}
        ]
        everything = at.client.get(f"/api/v1/topology/{at.id}?sys=true").json()
        assert any(each["boltId"].startswith("__") for each in everything["bolts"])


def test_actions_change_the_topology_and_answer_as_storm_does() -> None:
    with served() as at:
        for verb, status in (("deactivate", "INACTIVE"), ("activate", "ACTIVE")):
            answer = at.client.post(f"/api/v1/topology/{at.id}/{verb}")
            result = answer.json()
            assert result == {"topologyOperation": verb, "topologyId": at.id, "status": "success"}
            at.run.sampler.step()
            assert at.client.get(f"/api/v1/topology/{at.id}").json()["status"] == status
        body = {"rebalanceOptions": {"numWorkers": 1, "executors": {"count": 1}}}
        assert (
            at.client.post(f"/api/v1/topology/{at.id}/rebalance/0", json=body).json()[
                "topologyOperation"
            ]
            == "rebalance"
        )
        at.run.pass_seconds(5)
        assert at.client.get(f"/api/v1/topology/{at.id}").json()["workersTotal"] == 1
        levels = {"namedLoggerLevels": {"ROOT": {"target_level": "DEBUG", "timeout": 60}}}
        found = at.client.post(f"/api/v1/topology/{at.id}/logconfig", json=levels).json()[
            "namedLoggerLevels"
        ]
        assert found["ROOT"]["target_level"] == "DEBUG"
        assert found["ROOT"]["timeout"] == 60
        assert found["ROOT"]["timeout_epoch"] > 0
        assert (
            at.client.post(f"/api/v1/topology/{at.id}/kill/0").json()["topologyOperation"] == "kill"
        )
        at.run.pass_seconds(5)
        assert at.client.get(f"/api/v1/topology/{at.id}").status_code == 404


def require_refused(status: int, sentence: str, method: str, path: str, body: Any = None) -> None:
    with served() as at:
        answer = at.client.request(method, f"/api/v1{path.format(id=at.id)}", content=body)
        assert answer.status_code == status
        said = answer.json()
        assert said["error"].startswith(str(status)) and sentence in said["errorMessage"]


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/topology/nobody-1-1", 404, "topology nobody-1-1 is not alive; there are words"),
        ("/topology/words", 404, "has that name"),
        ("/topology/{id}?window=7", 400, "expected one of :all-time, 600, 10800, 86400, got '7'"),
        ("/topology/{id}/component/x%3Cscript%3E", 404, "'x<script>', only count, lines, split"),
        ("/supervisor", 400, "give id or host"),
    ],
)
def test_what_is_not_there_is_a_sentence_as_json(path: str, status: int, sentence: str) -> None:
    require_refused(status, sentence, "GET", path)


@pytest.mark.parametrize(
    ("verb", "body", "sentence"),
    [
        ("kill/soon", None, "expected whole seconds, got 'soon'"),
        ("kill/-1", None, "expected whole seconds, got '-1'"),
        ("rebalance/0", b"{", "the body is not JSON"),
        ("rebalance/0", b"[1]", "must be a JSON object"),
        ("rebalance/0", b'{"rebalanceOptions": 7}', "expected dict, got 7"),
        ("rebalance/0", b'{"rebalanceOptions": {"numWorkers": true}}', "expected int, got True"),
        ("rebalance/0", b'{"rebalanceOptions": {"evil": 1}}', "'evil' is not known"),
        ("rebalance/0", b"[" * 60_000, "the body"),
        ("rebalance/0", b" " * 70_000, "more than 65536 bytes"),
        ("logconfig", b'{"namedLoggerLevels": {"ROOT": 1}}', "must be an object"),
    ],
)
def test_an_action_that_is_refused_is_a_sentence_as_json(
    verb: str, body: bytes | None, sentence: str
) -> None:
    status = 413 if "bytes" in sentence else 400
    require_refused(status, sentence, "POST", f"/topology/{{id}}/{verb}", body)


def test_a_server_that_may_only_read_refuses_what_changes_something() -> None:
    with served(is_read_only=True) as at:
        for verb in ("activate", "deactivate", "kill/0", "rebalance/0"):
            answer = at.client.post(f"/api/v1/topology/{at.id}/{verb}")
            assert answer.status_code == 403 and "read" in answer.text
        at.run.sampler.step()
        assert at.client.get(f"/api/v1/topology/{at.id}").json()["status"] == "ACTIVE"


def test_spans_and_streams_are_written_as_storm_does() -> None:
    result = [pretty(each) for each in (0, 59, 600, 106_210)]
    assert result == ["", "59s", "10m 0s", "1d 5h 30m 10s"]
    result = [sanitised(each) for each in ("default", "a b/c", "1st")]
    assert result == ["default", "a_b_c", "_s1st"]


def test_lag_is_of_spouts_whose_source_tells_its_head() -> None:
    with watched() as run:
        view = run.sampler.topology("words")
        assert lag(view) == {}
        gauges = {
            "lag.clicks/0.position": 990,
            "lag.clicks/0.head": 1000,
            "lag.clicks/1.head": 5,
            "lag.records": 3,
            "lag./x.head": 1,
        }
        metrics = [
            UserMetricView("lines", 1, name, "gauge", value) for name, value in gauges.items()
        ]
        metrics += [
            UserMetricView("split", 2, "lag.a/0.head", "gauge", 1),
            UserMetricView("split", 2, "lag.a/0.position", "gauge", 1),
        ]
        found = lag(replace(view, user_metrics=tuple(metrics)))
        place = {"logHeadOffset": 1000, "consumerCommittedOffset": 990, "lag": 10}
        assert found == {
            "lines": {
                "spoutId": "lines",
                "spoutType": "KAFKA",
                "spoutLagResult": {"clicks": {"0": place}},
            }
        }


def test_a_worker_is_named_by_its_node_or_by_a_host_that_has_its_port_once() -> None:
    hosts = {"node-1:6700": "vm", "node-1:6701": "vm", "node-2:6701": "vm"}
    assert named_worker("t", "vm:6700", hosts) == "node-1:6700"
    assert named_worker("t", "node-2:6701", hosts) == "node-2:6701"
    with pytest.raises(InvalidConfigError, match="node-1:6701 and node-2:6701: name one of them"):
        named_worker("t", "vm:6701", hosts)
    with pytest.raises(NotAliveError, match="t has no worker 'vm:6702', only node-1:6700"):
        named_worker("t", "vm:6702", hosts)
