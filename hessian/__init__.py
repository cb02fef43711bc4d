"""Curvature of trained models: operators, spectra and the effective rank κ = tr(H)/‖H‖₂.

    kappa = hessian.effective_rank(model, loss, loader, rtol=0.05, seed=0)
    print(kappa)                    # κ = 9.93, 95 % interval 9.44 .. 10.43 (48 products)
    kappa.plot("kappa.png")

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
