"""`pliant embed`: what it shows and writes, and mistakes."""

import json
from dataclasses import replace

import pytest

from cli import inside
from pliant.recsys import Frequencies
from pliant.spec import EmbeddingPlan, Host, Topology, load, save

HERE = ("--hosts", "2", "--ranks", "2", "--rate", "100mbit", "--delay", "1ms")


def run(*arguments):
    done = inside.run("embed", *arguments)
    return done.returncode, " ".join(done.stdout.split()), " ".join(done.stderr.split())


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "tables.json"
    rows = [
        {"name": "user", "num_rows": 200_000, "dim": 32},
        {"name": "item", "num_rows": 5000, "bag": 10},
        {"name": "day", "num_rows": 7, "pooling": "mean"},
    ]
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.extended
def test_a_placement_with_plot_and_files(tables, tmp_path):
    out, found, plot = tmp_path / "plan.json", tmp_path / "found.json", tmp_path / "curve.html"
    code, text, error = run(
        tables, *HERE[:2], *HERE[4:], "--memory", "60MB", "--batch", "64,256", "--dim", "16", "--max-staleness", "3",
        "--bits", "32,16", "--json", found, "--out", out, "--plot", plot,
    )  # fmt: skip
    assert code == 0, error
    assert "One more GB on every rank would buy" in text
    assert "Samples per second by batch of a rank: 64:" in text
    plan, results = load(EmbeddingPlan, out), json.loads(found.read_text())
    assert plan.num_ranks == 2
    assert [table.dim for table in plan.tables] == [32, 16, 16]
    assert results["samples_per_s"] == pytest.approx(2 * plan.batch_size / results["step_s"])
    assert max(results["memory_bytes"]) <= 60e6
    assert [each["name"] for each in results["tables"]] == ["user", "item", "day"]
    speeds = [each["samples_per_s"] for each in results["throughput_by_memory"] if each["samples_per_s"]]
    assert speeds == sorted(speeds)
    assert speeds
    assert f"{plan.num_ranks} ranks: throughput by memory" in plot.read_text()
    assert 'src="http' not in plot.read_text(), "self-contained"


@pytest.mark.extended
def test_hosts_that_name_a_machine_have_its_costs(tables, tmp_path):
    host = Host(name="a", num_ranks=2, send_bytes_per_s=1e9, receive_bytes_per_s=1e9, machine="h100")
    save(Topology(hosts=(host, replace(host, name="b"))), tmp_path / "links.json")
    found = []
    for more in ((), ("--machine", "h100"), ("--machine", "cpu-core")):
        code, _, error = run(tables, "--topology", tmp_path / "links.json", *more, "--json", tmp_path / "found.json")
        assert code == 0, error
        found.append(json.loads((tmp_path / "found.json").read_text())["step_s"])
    assert found[0] == found[1] < found[2]


def test_names_of_tables_are_shown_as_they_are(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([{"name": "user [/id]", "num_rows": 100}, {"name": "[red]", "num_rows": 100}]))
    code, text, error = run(path, *HERE)
    assert code == 0, error
    assert "user [/id]" in text
    assert "[red]" in text


def test_frequencies_from_a_file(tables, tmp_path):
    Frequencies.zipf([200_000, 5000, 7], 1.2, pooling=[1, 10, 1]).save(tmp_path / "f.npz")
    code, text, error = run(tables, *HERE, "--frequencies", tmp_path / "f.npz")
    assert code == 0, error
    assert "26 tables" not in text


def test_the_published_tables_do_not_fit_into_a_gigabyte():
    code, _, error = run("criteo", *HERE, "--memory", "1GB")
    assert code == 2
    assert "no placement fits into 1GB on each rank" in error
    assert "the largest, 'C1', 10.4GB" in error


def test_mistakes_are_one_sentence(tables, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('[{"name": "a", "rows": 3}]')
    for arguments, sentence in (
        (("nowhere",), "there are no tables 'nowhere'"),
        ((bad,), "needs name and num_rows"),
        ((tables, "--plot", "x.gif"), "a plot is a page; name it .html"),
        ((tables, "--optimizer", "lamb"), "rows are updated by sgd"),
        ((tables, "--bits", "many"), "--bits is 'many'"),
        ((tables, "--bits", "4"), "some of 32, 16 and 8 bits"),
    ):
        code, _, error = run(*arguments, *HERE)
        assert code == 2
        assert sentence in error
    code, _, error = run(tables)
    assert code == 2
    assert "say who there is, once" in error


@pytest.mark.extended
def test_rows_counted_in_a_log(tables, tmp_path):
    table = tmp_path / "clicks.csv"
    lines = [f"{k % 2},u{k % 90},{k % 7},{k % 5}" for k in range(400)]
    table.write_text("\n".join(["clicked,user,item,day", *lines]))
    code, text, error = run(tables, *HERE, "--log", table, "--label", "clicked", "--json", tmp_path / "found.json")
    assert code == 0, error
    assert "user" in text
    criteo = tmp_path / "day_0"
    codes = ["\t".join(f"{(k * (c + 1)) % 50:08x}" for c in range(26)) for k in range(200)]
    criteo.write_text("".join(f"{k % 2}\t" + "\t" * 13 + line + "\n" for k, line in enumerate(codes)))
    code, text, error = run("criteo", *HERE, "--log", criteo, "--memory", "40GB", "--dim", "8")
    assert code == 0, error
    assert "C26" in text


def test_one_source_of_frequencies(tables, tmp_path):
    code, _, error = run(tables, *HERE, "--log", tmp_path / "a.csv", "--frequencies", tmp_path / "f.npz")
    assert code != 0
    assert "name one of them" in error
