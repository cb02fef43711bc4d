"""Clients as actors of Ray, on this machine or over the nodes of a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from decomfl_lab.errors import InputError, require

__all__ = ["cluster"]


@contextmanager
def cluster(cpus: int | None, address: str | None = None) -> Iterator[None]:
    """A Ray that this process is connected to: the one that it is already, one at an address, or one of its own.

    Args:
        cpus: The number of CPUs of one of its own, on this machine, which ends with the context; None for all.
        address: The address of one that is running; None for the environment's RAY_ADDRESS, if it has one.

    Raises:
        InputError: If Ray is not installed, or there is none at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("Ray needs the extra ray: pip install 'decomfl-lab[ray]' (no module ray)") from None
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    own = {} if address else {"num_cpus": cpus, "include_dashboard": False}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError) as error:
        require(address is None, "address", f"be that of a Ray that is running ({error})", address)
        raise
    try:
        yield
    finally:
        ray.shutdown()
