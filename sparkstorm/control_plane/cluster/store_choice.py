"""Choice of the Redis that holds a new topology's data, or of one for each of its cells, among
several. PURE: the same records give the same stores.

Law: a topology keeps its store for life, so the choice is made once, with its base. A store that
some host does not have configured or does not reach is not chosen: the topology's workers may be
placed on any host. Left out: measured load (bytes, commits). It changes from minute to minute while
a choice lasts for months, and the number of workers, which send a commit each per epoch, is what
fills a store's core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import SupervisorInfo, TopologyBase
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.tasks import shares

STORE = "topology.redis.store"
CELLS = "topology.cells"


def choose_stores(
    name: str,
    cells: int,
    wanted: str | None,
    stores: Sequence[str],
    bases: Iterable[TopologyBase],
    supervisors: Iterable[SupervisorInfo],
) -> tuple[str, ...]:
    """Return the stores of a new topology's cells, one for each: those that it names, with commas
    between them, else those with the fewest workers, the first of equals.

    `stores` are the names in the order of the configuration, the home store's first.
    InvalidConfigError names why a wanted one is not available, or that there are too few.
    """
    infos = list(supervisors)
    if wanted is not None:
        named = tuple(wanted.split(",")) if cells > 1 else (wanted,)
        for store in named:
            _require_known(name, store, stores, infos)
        if len({*named}) != cells:
            raise InvalidConfigError(
                f"{STORE}: {name} is to lie in {cells} cells, a store each ({CELLS}), and names {wanted!r:.80}: name {cells} "
                "stores with commas between them, or leave the key out"
            )
        return named
    workers = dict.fromkeys(_offered(stores, infos), 0)
    if len(workers) < cells:
        raise InvalidConfigError(
            f"{CELLS}: {name} is to lie in {cells} cells, a store each, and every host knows and reaches "
            f"{len(workers)} of the cluster's {len(stores)}: add servers to sparkstorm.redis.urls and start the drivers again, "
            f"or set {CELLS} to {len(workers)}"
        )
    for base in bases:
        if base.status is TopologyStatus.KILLED:
            continue
        for store, share in zip(
            base.stores, shares(base.num_workers, len(base.stores)), strict=True
        ):
            if (store or stores[0]) in workers:
                workers[store or stores[0]] += share
    # Sorting keeps the order of equals, and a dictionary that of the configuration.
    return tuple(sorted(workers, key=lambda store: workers[store])[:cells])


def _offered(stores: Sequence[str], infos: Sequence[SupervisorInfo]) -> list[str]:
    home = stores[0]
    at_all = [
        store
        for store in stores[1:]
        if all(info.other_stores.get(store, "unknown") == "" for info in infos)
    ]
    if at_all and any(info.store_problem for info in infos):
        return at_all
    return [home, *at_all]


def check_kept(
    name: str, wanted: str | None, stores: Sequence[str], home: str, cells: int = 1
) -> None:
    """Raise InvalidConfigError when new code of a topology that runs names other stores than those
    that have its data, or another number of cells.
    """
    there = ",".join(store or home for store in stores)
    if wanted is not None and wanted != there:
        raise InvalidConfigError(
            f"{STORE}: the data of {name} are in the store {there!r} and stay there, so its new code cannot name "
            f"{wanted!r:.80}: leave the key out, or take a savepoint, kill it and submit it --from there"
        )
    if cells != len(stores):
        raise InvalidConfigError(
            f"{CELLS}: {name} lies in {len(stores)} and stays there, so its new code cannot say {cells}: take a savepoint, kill "
            "it and submit it --from there"
        )


def _require_known(
    name: str, wanted: str, stores: Sequence[str], infos: Sequence[SupervisorInfo]
) -> None:
    if not wanted or wanted not in stores:
        there = (
            ", ".join(store for store in stores if store)
            or "none: sparkstorm.redis.urls is not set"
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
