"""Ten arms in four cells, trained end to end on the emulated network: what the product of steps and step time predicts.

    python benchmarks/grid/confirm.py --curves benchmarks/results/grid_curves_2core_DATE.jsonl \
        --results benchmarks/results/grid_confirm_2core_DATE.jsonl --seconds 3600

Needs an idle machine, and root. --curves names the file that has the learning rate; see `curves.py`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from grid.curves import KINDS, best_rate, run_in_cells
from grid.job import Job, options

CONFIRM_KINDS = {"confirm": 90.0}


def main() -> None:
    """Do what the command line asks for."""
    parser = options(__doc__ or "", ["results"])
    parser.add_argument("--curves", type=Path, required=True, help="file of accuracy curves, which has the rate")
    given = parser.parse_args()
    job = Job(given.results, CONFIRM_KINDS, given.seconds, most=given.most)
    if not given.list:
        run_in_cells(job, "confirm", best_rate(Job(given.curves, KINDS).lines.of_kind("rate")))
    print(job.text())


if __name__ == "__main__":
    main()
