"""Any request to the server is answered as described or refused in a sentence, never by a fault of
ours.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparkstorm.web.actions import _COMMANDS
from sparkstorm.web.openapi import _ACTIONS, ERROR, OPERATIONS, openapi
from tests.tiers import examples
from tests.web.served import Served, served

_DOCUMENT = openapi()
_KNOWN = [
    "words",
    "split",
    "count",
    "lines",
    "3",
    "0",
    "10m",
    "all",
    "600",
    ":all-time",
    "node1:6700",
    "drain",
    "worker.log",
    "rebalance",
    "log-level",
    "0123456789abcdef",
    "*",
    "",
]
_ASKED = [
    "at",
    "window",
    "component",
    "sys",
    "id",
    "host",
    "file",
    "search-string",
    "num-matches",
    "start",
    "topoId",
    "port",
]
_ASKED += ["time_ms", "topology", "message", "q", "after"]
_FIELDS = [
    "rebalanceOptions",
    "numWorkers",
    "executors",
    "namedLoggerLevels",
    "ROOT",
    "target_level",
    "timeout",
    "reason",
    "split",
]
_FIELDS += ["topology", "workers", "typed", "ids", "step", "level", "secs", "worker"]
_WORDS = st.one_of(st.sampled_from(_KNOWN), st.text(max_size=40), st.integers().map(str))
_QUERIES = st.dictionaries(st.sampled_from(_ASKED), _WORDS, max_size=3)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(_FIELDS), inner, max_size=3
    )


_BODIES = st.dictionaries(
    st.sampled_from(_FIELDS), st.recursive(_SCALARS, _deeper, max_leaves=8), max_size=3
)


_STREAMS = {("GET", path) for _, path in OPERATIONS if path.endswith("/stream")}
_LONG = ("/page/traces/", "/page/stacks/")


def test_every_route_is_described_and_nothing_else() -> None:
    with served() as at:
        pages = {("GET", "/")}
        described = {
            (method, re.sub("^/page/(plan|do)/[a-z-]+$", r"/page/\1/{verb}", path))
            for method, path in OPERATIONS
        }
        assert at.routes - pages == described and len(OPERATIONS) > 60
        assert _ACTIONS.keys() == _COMMANDS.keys()


def test_any_question_is_answered_as_described_or_refused() -> None:
    with served() as at:
        at.run.feed(5)

        @given(data=st.data())
        @settings(max_examples=examples(150))
        def ask_any(data: st.DataObject) -> None:
            _ask(at, data)

        ask_any()


def _ask(at: Served, data: st.DataObject) -> None:
    operations = sorted(OPERATIONS.keys() - _STREAMS)  # which do not end
    method, template = data.draw(st.sampled_from([*operations, ("GET", "/")]))
    # nothing that is asked for ends the topology, or looks at it for seconds
    known = st.one_of(_WORDS, st.just(at.id)) if method == "GET" else _WORDS
    known = st.text(max_size=40) if template.startswith(_LONG) else known
    path = re.sub(r"\{\w+\}", lambda _: quote(data.draw(known), safe="") or "-", template)
    body = data.draw(_BODIES) if method == "POST" else None
    answer = at.client.request(method, path, params=data.draw(_QUERIES), json=body)
    if answer.status_code != 200:
        assert answer.status_code in (400, 404, 405, 409), (method, path, answer.text)
        Draft202012Validator(ERROR).validate(answer.json())
        assert "\n" not in answer.json()["errorMessage"]
        assert answer.json()["error"].startswith(str(answer.status_code))
    elif template in _DOCUMENT["paths"]:
        operation = _DOCUMENT["paths"][template][method.lower()]
        [(media, found)] = operation["responses"]["200"]["content"].items()
        assert answer.headers["content-type"].startswith(media)
        if media == "application/json":
            schema = {**found["schema"], "components": _DOCUMENT["components"]}
            Draft202012Validator(schema).validate(answer.json())
