"""The tables, their columns, and what each means: one place, from which files, card and page are made."""

from importlib import import_module
from typing import Any

__all__ = ["COLUMNS", "arrow", "parquet", "schema_of"]

_RUN = {
    "run_id": ("string", "session and number, or a count of simulated runs"),
    "provenance": ("string", "measured_emulated (hosts with own links), measured_loopback, or simulated"),
    "simulator": ("string", "version of the simulator; empty if measured"),
    "session_id": ("string", "row of sessions; empty if simulated"),
    "model_id": ("string", "row of models"),
    "topo_id": ("string", "row of topologies"),
    "plan_id": ("string", "row of plans; runs that are alike in model, topology and plan are repetitions"),
    "kind": ("string", "plan, control (the same in all sessions), or repeat"),
    "number": ("int64", "place in the cell's order; negative for the control that a resumed session begins with"),
    "status": ("string", "ok, failed, or aborted (given up because it was slow)"),
    "reason": ("string", "why it is not ok"),
    "num_steps": ("int64", "timed steps"),
    "period": ("int64", "steps after which the plan begins anew; a sample is the mean of one period"),
    "step_s": ("double", "s; median of samples: pace of the group over whole periods"),
    "mean_s": ("double", "s; mean of samples"),
    "p10_s": ("double", "s; 10 % quantile of samples"),
    "p90_s": ("double", "s; 90 % quantile of samples"),
    "mad_s": ("double", "s; median distance of samples from their median"),
    "ci95_low_s": ("double", "s; lower end of the 95 % interval of the median, as of normal errors"),
    "ci95_high_s": ("double", "s; its upper end"),
    "compute_s": ("double", "s; step time of the slowest rank without communication, measured once a session"),
    "sent_bytes": ("double", "bytes a step that the busiest rank sends, as Pliant counts"),
    "received_bytes": ("double", "bytes a step that the busiest rank receives"),
    "wire_bytes": ("double", "bytes a step that the busiest host's interface sends, headers included; null: loopback"),
    "exposed_s": ("double", "s a step in which backward or the step was done and the exchange was not, largest rank"),
    "exchange_s": ("double", "s a step in which the exchange was at work, network and codecs, largest rank"),
    "codec_s": ("double", "s a step of that which was not spent waiting for the network, largest rank"),
    "peak_bytes": ("double", "bytes of memory that the largest rank's process had at most; null: not known"),
    "switch_s": ("double", "s to put the plan in force in the place of the one before"),
    "took_s": ("double", "s of the whole trial"),
    "load": ("double", "processes that were running or waiting, mean over a minute, at the end"),
    "ended": ("string", "UTC"),
    "drifted": ("bool", "control plan moved by more than 10 % in the session"),
    "links_wrong": ("bool", "a link was more than a quarter off before or after the session"),
}

COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "models": {
        "model_id": ("string", "name and hash"),
        "family": ("string", "name without size"),
        "size_share": ("double", "elements over those of the whole model"),
        "numel": ("int64", "elements"),
        "forward_s": ("double", "s"),
        "backward_s": ("double", "s"),
        "optimizer_s": ("double", "s; 0 where it was not told apart"),
        "tensors": ("tensors", "in the order in which gradients are ready: name, shape, dtype, layer, ready_s"),
        "workload": ("string", "Workload as JSON: all of the above, and what was measured of gradients"),
        "source": ("string", "where shapes and times come from"),
    },
    "topologies": {
        "topo_id": ("string", "hosts x ranks, rate, delay, slow host, and hash"),
        "kind": ("string", "hosts (each with a link of its own) or loopback"),
        "num_ranks": ("int64", "on all hosts"),
        "slow_share": ("double", "compute speed of the last host over that of the others; 0: all are alike"),
        "hosts": ("hosts", "name, num_ranks, send_bytes_per_s, receive_bytes_per_s (0: no limit), delay_s, cpu_share"),
        "links": ("links", "that differ from what the hosts say: source, target, bytes_per_s, latency_s"),
        "source": ("string", "where the figures come from"),
    },
    "plans": {
        "plan_id": ("string", "the plan's hash"),
        "generator": ("string", "name of a builder, or sample"),
        "exact": ("bool", "gives DDP's gradients but for rounding to 16 bits"),
        "steps_ratio": ("double", "measured bound on steps to the same accuracy over those of DDP; null: not known"),
        "plan": ("string", "SyncPlan as JSON"),
        "genes": ("string", "Genome as JSON: what the search may change"),
    },
    "buckets": {
        "plan_id": ("string", "row of plans"),
        "rule": ("int64", "place in the plan; the first rule that matches a tensor decides"),
        "bucket_bytes": ("int64", "gradients come in buckets of at most so many, in the order in which they are ready"),
        "layer": ("string", "pattern of the layer's class"),
        "pattern": ("string", "pattern of the tensor's name"),
        "min_numel": ("int64", "smallest tensor that the rule means"),
        "max_numel": ("int64", "largest; 0: no limit"),
        "what": ("string", "gradient, momentum, weight"),
        "collective": ("string", "type of the node that exchanges"),
        "codec": ("string", "and its settings; empty: as it is"),
        "feedback": ("string", "none, worker, both"),
        "graph": ("string", "of gossip"),
        "every": ("int64", "steps between exchanges"),
        "fragments": ("int64", "parts of the model that take turns"),
        "delay_steps": ("int64", "steps until a result is used"),
        "chunk_bytes": ("int64", "uncompressed bytes in one pipelined piece"),
        "hierarchical": ("bool", "exact inside hosts"),
        "order": ("string", "ready or at_end"),
    },
    "sessions": {
        "session_id": ("string", ""),
        "model_id": ("string", "row of models"),
        "topo_id": ("string", "row of topologies"),
        "began": ("string", "UTC"),
        "compute_s": ("double", "s; step time of the slowest rank without communication"),
        "control_spread": ("double", "largest distance of a control's step time from their median, over it"),
        "drifted": ("bool", "control_spread is above 0.1"),
        "links_before": ("checks", "measured: source, target, wanted and found bytes_per_s and round_trip_s"),
        "links_after": ("checks", "the same, afterwards; empty if the session was cut short"),
        "links_wrong": ("bool", "a link was more than a quarter off before or after"),
        "machine": ("string", "JSON: command, cpu, num_cpus, kernel, versions"),
    },
    "runs": _RUN,
    "steps": {
        "run_id": ("string", "row of runs"),
        "sample": ("int64", "place among the run's samples"),
        "pace_s": ("double", "s a step of the group: of the slowest rank where one host is slow, else the mean"),
        "mean_s": ("double", "s a step over one period, mean over ranks"),
        "max_s": ("double", "s, largest rank"),
        "rank0_s": ("double", "s, rank 0"),
    },
    "micro": {
        "operation": ("string", "what was timed"),
        "codec": ("string", "of which codec; - for none"),
        "input_bytes": ("int64", "of float32"),
        "seconds": ("double", "s; median of rounds, one core"),
        "spread_s": ("double", "s; median distance from it"),
        "source": ("string", "file"),
    },
    "convergence": {
        "algorithm": ("string", "as pliant bench calls it"),
        "model": ("string", "what was trained"),
        "target": ("double", "accuracy, or perplexity"),
        "steps": ("double", "steps to the target, mean over seeds; null: a seed did not get there"),
        "steps_ratio": ("double", "over those of ddp-bf16"),
        "gap": ("double", "points of accuracy, or percent of perplexity, by which it ended better than ddp-bf16"),
        "source": ("string", "file"),
    },
    "splits": {
        "split": ("string", "random, model:..., topology:..., both:..."),
        "run_id": ("string", "row of runs; every run that a split does not name is for training"),
        "role": ("string", "val, test, or left_out (neither trained on nor tested)"),
    },
}
"""Table -> column -> (type, meaning with unit)."""

_CHECK = ("wanted_bytes_per_s", "found_bytes_per_s", "wanted_round_trip_s", "found_round_trip_s")
_RATES = ("send_bytes_per_s", "receive_bytes_per_s", "delay_s", "cpu_share")


def arrow() -> Any:
    """Return pyarrow. Raises RuntimeError, naming the extra, if it is not installed."""
    return _import("pyarrow")


def parquet() -> Any:
    """Return pyarrow.parquet. Raises RuntimeError, naming the extra, if it is not installed."""
    return _import("pyarrow.parquet")


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise RuntimeError("a data set needs pyarrow, which is missing: pip install 'pliant[plan]'.") from error


def schema_of(table: str) -> Any:
    """Return a table's Arrow schema; each field carries its meaning as metadata."""
    pa = arrow()
    text, number, whole = pa.string(), pa.float64(), pa.int64()
    ends = [("source", text), ("target", text)]
    host = pa.struct([("name", text), ("num_ranks", whole), *((name, number) for name in _RATES)])
    tensor = [("name", text), ("shape", pa.list_(whole)), ("dtype", text), ("layer", text), ("ready_s", number)]
    kinds = {
        "string": text,
        "int64": whole,
        "double": number,
        "bool": pa.bool_(),
        "hosts": pa.list_(host),
        "links": pa.list_(pa.struct([*ends, ("bytes_per_s", number), ("latency_s", number)])),
        "tensors": pa.list_(pa.struct(tensor)),
        "checks": pa.list_(pa.struct([*ends, *((name, number) for name in _CHECK)])),
    }
    return pa.schema(
        [pa.field(name, kinds[kind], metadata={"meaning": text}) for name, (kind, text) in COLUMNS[table].items()]
    )
