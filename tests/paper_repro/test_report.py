"""Laws of the report: it says each verdict, needs no other file, and escapes what it is given."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

from decomfl_lab.errors import InputError
from decomfl_lab.files import write_atomically
from paper_repro.claims import VERDICTS, Outcome, outcomes_json
from paper_repro.claims import claim as registered
from paper_repro.report import Folded, Section, render_report

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC")


def claim(**changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "id": "fig2.saving",
        "verdict": "holds",
        "measured": {"saving to 90 %": 2.125},
        "scale": "smoke (reduced)",
    }
    return Outcome(**(fields | changes))


def section(**changes: Any) -> Section:
    fields: dict[str, Any] = {
        "id": "fig2",
        "title": "Figure 2: MNIST",
        "figure_png": PNG,
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
    """Collects tags and their addresses, and checks that what is opened is closed."""

    void = frozenset({"meta", "img", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(html: str) -> Tags:
    parser = Tags()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_the_report_contains_every_claim_with_its_verdict_and_numbers() -> None:
    ids = ("fig2.local-updates", "fig2.saving", "fig3.slower", "llm.mezo")
    claims = [claim(id=name, verdict=verdict) for name, verdict in zip(ids, VERDICTS, strict=True)]
    html = page(claims=claims)
    for each in claims:
        for told in (registered(each.id).says, registered(each.id).where, registered(each.id).rule):
            assert escape(told) in html
        assert f'id="claim-{each.id}"' in html
        assert each.verdict in html
    assert html.count("2.125") == len(claims)
    assert html.count("smoke (reduced)") == len(claims)


def test_the_report_needs_no_other_file() -> None:
    html = page()
    parsed = tags(html)
    assert not parsed.names & {"script", "link", "iframe", "object", "embed"}
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in parsed.addresses)
    assert not re.search(r"url\(|@import|https?://", html)
    assert base64.b64encode(PNG).decode() in html


def test_every_link_has_its_target_and_ids_are_distinct() -> None:
    parsed = tags(page([section(), section(id="table1", title="Table 1", figure_png=None)]))
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert {address[1:] for address in parsed.addresses if address.startswith("#")} <= set(parsed.ids)


def test_what_the_report_is_given_is_escaped() -> None:
    bad = "<script>alert('x')</script>\"&"
    html = page(
        [
            section(
                title=bad,
                notes=[bad],
                facts={bad: bad},
                settings=pd.DataFrame({bad: [bad]}),
                table=pd.DataFrame({bad: [bad]}),
            )
        ],
        [claim(id="audit.x", subject=bad, scale=bad, measured={bad: 1})],
        versions=bad,
    )
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 11
    tags(html)


def test_tables_show_numbers_for_a_reader() -> None:
    html = page()
    assert "115,752" in html
    assert '<td class="num">–</td>' in html
    assert "momentum" in html
    assert "nan" not in re.sub(r"base64,\S+", "", html).lower()


def test_folded_statements_are_counted_listed_and_open_to_the_rest() -> None:
    statements = [
        Folded(label="the.1", verdict="false", tone="no", says="a ≤ b", body=[("why", "1 < 2"), ("instead", "")]),
        Folded(label="eq.2", verdict="correct", tone="yes", says="c = <d>", body=[("algebra", "difference 0")]),
        Folded(label="eq.3", verdict="correct", tone="yes", says="e = f", body=[]),
    ]
    html = page([section(folded=statements, more_figures={"Another": PNG})])
    found = tags(html)
    assert {"details", "summary"} <= found.names
    assert html.count("<details>") == 3
    assert '<li class="verdict yes"><b>2</b> correct</li>' in html
    assert '<li class="verdict no"><b>1</b> false</li>' in html
    assert "<dt>why</dt><dd>1 &lt; 2</dd>" in html
    assert "<dt>instead</dt>" not in html
    assert "c = &lt;d&gt;" in html
    assert html.count("data:image/png;base64,") == 2
    assert "<h3>Another</h3>" in html
    with pytest.raises(InputError, match="tone of x must be one of yes, no, depends, untested, got 'green'"):
        Folded(label="x", verdict="correct", tone="green", says="", body=[])
    with pytest.raises(InputError, match="Another of section fig2 must be a PNG image"):
        section(more_figures={"Another": b"GIF"})


@pytest.mark.parametrize("scale", ["smoke", "default", "full"])
def test_the_badge_says_the_scale(scale: str) -> None:
    assert f'<span class="badge {scale}">{scale} scale</span>' in page(scale=scale)


@pytest.mark.parametrize("scale", ["smoke", "default"])
def test_a_reduced_run_is_not_called_the_papers(scale: str) -> None:
    html = page(scale=scale)
    assert ("Nothing here is the paper's" if scale == "smoke" else "smaller than the paper's").replace(
        "'", "&#39;"
    ) in html


def test_a_report_without_claims_sections_or_tables_is_still_a_page() -> None:
    tags(page([], []))
    tags(page([section(figure_png=None, table=None, settings=pd.DataFrame(), notes=[], facts={})], []))


def test_bad_reports_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"facts\['scale'\] must be one of smoke, default, full"):
        page(scale="paper")
    with pytest.raises(InputError, match="ids of sections must be distinct"):
        page([section(), section()])
    with pytest.raises(InputError, match="ids of claims must be distinct"):
        page(claims=[claim(), claim()])
    with pytest.raises(InputError, match="figure_png of section fig2 must be a PNG"):
        section(figure_png=b"<svg/>")
    with pytest.raises(InputError, match="section id"):
        section(id="a b")
    with pytest.raises(InputError, match="notes of section fig2"):
        section(notes="one string")


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(InputError, match=r"verdict of claim fig2.saving must be one of holds, .*got 'mostly'"):
        claim(verdict="mostly")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "2", [1]])
def test_what_is_not_a_number_is_no_measurement(value: Any) -> None:
    with pytest.raises(InputError, match="measured 'x' of claim fig2.saving"):
        claim(measured={"x": value})


def test_outcomes_are_rows_with_the_words_place_and_rule_of_their_claims() -> None:
    measured = {"a": np.float32(0.5), "b": np.int64(3), "c": None}
    told = outcomes_json([claim(measured=measured), claim(id="fig3.slower", verdict="does not hold")])
    first, second = json.loads(told)
    assert list(first) == ["id", "claim", "source", "measures", "rule", "verdict", "measured", "scale"]
    assert first["measured"] == {"a": 0.5, "b": 3, "c": None}
    assert first["rule"] == registered("fig2.saving").rule
    assert second["verdict"] == "does not hold"


def test_an_atomic_write_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_atomically(path, "old\n")
    write_atomically(path, b"new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    write_atomically(path, "old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("decomfl_lab.files.os.replace", full)
    with pytest.raises(InputError, match=r"cannot write .*file\.txt: No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(InputError, match=r"cannot write .*a file.claims\.json"):
        write_atomically(tmp_path / "a file" / "claims.json", outcomes_json([claim()]))
