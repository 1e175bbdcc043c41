"""The container files, as far as they can be checked without a daemon: services, commands, keys and
extras.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from sparkstorm.cli.__main__ import parser
from sparkstorm.common.config import load_conf, parse_override, read_yaml
from sparkstorm.common.stores.addresses import connection_path, not_configured
from sparkstorm.driver.standing import cluster_conf

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conf" / "containers"


def test_the_cluster_of_the_compose_file_starts_with_keys_that_exist_and_embeds_no_server(
    tmp_path: Path,
) -> None:
    content, _ = read_yaml(str(FOLDER / "compose.yaml"))
    assert set(content["services"]) == {"redis", "zookeeper", "cluster"}
    cluster = content["services"]["cluster"]
    assert (
        FOLDER / cluster["build"]["context"] / cluster["build"]["dockerfile"]
    ).resolve() == FOLDER / "Containerfile"
    words = parser().parse_args(cluster["command"][1:])
    given = tmp_path / "cluster.yaml"
    overrides = dict(parse_override(each) for each in words.c)
    given.write_text(
        "".join(f"{key}: {value}\n" for key, value in overrides.items()), encoding="utf-8"
    )
    conf = cluster_conf(load_conf(str(given)))  # unknown keys and wrong values are refused
    assert not_configured(conf) == []
    assert cluster["environment"] == {
        "SPARKSTORM_CLUSTER": str(Path("/work") / connection_path(conf))
    }
    named = {*content["secrets"], *content["volumes"]}
    used = {
        each.partition(":")[0]
        for service in content["services"].values()
        for each in service.get("volumes", ())
    }
    assert (
        used
        | {each for service in content["services"].values() for each in service.get("secrets", ())}
        == named
    )


def test_the_container_installs_extras_that_the_package_has() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    found = re.search(r"'/src\[([\w,]+)\]'", (FOLDER / "Containerfile").read_text(encoding="utf-8"))
    assert found is not None and set(found[1].split(",")) <= set(setup["options.extras_require"])
