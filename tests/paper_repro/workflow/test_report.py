"""Laws of the report: it says each verdict once, needs no other file, and escapes what it is given."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from matplotlib.figure import Figure

from paper_repro.live_runs import Overlay
from paper_repro.workflow.report import Folded, Section, caption, closing, page_section, render_report
from paper_repro.workflow.verdicts.answer import AnswerLine
from paper_repro.workflow.verdicts.claim_table import VERDICTS, ClaimOutcome, outcomes_json
from paper_repro.workflow.verdicts.claim_table import claim as registered
from tests.cases import rows_of
from tests.docs import browser


def drawing() -> Figure:
    figure = Figure(figsize=(2, 2), layout="constrained")
    figure.subplots().plot([1, 2], [3, 4])
    figure.suptitle("A line")
    return figure


def claim(**changes: Any) -> ClaimOutcome:
    fields: dict[str, Any] = {
        "id": "fig2.saving",
        "verdict": "holds",
        "measured": {"saving to 90 %": 2.125},
        "scale": "smoke (reduced)",
    }
    return ClaimOutcome(**(fields | changes))


def section(**changes: Any) -> Section:
    fields: dict[str, Any] = {
        "id": "fig2",
        "title": "Figure 2: MNIST",
        "figure": drawing(),
        "settings": pd.DataFrame({"setting": ["momentum"], "here": ["0.9"], "paper": ["0.5"]}),
        "notes": ["Counted by wire."],
        "table": pd.DataFrame({"series": ["FedAvg"], "scalars": [115752.0], "never": [float("nan")]}),
        "facts": {"runs": "36"},
    }
    return Section(**(fields | changes))


def page(sections: Any = None, claims: Any = None, **facts: str) -> str:
    return render_report(
        [section()] if sections is None else sections,
        facts={"scale": "smoke", "data": "digits"} | facts,
        claims=[claim()] if claims is None else claims,
    )


class Tags(HTMLParser):
    """Collects tags, addresses and tables as CSV, and checks that what is opened is closed."""

    void = frozenset({"meta", "img", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[dict[str, str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes.append({name: str(value) for name, value in attrs})

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, name: str) -> list[str]:
        return [given[name] for given in self.attributes if name in given]

    @property
    def tables(self) -> list[pd.DataFrame]:
        found = [given["href"].partition("base64,")[2] for given in self.attributes if "download" in given]
        return [pd.read_csv(io.BytesIO(base64.b64decode(each))) for each in found]


def tags(html: str) -> Tags:
    parser = Tags()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def parts_of(*ids: str, **changes: Any) -> list[Section]:
    return [section(id=name, title=f"{name}: a part", **changes) for name in ids]


def test_every_claim_is_once_in_the_section_of_its_part_with_its_verdict_and_numbers() -> None:
    ids = ("fig2.local-updates", "fig2.saving", "fig3.slower", "llm.mezo", "fig3.saving", "fig3.not-by-d")
    claims = [claim(id=name, verdict=verdict) for name, verdict in zip(ids, VERDICTS, strict=True)]
    html = page(parts_of("fig2", "fig3", "llm"), claims)
    for each in claims:
        home = html.index(f'id="section-{registered(each.id).part}"')
        place = html.index(f'id="claim-{each.id}"')
        assert home < place < html.index("</section>", home)
        assert html.count(f'id="claim-{each.id}"') == 1
        own = html[place : html.index("</details>", place)]
        for told in (registered(each.id).says, registered(each.id).place, registered(each.id).rule, "2.125"):
            assert re.sub("<[^>]+>", "", own).count(str(escape(told))) == 1
        assert str(escape(each.verdict)) in own
    assert html.count("smoke (reduced)") == 3  # of each section, not of each claim


def test_the_page_opens_with_the_answer_and_what_each_line_rests_on() -> None:
    given = {"topic": "t", "verdict": "imprecise; true by proof", "says": "It is 1.", "link": "theory", "recorded": ""}
    lines = [AnswerLine(**given, part=part, again=f"again {part}") for part in ("fig2", "audit", "llm")]
    sections = [*parts_of("fig2"), *parts_of("audit", figure=None)]
    html = render_report(sections, facts={"scale": "recorded"}, claims=[claim()], answer=lines)
    first = html[html.index('<div id="top">') : html.index("<section")]
    shown = [("depends", "imprecise"), ("yes", "true by proof")]
    assert re.findall(r'class="verdict (\w+)" href="#section-(\w+)">([^<]+)<', first) == [
        (tone, part, status) for part in ("fig2", "audit") for tone, status in shown
    ]
    assert re.findall(r'href="#figure-(\w+)"', first) == ["fig2"]
    assert re.findall(r"docs/(\w+) · <code>([^<]+)<", first) == [
        ("theory", f"again {each}") for each in ("fig2", "audit")
    ]
    assert re.findall(r"<b>(\d)</b> ([^<]+)<", first) == [("1", VERDICTS[0])]
    assert not re.search("<svg|<table", first)
    assert "not from the runs below" not in first
    assert "not from the runs below" in render_report(sections, facts={"scale": "smoke"}, claims=[], answer=lines)


@pytest.mark.parametrize(("users", "facts", "live", "told"), rows_of(__file__)["closing"])
def test_a_command_ends_with_one_line(users: str, facts: dict[str, str], live: bool, told: str, data_in: Any) -> None:
    data_in(users)
    claims = [claim(verdict=verdict) for verdict in VERDICTS]
    verdicts = "1 hold, 1 do not, 1 depend on the counting, 3 undecided"
    assert closing(Path("out"), claims, facts, 1.24, live=live) == f"out: {verdicts} (1.2 min; {told})"


def test_a_page_and_its_captions_do_not_name_the_folder_of_whoever_ran_it() -> None:
    here = {"data": "MNIST: 3 train, from DECOMFL_DATA", "scale": "full (whole): M=100", "kappa": 1}
    told = caption("hessian", **here)
    assert "DECOMFL_DATA" not in page(data=here["data"]) + told
    assert "at scale full (whole), on MNIST: 3 train." in told


def test_a_section_says_what_live_runs_say_of_it_and_shows_their_figure() -> None:
    below = page_section(section(id="fig2-live", title="live"))
    told = Overlay(tone="no", sign="✗", verdict="differs here", words=["3 of 4 rows"], section=below)
    ready = [{**page_section(section()), "live": told}, page_section(section(id="llm"))]
    html = render_report(ready, facts={"scale": "recorded"}, claims=[], live="Checked live: 1 of 2 parts.")
    own = html[html.index('id="live-fig2"') : html.index('id="section-llm"')]
    assert "✗ differs here" in own
    assert "3 of 4 rows" in own
    assert 'id="live-figure-fig2"' in own
    assert html.index("1 of 2 parts") < html.index("<section")
    assert "live-llm" not in html
    assert len(set(tags(html).all("id"))) == len(tags(html).all("id"))


def test_formulas_are_mathml_also_in_a_section_that_was_kept_as_json() -> None:
    formula = "<math><mi>x</mi></math>"
    said = Folded(
        label="a", verdict="false", tone="no", says="s", body=[("why", "x < y")], formulas={"as stated": formula}
    )
    kept = json.loads(json.dumps(page_section(section(formulas={"Theorem 1": formula}, folded=[said]))))
    html = page([kept])
    assert f"<dt>Theorem 1</dt><dd>{formula}</dd>" in html
    assert f"<dt>why</dt><dd>x &lt; y</dd><dt>as stated</dt><dd>{formula}</dd>" in html.replace("\n", "")


def test_every_table_comes_back_whole_from_its_csv() -> None:
    table = pd.DataFrame({"series": ["a, b", 'c "d"'], "exact": [1 / 3, float("nan")], "count": [10**15, 2]})
    found = tags(page([section(table=table)])).tables
    pd.testing.assert_frame_equal(found[0], table, check_exact=True)
    assert found[1].astype(str).to_dict() == section().settings.to_dict()
    assert len(found) == page([section(table=table)]).count("<table>")


@pytest.mark.skipif(browser.FOUND is None, reason="no browser is installed")
def test_a_browser_sorts_by_a_column_and_has_no_message(tmp_path: Path) -> None:
    table = pd.DataFrame({"name": ["b2", "b10", "a"], "n": [1500.0, float("nan"), 20.0]})
    path = tmp_path / "page.html"
    path.write_text(page([section(table=table, settings=pd.DataFrame())]))
    order = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].textContent).join()"
    with browser.Browser() as shown:
        shown.open(path.as_uri())
        seen = [shown.value(f"document.querySelectorAll('th button')[{i}].click(), {order}") for i in (0, 1, 1)]
        assert seen == ["a,b2,b10", "a,b2,b10", "b2,a,b10"]  # 20, 1500, none; 1500, 20, none
        assert shown.said == []


def test_the_report_needs_no_other_file_and_every_link_has_its_target_among_distinct_ids() -> None:
    html = page(parts_of("fig2", "table1", more_figures={"Another": drawing()}))
    parsed = tags(html)
    assert not set(parsed.names) & {"link", "iframe", "object", "embed", "img"}
    addresses = [*parsed.all("href"), *parsed.all("src")]
    assert all(address.startswith(("#", "data:text/csv")) for address in addresses)
    assert not re.search(r"url\((?!#)|@import|https?:|//\w", html)
    ids = parsed.all("id")
    assert len(set(ids)) == len(ids)
    clips = [found for value in parsed.all("clip-path") for found in re.findall(r"url\(#(.*)\)", value)]
    assert {address[1:] for address in addresses if address.startswith("#")} | set(clips) <= set(ids)
    assert clips


def test_what_the_report_is_given_is_escaped() -> None:
    bad = "<script>alert('x')</script>\"&"
    table = pd.DataFrame({bad: [bad]})
    spoilt = section(title=bad, notes=[bad], facts={bad: bad}, settings=table, table=table)
    html = page([spoilt], [claim(measured={bad: 1}, scale=bad)], versions=bad)
    assert html.count("<script") == 1
    assert html.count("&lt;script&gt;") >= 11
    tags(html)


@pytest.mark.parametrize("scale", ["smoke", "default"])
def test_a_reduced_run_is_not_called_the_papers(scale: str) -> None:
    html = page(scale=scale)
    assert ("Nothing here is the paper's" if scale == "smoke" else "smaller than the paper's").replace(
        "'", "&#39;"
    ) in html


def test_outcomes_are_rows_with_the_words_place_and_rule_of_their_claims() -> None:
    measured = {"a": np.float32(0.5), "b": np.int64(3), "c": None}
    told = outcomes_json([claim(measured=measured), claim(id="fig3.slower", verdict="does not hold")])
    first, second = json.loads(told)
    assert list(first) == ["id", "claim", "source", "status", "measures", "rule", "verdict", "measured", "scale"]
    assert first["measured"] == {"a": 0.5, "b": 3, "c": None}
    assert first["rule"] == registered("fig2.saving").rule
    assert second["verdict"] == "does not hold"
