"""The documentation as a site, from the Markdown that the repository shows: pages staged with their
places kept, built by Zensical, every link of what was built followed, and its search asked.

`make docs` writes `build/docs`, which needs no network; its search needs a server of files
(`python -m http.server -d build/docs`). `mkdocs.yml` has the settings.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "mkdocs.yml"
STAGED = ROOT / "build" / "docs-pages"
BUILT = ROOT / "build" / "docs"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ASKING = Path(__file__).with_name("search_site.js")
_FIRST = 5
"""Answers of the search among which the wanted one must be: what is seen without scrolling."""
SEARCHES = MappingProxyType(
    {
        "savepoint": "docs/replay.html#savepoints",
        "gray upgrade": "docs/upgrades.html",
        "late data": "docs/howto.html#keep-late-data",
        "KafkaSource": "docs/connectors.html#kafka",
        "dead letter": "docs/guarantees.html#dead-letters",
        "firewall ports": "docs/operations.html#ports",
        "scheduler of your own": "docs/howto.html#place-executors-by-rules-of-your-own",
        "multi-lang": "docs/from-storm.html#components-in-other-languages",
        "topology.max.spout.pending": "docs/sizing.html#step-by-step",
        "maxmemory-policy": "docs/operations.html#fail-over-of-a-redis",
    }
)
"""Words that readers look for, each with the part of a page that must be among the first answers."""


def pages() -> list[str]:
    """Return the paths of the Markdown files that are pages: all but those for the code host."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if not name.startswith(".")]


def linked_files(page: str) -> Iterator[Path]:
    """Yield the files that a page shows or links to and that are no pages: pictures, sources,
    notebooks, those of a folder.
    """
    folder = (ROOT / page).parent
    for link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        # not `resolve`: a link of the file system keeps its place in the site
        path = Path(os.path.normpath(folder / link.partition("#")[0]))
        if "://" not in link and path != folder and path != ROOT:
            paths = [path] if path.is_file() else path.glob("*.*")
            yield from (file.relative_to(ROOT) for file in paths if file.suffix != ".md")


def stage() -> None:
    """Write the pages to where the site is built from, each in its place, so that links between
    them stay as they are.
    """
    shutil.rmtree(STAGED, ignore_errors=True)
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        (STAGED / page).parent.mkdir(parents=True, exist_ok=True)
        (STAGED / page).write_text(with_lists_apart(text), encoding="utf-8")


def add_linked_files() -> None:
    """Copy what pages link to into the built site; the builder would leave some kinds out."""
    for name in {file for page in pages() for file in linked_files(page)}:
        (BUILT / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, BUILT / name)


def with_lists_apart(text: str) -> str:
    """Put an empty line between a paragraph and a list below it: CommonMark needs none, the site's
    Markdown takes such a list for text.
    """
    lines: list[str] = []
    is_code = False
    for line in text.splitlines(keepends=True):
        before = lines[-1] if lines else ""
        is_item = re.match(r"([*-]|\d+\.) ", line) is not None
        if is_item and not is_code and before.strip() and not re.match(r"\s|([*-]|\d+\.) ", before):
            lines.append("\n")
        is_code ^= line.startswith("```")
        lines.append(line)
    return "".join(lines)


class _Page(HTMLParser):
    """The places of a page that links may lead to, and its own links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names = {""}
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what an element is called and where it leads."""
        value_by_name = {name: value for name, value in attrs if value is not None}
        self.names |= {value_by_name[key] for key in ("id", "name") if key in value_by_name}
        keys = ("href", "src") if tag != "use" else ()
        self.links += [value_by_name[key] for key in keys if key in value_by_name]


def faults(site: Path) -> list[str]:
    """Return the links of a built site that lead nowhere, and what it would load from elsewhere."""
    read = {
        path: _Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }
    problems = []
    for path, page in read.items():
        page_path = path.relative_to(site)
        for link in sorted(set(page.links)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if (target / "index.html").is_file():
                target /= "index.html"
            if not target.exists():
                problems.append(f"{page_path}: {link}: no such file")
            elif target in read and unquote(parts.fragment) not in read[target].names:
                problems.append(f"{page_path}: {link}: no such part of that page")
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(https?://[^\" >]+)", text)
        loaded += re.findall(
            r"<link[^>]* rel=\"?(?:stylesheet|preconnect)[^>]*https?://[^>]*>", text
        )
        problems += [f"{page_path}: loads {resource}" for resource in loaded]
    return problems


def search_faults(site: Path, searches: Mapping[str, str]) -> list[str]:
    """Return the searches whose wanted place is not among the first answers of the site's own
    search, which runs in Node without a network; without Node none is asked, and a line says so.
    """
    node = shutil.which("node")
    if node is None:
        print("the search was not asked: no node on PATH")
        return []
    done = subprocess.run(
        [node, _ASKING, site, *searches],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        return [f"search: {done.stderr.strip()}"]
    results = json.loads(done.stdout)
    return [
        f"search for {query!r}: {', '.join(results[query][:_FIRST]) or 'nothing'} in place of {wanted}"
        for query, wanted in searches.items()
        if wanted not in results[query][:_FIRST]
    ]


def build() -> list[str]:
    """Build the site; return what is wrong with it."""
    stage()
    shutil.rmtree(BUILT, ignore_errors=True)
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [program, "build", "--clean", "--config-file", SETTINGS],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [done.stdout + done.stderr]
    add_linked_files()
    wanted = {
        Path(page).with_name(
            "index.html" if Path(page).name == "README.md" else Path(page).stem + ".html"
        )
        for page in pages()
    }
    missing = [f"{page}: not built" for page in sorted(wanted) if not (BUILT / page).is_file()]
    return missing or [*faults(BUILT), *search_faults(BUILT, SEARCHES)]


def main() -> int:
    """Build the site and say where it is; return 1 when it is not built, a link leads nowhere or a
    search finds something else.
    """
    began = time.monotonic()
    wrong = build()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{BUILT}/index.html: {len(pages())} pages in {time.monotonic() - began:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
