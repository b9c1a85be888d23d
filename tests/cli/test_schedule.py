"""`pliant schedule`: the table, the picture, the files, and mistakes."""

import json
import re

import pliant
from cli import inside
from pliant.schedules.rooted import roots_of
from pliant.spec import Schedule, load


def run(*arguments):
    return inside.run("schedule", *arguments)


def test_a_schedule_with_picture_and_files(tmp_path):
    draw, out, found = tmp_path / "s.html", tmp_path / "s.json", tmp_path / "found.json"
    done = run(
        *("--hosts", "2", "--ranks", "2", "--rate", "100mbit", "--delay", "1ms", "--density", "5%", "--blocks", "64"),
        *("--draw", str(draw), "--out", str(out), "--json", str(found), "--improve", "0s"),
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "all verified; the best:" in text
    assert "overheads: defaults of one CPU core" in text
    assert "4 ranks, 64 blocks, 4.19MB; a rank holds up to 197KB" in text
    results = json.loads(found.read_text())
    times = [each["predicted_s"] for each in results["candidates"]]
    assert times == sorted(times)
    assert 0 < results["lower_bound_s"] <= times[0]
    assert {"ring", "direct", "tree"} <= {each["name"] for each in results["candidates"]}
    schedule = load(Schedule, out)
    assert len(schedule.rounds) == results["candidates"][0]["rounds"]
    assert len(results["members"]) == schedule.num_blocks
    page = draw.read_text()
    titles = re.findall(r"rank \d+ to rank \d+: [^\"]+ of (?:partial sums|complete sums|both)", page)
    assert len(titles) == results["candidates"][0]["messages"]
    assert 'src="http' not in page, "self-contained"


def test_racks(tmp_path):
    found = tmp_path / "found.json"
    there = ("--hosts", "8", "--rate", "100mbit", "--density", "30%", "--json", str(found))
    done = run(*there, "--racks", "2", "--uplink", "25mbit")
    assert done.returncode == 0, done.stderr
    results = json.loads(found.read_text())
    times = {each["name"]: each["predicted_s"] for each in reversed(results["candidates"])}
    assert times["direct"] > 1.5 * results["candidates"][0]["predicted_s"]
    done = run(*there, "--racks", "2")
    assert done.returncode == 2
    assert "--racks is 2 and --uplink not given" in " ".join(done.stderr.split())


def test_programs_beside_the_family(tmp_path):
    found = tmp_path / "found.json"
    done = run("--hosts", "3", "--rate", "100mbit", "--density", "0.3", "--improve", "2s", "--json", str(found))
    assert done.returncode == 0, done.stderr
    results = json.loads(found.read_text())
    names = [each["name"] for each in results["candidates"]]
    assert len(set(names)) == len(names)
    text = " ".join(done.stdout.split())
    assert any("program" in name or "(super-blocks)" in name for name in names) or "found nothing faster" in text
    assert results["best"] == results["candidates"][0]["name"]


def test_a_bitmap_from_a_file(tmp_path):
    path = tmp_path / "who.txt"
    path.write_text("1 0 1 0\n0,1,1,0\n\n1110\n")
    done = run("--hosts", "3", "--rate", "1gbit", "--bitmap", str(path), "--size", "4KiB")
    assert done.returncode == 0, done.stderr
    assert "3 ranks, 4 blocks, 4.1KB; a rank holds up to 3.07KB, all together 3.07KB" in " ".join(done.stdout.split())


def test_mistakes_are_one_sentence(tmp_path):
    path = tmp_path / "who.txt"
    path.write_text("10\n012\n")
    for arguments, sentence in (
        (("--density", "5"), "say who there is, once"),
        (("--hosts", "2", "--density", "5"), "--density is 5, but is a part of all blocks"),
        (("--hosts", "2", "--bitmap", str(path)), "has 2 lines, but needs one for each of the 2 ranks"),
        (("--hosts", "2", "--blocks", "0"), "4194304 bytes in 0 blocks cannot be"),
        (("--hosts", "2", "--owned", "1,2,3"), "--owned is '1,2,3', but there are 2 ranks; write 'equal', or one"),
        (("--hosts", "2", "--owned", "0,0"), "--owned is '0,0', but there are 2 ranks"),
        (("--hosts", "3", "--owned", "equal", "--size", "4"), "4 bytes have not one element for any of 3 owners"),
        (("--hosts", "2", "--owned", "equal", "--density", "5%"), "parts that are owned are of vectors that all ranks"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert sentence in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_schedules_for_owners(tmp_path):
    """Sums end on the ranks that own something, and both ways are told; the file is one for sharded_optimizer."""
    out, found = tmp_path / "s.json", tmp_path / "found.json"
    done = run(
        *("--topology", "two-racks", "--owned", "2,1,1,1,1,1,1,0", "--size", "64MiB"),
        *("--out", str(out), "--json", str(found)),
    )
    assert done.returncode == 0, done.stderr
    assert "8 ranks, 7 blocks, 67.1MB; a rank holds up to 67.1MB" in " ".join(done.stdout.split())
    results = json.loads(found.read_text())
    times = {each["name"]: each["predicted_s"] for each in reversed(results["candidates"])}
    assert results["lower_bound_s"] <= results["candidates"][0]["predicted_s"] < times["direct"] / 1.5
    schedule = load(Schedule, out)
    assert set(roots_of(schedule)) == set(range(7))
    assert pliant.sharded_optimizer(schedule=out).schedule == schedule
