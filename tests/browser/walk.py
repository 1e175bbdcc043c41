"""A walk through every screen of the page by keyboard alone, and the checks of a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MOST_TABS = 80
_WAIT_MS = 30_000
LIGHT = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}
FORMS: dict[str, dict[str, Any]] = {
    "light": LIGHT,
    "dark": {**LIGHT, "color_scheme": "dark"},
    "narrow": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "has_touch": True,
    },
}


class Walk:
    """Keys that are pressed in a page and what is seen in it; complaints are gathered, also of
    scripts, and the walk goes on.
    """

    def __init__(self, page: Any, form: str, axe: str, folder: Path | None) -> None:
        self._page, self.form, self._axe, self._folder = page, form, axe, folder
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complain(str(error)))
        page.on("dialog", lambda dialog: self.complain(f"a script opens {dialog.message!r}"))

    def keep_notes(self) -> None:
        """Complain about errors in the console from now on."""
        self._page.on("console", self._keep_note)

    def _keep_note(self, note: Any) -> None:
        if note.type == "error":
            self.complain(note.text)

    def tab_to(self, words: str, within: str = "body") -> None:
        """Press Tab until the element with these words has the focus, and see that the focus is
        seen.
        """
        for _ in range(_MOST_TABS):
            self._page.keyboard.press("Tab")
            found = self._page.evaluate(_FOCUSED, within)
            if found["words"].startswith(words):
                if not found["seen"]:
                    self.complain(f"the focus on {words!r} is not seen")
                return
        raise AssertionError(f"{self.form}: Tab does not reach {words!r}")

    def press(self, key: str) -> None:
        """Press a key."""
        self._page.keyboard.press(key)

    def sees(self, selector: str, words: str = "") -> None:
        """Wait until something is on the screen."""
        self._page.locator(selector, has_text=words).first.wait_for(timeout=_WAIT_MS)

    def look(self, name: str) -> None:
        """Check a screen, and keep its picture in the folder."""
        self.check(name)
        if self._folder is not None:
            (self._folder / f"{self.form}-{name}.png").write_bytes(self.picture())

    def check(self, name: str) -> None:
        """Complain about what axe-core finds in a screen, about one that is too wide, and about
        words of a graph that run into others.
        """
        self._page.evaluate(self._axe)
        for each in self._page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")[
            "violations"
        ]:
            places = "; ".join(
                node["target"][0] if isinstance(node["target"][0], str) else "?"
                for node in each["nodes"][:4]
            )
            self.complain(f"{name}: {each['id']} ({each['impact']}): {each['help']}: {places}")
        wide = self._page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            self.complain(f"{name}: the page is {wide} px wider than the screen")

        for words in self._page.evaluate(_OVERLAPPING):
            self.complain(f"{name}: in the graph, {words}")

    def picture(self) -> bytes:
        """Return the picture of the whole page, or of the window where a dialog is open."""
        has_dialog = self._page.locator("dialog[open]").count() > 0
        return bytes(self._page.screenshot(full_page=not has_dialog, animations="disabled"))

    def complain(self, words: str) -> None:
        """Keep what is wrong."""
        self.complaints.append(f"{self.form}: {words}")


_OVERLAPPING = """() => {
  const texts = [...document.querySelectorAll("svg.graph text")].map(
    (text) => [text.firstChild?.textContent || "", text.getBoundingClientRect()]);
  const shared = (from, to, size) => Math.min(from[size[1]], to[size[1]]) - Math.max(from[size[0]], to[size[0]]);
  return texts.flatMap(([words, box], n) => texts.slice(n + 1)
    .filter(([, other]) => shared(box, other, ["left", "right"]) > 0 && shared(box, other, ["top", "bottom"]) > 4)
    .map(([others]) => `"${words}" runs into "${others}"`));
}"""
_FOCUSED = """(within) => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.querySelector?.(".box");
  const lined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const seen = lined || (box && parseFloat(getComputedStyle(box).strokeWidth) > 2);
  const words = at.closest(within) ? at.getAttribute("aria-label") || at.innerText || at.value || "" : "";
  return {words: words.trim(), seen: !!seen};
}"""


def walk(step: Walk, is_narrow: bool) -> None:
    """Walk through all screens."""
    step.sees("h1", "simulated")
    step.look("cluster")
    step.tab_to("orders", "main")
    step.press("Enter")
    step.sees("h1", "orders")
    step.sees(".plot canvas")
    step.look("topology")
    if is_narrow:
        step.tab_to("Show graph")
        step.press("Enter")
        step.sees("svg.graph")
        step.look("graph")
    step.tab_to("bolt sum")
    step.press("Enter")
    step.sees("dialog[open] h1", "sum")
    step.sees("dialog[open] td", "orders")
    step.look("component")
    step.press("Escape")
    walk_tabs(step)
    for label, name in (("Rebalance", "rebalance"), ("Kill", "kill")):
        step.tab_to(label, ".head")
        step.press("Enter")
        step.sees("dialog[open] pre", "sparkstorm")
        step.look(name)
        step.press("Escape")
    confirm(step, "Deactivate", "is inactive")
    step.look("done")
    step.press("Escape")
    confirm(step, "Activate", "is active")
    step.press("Escape")
    step.press("]")
    step.sees("button[aria-pressed=true]", "10m")
    step.press("[")
    step.press("?")
    step.sees("h2", "Keys")
    step.look("keys")
    step.press("?")
    step.press("g")
    step.press("c")
    step.sees("h1", "simulated")


def walk_tabs(step: Walk) -> None:
    """Walk through the tabs of a topology, then from the first worker to its log."""
    for words, tab, selector in (
        ("Workers", "workers", "table"),
        ("Errors", "errors", "table"),
        ("Dead letters", "letters", "details"),
        ("Journey", "journey", "form"),
        ("Upgrade", "upgrade", ".empty"),
        ("Configuration", "conf", "table"),
    ):
        if tab == "workers":
            step.tab_to("Components", "[role=tablist]")
        step.press("ArrowRight")
        step.sees("[role=tab][aria-selected=true]", words)
        step.sees(f"#panel {selector}")
        step.look(tab)
    step.press("Home")
    step.press("ArrowRight")
    step.tab_to("node", "#panel")
    step.press("Enter")
    step.sees("pre.log", "started")
    step.look("log")


def confirm(step: Walk, label: str, ending: str) -> None:
    """Press a button of a command and the one in the dialog that shows the command; wait for the
    toast.
    """
    step.tab_to(label, ".head")
    step.press("Enter")
    step.sees("dialog[open] pre", label.lower())
    step.tab_to(label, "dialog")
    step.press("Enter")
    step.sees(".toast", ending)
