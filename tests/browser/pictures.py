"""Every screen over simulated clusters whose time stands still, checked by axe-core and photographed
in two runs, whose pictures are equal to the pixel; and the page's report, opened as a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

from tests.browser.states import STATES, Screen
from tests.browser.walk import FORMS, Walk
from tests.web.listening import Listening

RUNS = 2
# The clock, zone and language of the browser; with transitions two pictures could differ.
_SURE = {"timezone_id": "UTC", "locale": "en-GB", "reduced_motion": "reduce"}
_NOW_S = 1_790_000_000
# Frames until what has changed is drawn: charts are drawn again when their width has changed.
_CALM = "() => new Promise(done => { let n = 6; const next = () => n-- ? requestAnimationFrame(next) : done(); next(); })"
_WAIT_MS = 30_000
_PAUSE_MS = 150
_MOST_LOOKS = 8

_CHARTS = 5
_REPORTED = (
    ("h2", "SparkStorm report: orders"),
    (".sentence", "orders does not run well"),
    ("svg.graph .name", "archive"),
    ("th", "executed"),
    ("td", "archive"),
    ("td", "node1:6700"),
    ("td", "ValueError"),
    ("td", "topology.max.retries"),
    ("pre", '"sentence"'),
)

Pictures = dict[tuple[str, str], str]
"""Digest of a picture by the name of its screen and its form."""


def compare_pictures(
    browser: Any, axe: str, shots: Path | None, states: Collection[str]
) -> tuple[list[str], int]:
    """Look at the screens of some states, all without any, in two runs; return what is wrong, and
    how many pictures were compared.
    """
    complaints: list[str] = []
    count = 0
    for name in states or STATES:
        runs: list[Pictures] = []
        for run in range(RUNS):
            with _opened(browser, name) as (context, at, screens):
                found: Pictures = {}
                for screen in screens:
                    complaints += _look(context, at, screen, found, "" if run else axe, shots)
                if not run and name == "orders":
                    complaints += check_report(browser, context, at, axe, shots)
                runs.append(found)
        first, second = runs
        complaints += [
            f"{form}: {screen}: two pictures of it differ"
            for (screen, form), digest in first.items()
            if second.get((screen, form)) != digest
        ]
        count += len(first)
        print(f"{name}: {len(first)} pictures", flush=True)
    return complaints, count


@contextmanager
def _opened(browser: Any, name: str) -> Iterator[tuple[Any, Listening, list[Screen]]]:
    """Serve a state and open a browser's context that has its cookie."""
    with STATES[name]() as (at, screens), browser.new_context(**FORMS["light"], **_SURE) as context:
        context.clock.set_fixed_time(1000 * _NOW_S)
        context.request.get(f"http://127.0.0.1:{at.port}/?token={at.token}")
        yield context, at, screens


def _look(
    context: Any, at: Listening, screen: Screen, found: Pictures, axe: str, shots: Path | None
) -> list[str]:
    """Look at one screen in every form; return what is wrong."""
    page = context.new_page()
    step = Walk(page, "light", axe, shots)
    try:
        for form, options in FORMS.items():
            step.form = form
            page.emulate_media(color_scheme=options["color_scheme"])
            page.set_viewport_size(options["viewport"])
            # anew in each form: corners that are drawn over others are not the same to the pixel
            page.goto(f"http://127.0.0.1:{at.port}/?{urlencode(screen.query)}")
            _arrive(page, step, screen)
            picture = _steady(page, step)
            if axe:
                step.check(screen.name)
            found[screen.name, form] = hashlib.sha256(picture).hexdigest()
            if shots is not None:
                # of the second run too: where they differ, both can be looked at
                folder = shots if axe else shots / "again"
                folder.mkdir(exist_ok=True)
                (folder / f"{form}-{screen.name}.png").write_bytes(picture)
    # the other screens are looked at too
    except Exception as error:
        step.complain(f"{screen.name}: {str(error).partition(chr(10))[0]}")
    page.close()
    return step.complaints


def _steady(page: Any, step: Walk) -> bytes:
    """Return the picture of a screen when it does not change any more: on a busy machine charts are
    drawn late.
    """
    last = b""
    for _ in range(_MOST_LOOKS):
        page.evaluate(_CALM)
        page.wait_for_timeout(_PAUSE_MS)
        picture = step.picture()
        if picture == last:
            break
        last = picture
    return picture


def _arrive(page: Any, step: Walk, screen: Screen) -> None:
    """Wait for a screen, press its buttons, and wait for what they lead to."""
    step.sees("#page", screen.words)
    if page.locator(".charts").count():
        for n in range(page.locator(".charts .plot").count()):
            page.locator(".charts .plot canvas").nth(n).wait_for(timeout=_WAIT_MS, state="attached")
    for label in screen.press:
        button = page.get_by_role("button", name=label)
        pressed = page.locator(label) if label == "summary" else button
        pressed.first.click(timeout=_WAIT_MS)
    if screen.then:
        page.locator(screen.then).first.wait_for(timeout=_WAIT_MS)
    # where the pointer is a chart would have its cursor
    page.mouse.move(0, 0)


def check_report(
    browser: Any, context: Any, at: Listening, axe: str, shots: Path | None
) -> list[str]:
    """Save the page's report and open it as a file, in a browser without a network; return what is
    wrong with it.
    """
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{at.port}/?topology=orders")
    page.locator(".charts .plot canvas").nth(4).wait_for(timeout=_WAIT_MS, state="attached")
    with page.expect_download(timeout=_WAIT_MS) as saved, TemporaryDirectory() as folder:
        page.get_by_role("button", name="Report").click()
        path = Path(folder) / saved.value.suggested_filename
        saved.value.save_as(path)
        page.close()
        complaints = _read_report(browser, path, axe, shots)
    return [f"report: {each}" for each in complaints]


def _read_report(browser: Any, path: Path, axe: str, shots: Path | None) -> list[str]:
    asked: list[str] = []
    complaints: list[str] = []
    for form, options in FORMS.items():
        with browser.new_context(**options, **_SURE, offline=True) as context:
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            step = Walk(page, form, axe, shots)
            step.keep_notes()
            page.goto(path.as_uri())
            step.look("report")
            missing = [
                f"{selector}: {words}"
                for selector, words in _REPORTED
                if not page.locator(selector, has_text=words).count()
            ]
            drawn = page.evaluate(
                "() => [...document.images].filter(each => each.naturalWidth).length"
            )
            if missing or drawn < _CHARTS:
                step.complain(f"it lacks {missing or 'charts'}: {drawn} are drawn")
            complaints += step.complaints
    others = {each for each in asked if not each.startswith(("file:", "data:"))}
    return complaints + [f"it asks for {each}" for each in sorted(others)]
