"""What is proved of DeComFL: bounds, problems whose truth is known, and checks of the one against the other.

    import theory
    from theory.notation.symbols import D, L, R, eta, kappa, m, sigma

    mine = theory.Statement(
        "mine",
        terms={"start": 2 * D / (R * eta), "noise": 2 * L * eta * kappa * sigma**2 / m},
        eta={"descent": 1 / (8 * L * kappa)},
    )
    problem = theory.quadratic(d=10**9, kappa=50, D=2.0, sigma=0.1)
    print(theory.check(mine, problem, m=10, M=100, P=10, R=1000))

``theory.statement("theorem-1")`` is a bound of the paper as corrected, ``theory.statement("theorem-1", "stated")`` as
printed. The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
