"""Choice of the Redis that holds a new topology's data, among several. PURE: the same records give
the same store.

Law: a topology keeps its store for life, so the choice is made once, with its base. A store that
some host does not have configured or does not reach is not chosen: the topology's workers may be
placed on any host. Left out: measured load (bytes, commits). It changes from minute to minute while
a choice lasts for months, and the number of workers, which send a commit each per epoch, is what
fills a store's core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.assignment import SupervisorInfo, TopologyBase
from sparkstorm.model.status import TopologyStatus

STORE = "topology.redis.store"


def choose_store(
    name: str,
    wanted: str | None,
    stores: Sequence[str],
    bases: Iterable[TopologyBase],
    supervisors: Iterable[SupervisorInfo],
) -> str:
    """Return the store of a new topology: the one that it names, else that with the fewest workers,
    the first of equals.

    `stores` are the names in the order of the configuration, the home store's first.
    InvalidConfigError names why the wanted one is not available.
    """
    infos = list(supervisors)
    if wanted is not None:
        _require_known(name, wanted, stores, infos)
        return wanted
    home = stores[0]
    at_all = [
        each
        for each in stores[1:]
        if all(info.other_stores.get(each, "unknown") == "" for info in infos)
    ]
    offered = (
        [home, *at_all] if not at_all or not any(info.store_problem for info in infos) else at_all
    )
    workers = dict.fromkeys(offered, 0)
    for base in bases:
        if base.status is not TopologyStatus.KILLED and (store := base.store or home) in workers:
            workers[store] += base.num_workers
    # `min` takes the first of equals, and a dictionary keeps the order of the configuration.
    return min(workers, key=lambda each: workers[each])


def check_kept(name: str, wanted: str | None, store: str, home: str) -> None:
    """Raise InvalidConfigError when new code of a topology that runs names another store than the
    one that has its data.
    """
    if wanted is not None and wanted != (store or home):
        raise InvalidConfigError(
            f"{STORE}: the data of {name} are in the store {store or home!r} and stay there, so its new code cannot name "
            f"{wanted!r:.80}: leave the key out, or take a savepoint, kill it and submit it --from there"
        )


def _require_known(
    name: str, wanted: str, stores: Sequence[str], infos: Sequence[SupervisorInfo]
) -> None:
    if not wanted or wanted not in stores:
        there = (
            ", ".join(each for each in stores if each) or "none: sparkstorm.redis.urls is not set"
        )
        raise InvalidConfigError(
            f"{STORE}: {name} names the store {wanted!r:.80}; the cluster's stores are {there}"
        )
    for info in infos if wanted != stores[0] else ():
        if wanted not in info.other_stores:
            raise InvalidConfigError(
                f"{STORE}: {name} names the store {wanted!r}, which the slots of host {info.host} do not know: start their driver "
                "again with the present sparkstorm.redis.urls"
            )
