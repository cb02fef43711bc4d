"""NVFlare: a job of its Collab API carries the frames between a server and its sites.

    recipe = job(TrainConfig(clients=2, sampled=2), ["hospital-a", "hospital-b"])
    recipe.execute(env)                 # nvflare.recipe.SimEnv, PocEnv or ProdEnv: the same job in each

NVFlare imports this module on the server, where it calls ``run``, and at the sites, where the server has it call
``handle``. A site is one client of the run, in the order of the sites' names in ``job``; it keeps its model for as long
as its process lives, and whatever it has lost comes back by records.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any

from decomfl_lab.errors import quoted, require, require_finite_positive, require_int
from decomfl_lab.federations.carrier import Take
from decomfl_lab.federations.remote import RemoteFederation, host_of
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.installation import without_extra
from decomfl_lab.protocol.session import Frames, Host
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping
from decomfl_lab.runs.preparation import Materials, movable
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.files import write_atomically

try:
    from nvflare.collab import CollabCallError, CollabRecipe, collab
except ModuleNotFoundError as error:
    without_extra("NVFlare", "nvflare", error)

logger = logging.getLogger(__name__)

DIGESTS_FILE = "digests.json"
"""Where the server writes {site: digest of its model after the last round}, its own under ``server``."""
TRUST = "DECOMFL_TRUST_CODE"
"""The variable that is 1 at a site, or a server, whose jobs may name code (``module:function``): --trust-code there."""
LONGEST, SOONEST = 3600.0, 0.01
"""Seconds that a site may take for an answer where nothing else is said, and where the time is over."""


def job(
    config: TrainConfig,
    sites: Sequence[str],
    *,
    out: Path | str | None = None,
    quorum: int | None = None,
    deadline: float | None = 60.0,
    patience: float = 300.0,
    min_sites: int | None = None,
    name: str = "decomfl",
) -> Any:
    """The job, a ``CollabRecipe``.

    Args:
        config: The run; its data are looked for at the server and at every site, each has its own.
        sites: The names of the sites, of clients 0..M-1 in this order.
        out: The folder on the server's machine where the run is kept; a job with the same folder goes on with it. None
            for the job's own folder, which NVFlare hands back as its result.
        quorum: The replies that a round needs at least; None for more than half of the sampled sites.
        deadline: Seconds that a site may take for an answer, once a quorum is there; None for ``patience``.
        patience: Seconds that a round waits for a quorum.
        min_sites: The sites that must be connected for the job to start; None for all.
        name: The name of the job.

    Raises:
        InputError: If the sites are not as many as the run's clients, or a value is out of range.
    """
    M = config.clients
    require(len(sites) == len(set(sites)) == M, "sites", f"be {M} different names, as the run's clients", list(sites))
    options = {
        "quorum": None if quorum is None else require_int("quorum", quorum, 1, config.sampled),
        "deadline": None if deadline is None else require_finite_positive("deadline", deadline),
        "patience": require_finite_positive("patience", patience),
    }
    least = M if min_sites is None else require_int("min_sites", min_sites, 1, M)
    module = sys.modules[__name__]
    # One thread a site: if it is asked again while it measures, it must not measure twice at once.
    recipe = CollabRecipe(name, server=module, client=module, min_clients=least, max_inbound_call_threads_for_client=1)
    config = config.but(config.method.replaying())  # a site has no model but its client's
    for key, value in {"config": config.to_toml(), "sites": list(sites)}.items():
        recipe.set_server_prop(key, value)
        recipe.set_client_prop(key, value)
    recipe.set_server_prop("options", options)
    recipe.set_server_prop("out", None if out is None else str(Path(out).absolute()))
    return recipe


@collab.publish  # type: ignore[untyped-decorator]
def handle(frame: bytes) -> bytes:
    """At a site: the answer of its client to a frame."""
    i = collab.get_app_prop("sites").index(collab.site_name)
    return host_at(collab.get_app_prop("config"), i).handle({i: frame})[i]


@collab.main  # type: ignore[untyped-decorator]
def run() -> None:
    """At the server: the run, saved in its folder with the digests of all models after the last round."""
    sites, out = collab.get_app_prop("sites"), collab.get_app_prop("out")
    folder = Path(out or collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
    run_, federation, identity = run_of(collab.get_app_prop("config"))
    elsewhere = RemoteFederation.of(federation, Sites(sites), identity, **collab.get_app_prop("options"))
    run_.federation = elsewhere
    run_.train(out=folder)
    digests = {sites[i]: digest for i, digest in elsewhere.rebuilt().items()}
    write_atomically(folder / DIGESTS_FILE, json.dumps({"server": elsewhere.observer.digest(), **digests}, indent=1))


class Sites:
    """The sites of the job, as its server reaches them: a ``Carrier``."""

    def __init__(self, names: Sequence[str]) -> None:
        """The sites of clients 0..M-1; one that the job was started without is as one that has gone."""
        proxies = {proxy.name: proxy for proxy in collab.clients}
        self._sites = {i: proxies[name] for i, name in enumerate(names) if name in proxies}

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """See ``Carrier``; a site whose process has gone is not waited for, as NVFlare starts none again in a job."""
        end = time.monotonic() + (LONGEST if deadline is None else deadline)
        heard = False
        with ThreadPoolExecutor(len(frames) or 1) as pool:
            calls = {pool.submit(self._call, i, frames[i], end): i for i in frames if i in self._sites}
            while calls:
                for call in wait(calls, return_when=FIRST_COMPLETED).done:
                    i, answer = calls.pop(call), call.result()
                    heard = heard or answer is not None
                    if answer is not None and (more := take(i, answer, float("nan"))):
                        calls[pool.submit(self._call, i, more, end)] = i
        if not heard:  # the round may ask again; not at once
            time.sleep(max(0.0, min(1.0, end - time.monotonic())))

    def _call(self, i: int, frame: bytes, end: float) -> bytes | None:
        """The answer of a site; None if there is none in time."""
        left = max(end - time.monotonic(), SOONEST)
        try:
            answer = self._sites[i](timeout=left).handle(frame)
        except CollabCallError as error:
            logger.warning("client %d does not answer: %s", i, quoted(str(error)))
            return None
        return answer if isinstance(answer, bytes) else b""

    def close(self) -> None:
        """See ``Carrier``; the sites end with the job."""


def run_of(text: str) -> tuple[Run, DeComFLFederation, bytes]:
    """The run of a configuration at round 0, its federation in this process, and its identity."""
    # Whether jobs may name code to import is said on this machine, and not by whoever submits them.
    trusted = os.environ.get(TRUST) == "1"
    config = config_from_mapping(tomllib.loads(text), f"the job, without {TRUST}=1,", trust_code=trusted)
    dataset = Materials(config).dataset()
    if dataset.parts is not None and len(dataset.parts) == 1:  # one's own; those of the others are with them
        dataset = dataclasses.replace(dataset, parts=list(dataset.parts) * config.clients)
    run_ = Run(config, dataset=dataset)
    federation = movable(run_.federation, config.method)
    return run_, federation, config.identity(federation.observer.digest())


@cache
def host_at(text: str, i: int) -> Host:
    """The client of a site, which lives for as long as the site's process."""
    _, federation, identity = run_of(text)
    return host_of(federation, identity, [i])
