"""The enumeration of a TeX source."""

from __future__ import annotations

from pathlib import Path

import pytest

from theory.findings.source import PAPER_SHA256, parse, read

TEX = r"""
\newcommand{\be}{\begin{equation}}
\begin{document}
% \begin{align} \label{eq.commented} x \end{align}
\section{S} \label{sec.s}
\begin{theorem}[T]\label{the.t}
  If \begin{align*} \label{eq.inside}
    a &= b
  \end{align*} then
  $$
  c = d
  $$
\end{theorem}
\begin{subequations}
\begin{align} \label{eq.one} a \\
  \label{eq.two} b % \label{eq.three}
\end{align}
\end{subequations}
It costs 5\% \label{loose} here.
\begin{figure} \label{fig.f} \begin{equation} e \end{equation} \end{figure}
\begin{algorithm*}
  \begin{algorithmic}[1]
    \State \textbf{Do} this:
      1) and that
    \State
    \For{$k$} \Comment{c}
    \State \For{$r$}
    \EndFor
  \end{algorithmic} \label{alg.a}
\end{algorithm*}
\begin{table} \caption{C} \resizebox{ \label{tab.t} \begin{tabular}{c} 1 \end{tabular}} \end{table}
\end{document}
"""


def test_displays_statements_algorithm_lines_and_tables_are_found_with_lines_and_labels() -> None:
    found = [(item.kind, item.line, tuple(item.labels)) for item in parse(TEX).items]
    assert found == [
        ("theorem", 6, ("the.t",)),
        ("display", 7, ("eq.inside",)),
        ("display", 10, ()),
        ("display", 15, ("eq.one", "eq.two")),
        ("display", 20, ()),
        ("algorithm", 21, ("alg.a",)),
        ("algorithm line", 23, ()),
        ("algorithm line", 26, ()),
        ("algorithm line", 27, ()),
        ("table", 31, ("tab.t",)),
    ]


def test_lines_keep_their_numbers_and_lose_their_comments() -> None:
    source = parse(TEX)
    assert source.lines[3] == ""
    assert source.lines[18].startswith(r"It costs 5\%")
    assert not source.audited


def test_a_file_is_the_audited_one_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "paper.tex"
    path.write_text(TEX)
    assert not read(path).audited
    monkeypatch.setattr("theory.findings.source.PAPER_SHA256", read(path).sha256)
    assert read(path).audited
    assert len(PAPER_SHA256) == 64
