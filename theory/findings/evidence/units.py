"""Evidence on units: every term of a sum, and both sides of a comparison, have one."""

from theory.bounds import statement
from theory.findings.finding import Evidence
from theory.findings.instruments import one_unit, wrong_unit
from theory.findings.mended import parsed
from theory.findings.placed import mends, refutes, supports
from theory.statements.statement import Variant


def agree(**formulas: str) -> Evidence:
    """All formulas, written in the symbols of ``theory.notation.symbols``, have one unit."""
    return one_unit(**{name: parsed(text) for name, text in formulas.items()})


mends("ass.g")(agree, left="a**2", right="sigma**2")
supports("ass.w")(agree, left="a**2", right="sigma_G**2")
supports("line-397")(agree, left="a", right="L*delta")
mends("assumption.low-rank")(agree, radius="2*G*d*eta", distance="mu")
mends("line-447.2", "line-1364")(
    agree,
    start="(4*D)/((R*eta))",
    noise="((((2*L)*eta)/m)*(1 + ((d*kappa + d) - 2)/((P*(d + 2)))))*(sigma**2 + sigma_G**2)",
    smoothing="(L**2*(mu**2/2))*(d + 3)**3",
    remainder="4*L**3*d**3*eta*mu**2",
)
supports("lemma.zo.basic", "eq.as")(agree, gradient="a", bound="L*mu*(d + 3)**(3/2)/2")
supports("eq.oo")(agree, value="D", bound="L*d*mu**2/2")
supports("line-1029")(agree, g="a", G="L*mu")
mends("line-1389", "line-1394", "line-1412", "line-1418", "eq.low.rank.bound")(
    agree, descent="a**2*eta/2", smoothing="L**2*eta*mu**2*(d + 3)**3/8", remainder="L**3*d**3*eta**2*mu**2"
)


def odd(name: str, **formulas: str) -> Evidence:
    """The formula of that name has another unit than the others, which agree."""
    return wrong_unit(name, **{each: parsed(text) for each, text in formulas.items()})


refutes("coro-1", cause="orders")(odd, "printed", printed="1/(sqrt(R*(K*P))*(d + 3))", mu="mu")
refutes("line-452", cause="orders")(
    odd, "printed", needed="mu", printed="kappa**(1/4)/(((P*(R*m))**(1/4)*sqrt((d + 3)**3)))"
)
refutes("line-452", cause="orders")(odd, "printed", needed="eta", printed="sqrt((P*m)/((R*kappa)))")
refutes("line-1389", "line-1394", "line-1412", "line-1418", "eq.low.rank.bound", cause="remainder-unit")(
    odd, "remainder", descent="a**2*eta/2", smoothing="L**2*eta*mu**2*(d + 3)**3/8", remainder="L**4*d**3*eta**2*mu**2"
)
refutes("line-1457", cause="remainder-unit")(odd, "remainder", descent="a**2*eta/2", remainder="L**4*d**3*eta**2*mu**2")


def bound(name: str, variant: Variant) -> Evidence:
    """All terms of a statement of ``theory.bounds`` have one unit."""
    return one_unit(**statement(name, variant).terms)


mends("the.1")(bound, "theorem-1", "corrected")
mends("line-447.2")(bound, "theorem-2", "corrected")
mends("line-1449")(bound, "theorem-2-gaussian", "corrected")


def odd_in(term: str, name: str, variant: Variant) -> Evidence:
    """One term of a statement of ``theory.bounds`` has another unit than the others."""
    return wrong_unit(term, **statement(name, variant).terms)


refutes("line-447.2", "line-1364", cause="remainder-unit", witness=True)(odd_in, "remainder", "theorem-2", "stated")
