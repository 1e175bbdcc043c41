"""Any request to the REST interfaces is answered as described or refused in a sentence, never by a
fault of ours.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparkstorm.web.openapi import ERROR, openapi
from sparkstorm.web.rest import DESCRIBED
from tests.web.served import Served, served

_DOCUMENT = openapi(DESCRIBED)
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


def test_any_question_is_answered_as_described_or_refused() -> None:
    with served() as at:
        at.run.feed(5)

        @given(data=st.data())
        @settings(max_examples=150)
        def ask_any(data: st.DataObject) -> None:
            _ask(at, data)

        ask_any()


def _ask(at: Served, data: st.DataObject) -> None:
    routes = [each for each in [*at.routes, *at.page_routes] if not each[1].endswith("/stream")]
    method, template = data.draw(st.sampled_from(routes))
    # nothing that is asked for ends the topology
    known = st.one_of(_WORDS, st.just(at.id)) if method == "GET" else _WORDS
    path = re.sub(r"\{\w+\}", lambda _: quote(data.draw(known), safe="") or "-", template)
    body = data.draw(_BODIES) if method == "POST" else None
    answer = at.client.request(method, path, params=data.draw(_QUERIES), json=body)
    assert answer.status_code in (200, 400, 404, 405, 409), (method, path, answer.text)
    if template == "/" or template.startswith("/page/"):
        assert answer.status_code == 200 or "\n" not in (answer.json()["error"] or "\n")
        return
    if answer.status_code in (400, 409) or (
        answer.status_code == 404 and "errorMessage" in answer.text
    ):
        Draft202012Validator(ERROR).validate(answer.json())
        assert "\n" not in answer.json()["errorMessage"] and answer.json()["error"].startswith(
            str(answer.status_code)
        )
    elif answer.status_code == 200 and template in _DOCUMENT["paths"]:
        schema = _DOCUMENT["paths"][template]["get"]["responses"]["200"]["content"][
            "application/json"
        ]["schema"]
        Draft202012Validator({**schema, "components": _DOCUMENT["components"]}).validate(
            answer.json()
        )
