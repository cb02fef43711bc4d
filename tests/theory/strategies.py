"""What the distributions of theory quantify over: problems and admissible settings."""

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from theory import Quadratic, Setting, Spectrum, Statement, Waves, names_in

scales = st.floats(-2.0, 2.0).map(lambda exponent: 10.0**exponent)
or_zero = st.one_of(st.just(0.0), scales)
dimensions = st.one_of(st.integers(1, 20), st.integers(1, 10**9))


@st.composite
def spectra(draw: st.DrawFn) -> Spectrum:
    d, L = draw(dimensions), draw(scales)
    kind = draw(st.sampled_from(["flat", "two-level", "confined", "power"]))
    if kind == "two-level":
        return Spectrum.two_level(d, 1 + draw(st.floats(0, 1)) * (d - 1), L)
    if kind == "confined":
        return Spectrum.confined(d, draw(st.integers(1, d)), L)
    if kind == "power":
        return Spectrum.power(d, draw(st.floats(0, 3)), L, groups=8)
    return Spectrum.flat(d, L)


@st.composite
def quadratics(draw: st.DrawFn) -> Quadratic:
    """Constants over four decades or 0; D, σ² and σ_G² anywhere in the spectrum, D not where H is 0."""
    spectrum = draw(spectra())
    last = len(spectrum.values) - 1
    curved = [group for group, value in enumerate(spectrum.values) if value > 0]

    def shares(groups: list[int]) -> list[float]:
        chosen = draw(st.lists(st.sampled_from(groups), min_size=1, max_size=2))
        return [float(chosen.count(group)) for group in range(last + 1)]

    return Quadratic.of(
        spectrum, D=draw(or_zero), sigma=draw(or_zero), sigma_G=draw(or_zero),
        start=shares(curved), noise=shares(list(range(last + 1))), dissimilarity=shares(list(range(last + 1))),
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn, statement: Statement, problem: Quadratic) -> Setting:
    """A run on the problem whose η and μ the statement admits; by either kind of differences where it is for both."""
    assume(statement.name != "strongly-convex" or problem.spectrum.lambda_min > 0)
    M = draw(st.integers(1, 30))
    setting = problem.setting(
        m=draw(st.integers(1, M)), M=M, P=draw(st.integers(1, 1000)), R=draw(st.integers(1, 1000)),
        K=1 if statement.single_step else draw(st.integers(1, 20)), mu=draw(or_zero),
        distribution=draw(st.sampled_from(statement.distributions)), replacement=draw(st.booleans()), G=0.0,
        beta=draw(st.floats(0, 0.999)) if statement.with_momentum else 0.0,
        central=statement.central or draw(st.booleans()),
    )  # fmt: skip
    if not statement.eta:
        return replace(setting, eta=draw(scales) / (problem.L * problem.d * setting.K))
    largest = statement.step_sizes(setting).largest
    assume(0 < largest < 1e300)
    free = any("eta" in names_in(term) for term in statement.terms.values())
    share = draw(st.one_of(st.just(1.0), st.floats(-4.0, 0.0).map(lambda exponent: 10.0**exponent))) if free else 1.0
    return setting.at(largest * share)


@st.composite
def waves(draw: st.DrawFn) -> Waves:
    n = draw(st.integers(1, 3))
    return Waves.random(
        waves=draw(st.integers(1, 4)), n=n, d=draw(st.one_of(st.just(n), st.integers(n, 10**6))),
        M=draw(st.integers(1, 3)), noise=draw(scales), seed=draw(st.integers(0, 10**6)),
    )  # fmt: skip
