"""The page of all configuration keys, from defaults.yaml. `python -m tests.key_page` writes
docs/configuration.md anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparkstorm.common.config import Key, keys

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "configuration.md"
_SECTION = re.compile(r"  # -- (.+)")
_KEY = re.compile(r"  ([A-Za-z0-9_.]+): \{")
_HEAD = """# Configuration keys

Every key with its values, default and effect; where the default is null or empty, with an example.
Written from `conf/defaults.yaml` by `python -m tests.key_page`; a test compares them.
`sparkstorm explain KEY` prints the same, also for patterns (`'topology.upgrade.*'`).

Strongest last: these defaults, the configuration file of the cluster or run, `-c KEY=VALUE`, a
component's own settings (`conf=` of `set_spout` and `set_bolt`). Keys that begin with `app.` are
yours. [Keys of Storm and JStorm that are not supported](unsupported-keys.md) are accepted and named.

## Job file

```yaml
name: words                                   # default: the file's name
topology: words:build                         # module:function; next to this file, or installed
arguments: {servers: "kafka.example:9092"}    # of the function; --input adds `input`, a list
parallelism: {split: 8}                       # executors by component, in place of the code's
results: {component: count}                   # what a run leaves
replay: {event_time: at_ms}                   # for `sparkstorm replay` alone
topology.workers: 2                           # keys are whole, at the top level
app.limit: 10                                 # yours: conf["app.limit"] in `prepare` and `open`
```

Only `topology` is needed. [`results`](connectors.md#results-without-a-bolt) and [`replay`](replay.md) have
their pages. `sparkstorm explain KEY` explains a key; `-c KEY=VALUE` wins over the file.
"""
_TITLES = {"cluster": "Of the cluster", "topology": "Of each topology"}


def sections() -> dict[tuple[str, str], list[Key]]:
    """Return the keys by scope and section, in the order of the file."""
    keys_by_section: dict[tuple[str, str], list[Key]] = {}
    scope, section = "", ""
    for line in (ROOT / "conf" / "defaults.yaml").read_text(encoding="utf-8").splitlines():
        if line in ("cluster:", "topology:"):
            scope, section = line[:-1], ""
        elif match := _SECTION.fullmatch(line):
            section = match[1]
        elif match := _KEY.match(line):
            keys_by_section.setdefault((scope, section), []).append(keys()[match[1]])
    return keys_by_section


def row(key: Key) -> str:
    """Return a key's line of its table."""
    _, values, default, *example = key.text().splitlines()
    values = values.partition(": ")[2].removeprefix("a ").removeprefix("an ")
    values = re.sub(r"at least (\S+), at most (\S+)", r"\1 to \2", values)
    values = values.replace("at least ", "≥ ").replace("at most ", "≤ ")
    default = default.partition(": ")[2].rpartition("; set for")[0]
    shown = f"`{default}`"
    if example:
        # a bar would end the cell
        shown += f", e.g. `{example[0].partition(': ')[2].partition(': ')[2]}`".replace("|", "\\|")
    secret = " Kept secret." if key.secret else ""
    # A bracket would begin a link, a bar a cell.
    cells = (f"`{key.name}`", values, shown, re.sub(r"([\[|])", r"\\\1", key.doc) + secret)
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the page."""
    lines, last = [_HEAD.rstrip()], ""
    for (scope, section), section_keys in sections().items():
        if scope != last:
            lines += ["", f"## {_TITLES[scope]}"]
            last = scope
        lines += [
            "",
            f"### {section or 'General'}",
            "",
            "| key | values | default | effect |",
            "|---|---|---|---|",
        ]
        lines += map(row, section_keys)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
