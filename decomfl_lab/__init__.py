"""DeComFL, executable and exact: federated learning that sends scalars, never anything of size d.

    import decomfl_lab as lab

    method = lab.DeComFL(perturbations=20, rule=lab.Momentum(0.9))
    run = lab.train(model, loss, clients=[(x0, y0), (x1, y1), (x2, y2)], method=method, sampled=2, rounds=200, lr=1e-3)
    run.model; run.metrics; print(run.traffic); print(run.verify()); run.save("runs/mine")

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

from decomfl_lab.installation import pass_over_the_current_folder, tell_what_is_hidden

__version__ = "0.2.0"
pass_over_the_current_folder()
tell_what_is_hidden()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
