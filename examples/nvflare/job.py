"""DeComFL over NVFlare, four sites on MNIST digits: python examples/nvflare/job.py ENV OUT

ENV is ``sim`` (processes on this machine), ``poc`` (a provisioned federation on this machine, mutual TLS) or the folder
of an administrator's startup kit (a federation of machines). The run is kept in OUT on the server's machine.
"""

import sys

from nvflare.recipe import PocEnv, ProdEnv, SimEnv

from decomfl_lab.carriers.nvflare import job
from decomfl_lab.runs.configuration import TrainConfig

SITES = ["site-1", "site-2", "site-3", "site-4"]
CONFIG = TrainConfig(
    clients=4, sampled=4, rounds=50, batch_size=32, perturbations=5, seeds="per-run", lr=0.001, eval_every=25
)

if __name__ == "__main__":
    where, out = sys.argv[1:]
    if where == "sim":
        env = SimEnv(clients=SITES, workspace_root=f"{out}/nvflare")
    elif where == "poc":
        env = PocEnv(num_clients=len(SITES), clients=SITES)
    else:
        env = ProdEnv(startup_kit_location=where)
    done = job(CONFIG, SITES, out=out, deadline=None).execute(env)
    print(done.get_result(), done.get_status())
