"""Recipes for clusters: held to the schemas of those that read them, and run where that is possible."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.network import emulate_cluster
from pliant.spec import Host, Topology

yaml = pytest.importorskip("yaml", reason="PyYAML, of the extra dev, is not installed")
RECIPES = Path(__file__).parents[2] / "recipes"

POD = "spec.replicatedJobs[].template.spec.template.spec"
SCHEMAS = {
    # The CRD of jobset.x-k8s.io v1alpha2, config/components/crd/bases, and Kubernetes' ObjectMeta
    "jobset.yaml": {
        "apiVersion": str,
        "kind": str,
        "metadata": dict,
        "metadata.name": str,
        "spec": dict,
        "spec.network": dict,
        "spec.network.enableDNSHostnames": bool,
        "spec.replicatedJobs": list,
        "spec.replicatedJobs[].name": str,
        "spec.replicatedJobs[].replicas": int,
        "spec.replicatedJobs[].template": dict,
        "spec.replicatedJobs[].template.spec": dict,
        "spec.replicatedJobs[].template.spec.parallelism": int,
        "spec.replicatedJobs[].template.spec.completions": int,
        "spec.replicatedJobs[].template.spec.completionMode": str,
        "spec.replicatedJobs[].template.spec.backoffLimit": int,
        "spec.replicatedJobs[].template.spec.template": dict,
        POD: dict,
        f"{POD}.restartPolicy": str,
        f"{POD}.containers": list,
        f"{POD}.containers[].name": str,
        f"{POD}.containers[].image": str,
        f"{POD}.containers[].env": list,
        f"{POD}.containers[].env[].name": str,
        f"{POD}.containers[].env[].value": str,
        f"{POD}.containers[].env[].valueFrom": dict,
        f"{POD}.containers[].env[].valueFrom.fieldRef": dict,
        f"{POD}.containers[].env[].valueFrom.fieldRef.fieldPath": str,
        f"{POD}.containers[].ports": list,
        f"{POD}.containers[].ports[].containerPort": int,
        f"{POD}.containers[].command": list,
        f"{POD}.containers[].command[]": str,
        f"{POD}.containers[].resources": dict,
        f"{POD}.containers[].resources.requests": dict,
        f"{POD}.containers[].resources.requests.cpu": str,
        f"{POD}.containers[].resources.requests.memory": str,
    },
    # get_task_schema() and _get_single_resources_schema() of sky/utils/schemas.py
    "skypilot.yaml": {
        "name": str,
        "num_nodes": int,
        "workdir": str,
        "resources": dict,
        "resources.cpus": str,
        "resources.accelerators": str,
        "setup": str,
        "run": str,
    },
    # ray.runtime_env.RuntimeEnv
    "ray_runtime_env.yaml": {"working_dir": str, "pip": list, "pip[]": str, "env_vars": dict, "env_vars.*": str},
    # schema/compose-spec.json of the Compose Specification
    "compose.yaml": {
        "name": str,
        "x-*": dict,
        "services": dict,
        "services.*": dict,
        "services.*.build": dict,
        "services.*.build.context": str,
        "services.*.build.dockerfile": str,
        "services.*.cap_add": list,
        "services.*.cap_add[]": str,
        "services.*.networks": list,
        "services.*.networks[]": str,
        "services.*.environment": dict,
        "services.*.environment.*": str,
        "services.*.command": list,
        "services.*.command[]": str,
        "networks": dict,
        "networks.*": dict,
    },
}
"""Recipe -> path -> type, for the paths that recipes use; `*` is any name."""
REQUIRED = {
    "jobset.yaml": {
        "spec.replicatedJobs[]": {"name", "template"},
        "spec.replicatedJobs[].template.spec": {"template"},
        POD: {"containers"},
        f"{POD}.containers[]": {"name"},
        f"{POD}.containers[].env[]": {"name"},
        f"{POD}.containers[].ports[]": {"containerPort"},
        f"{POD}.containers[].env[].valueFrom.fieldRef": {"fieldPath"},
    }
}


def faults(value, schema, required, path=""):
    """Yield what is at a place where the schema has nothing, or another type, or what is missing there."""
    if missing := required.get(path, set()) - set(value if isinstance(value, dict) else ()):
        yield f"{path} lacks {sorted(missing)}"
    children = {}
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        for name, child in value.items():
            if name.startswith("x-") and "x-*" in schema and not path:
                continue  # extensions hold anything
            known = next((k for k in (f"{prefix}{name}", f"{prefix}*") if k in schema), f"{prefix}{name}")
            children[known] = [*children.get(known, []), child]
    elif isinstance(value, list):
        children[f"{path}[]"] = value
    for known, found in children.items():
        for child in found:
            if isinstance(child, (dict, list)) and known.endswith("[]"):
                yield from faults(child, schema, required, known)
            elif known not in schema:
                yield f"there is no {known}"
            elif type(child) is not schema[known]:
                yield f"{known} is {child!r}, not a {schema[known].__name__}"
            else:
                yield from faults(child, schema, required, known)


def read(name):
    return yaml.safe_load((RECIPES / name).read_text())


@pytest.mark.parametrize("name", SCHEMAS)
def test_recipes_have_the_keys_of_their_schema(name):
    assert list(faults(read(name), SCHEMAS[name], REQUIRED.get(name, {}))) == []


def test_a_fault_is_seen():
    job = read("jobset.yaml")
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0] = {"image": 5, "cmd": ["sh"]}
    assert list(faults(job, SCHEMAS["jobset.yaml"], REQUIRED["jobset.yaml"])) == [
        f"{POD}.containers[] lacks ['name']",
        f"{POD}.containers[].image is 5, not a str",
        f"there is no {POD}.containers[].cmd",
    ]


def test_places_that_recipes_name_are_there():
    job = read("jobset.yaml")
    jobs = job["spec"]["replicatedJobs"][0]
    spec = jobs["template"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["MASTER_ADDR"] == f"{job['metadata']['name']}-{jobs['name']}-0-0.{job['metadata']['name']}"
    assert f"--nnodes {spec['parallelism']} " in container["command"][-1]
    assert spec["parallelism"] == spec["completions"]
    services = read("compose.yaml")["services"]
    assert [s["environment"]["RANK"] for s in services.values()] == [str(k) for k in range(len(services))]
    assert {s["environment"]["WORLD_SIZE"] for s in services.values()} == {str(len(services))}
    assert {s["environment"]["MASTER_ADDR"] for s in services.values()} == {next(iter(services))}


def test_what_ray_is_given_it_takes():
    tree = ast.parse((RECIPES / "ray_train.py").read_text())
    given = {
        call.func.id: {each.arg for each in call.keywords}
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    assert given["ScalingConfig"] <= {"num_workers", "use_gpu", "resources_per_worker", "trainer_resources"}
    assert given["TorchConfig"] <= {"backend", "init_method", "timeout_s"}
    assert given["TorchTrainer"] <= {"train_loop_config", "scaling_config", "torch_config", "run_config", "datasets"}


@pytest.mark.parametrize(("shell", "name"), [("bash", "slurm.sbatch"), ("sh", "shaped.sh")])
def test_scripts_can_be_parsed(shell, name):
    assert subprocess.run([shell, "-n", str(RECIPES / name)], check=False).returncode == 0


RUN = """
import json, os, sys
services = json.loads(sys.argv[1])
mine = services[int(os.environ["RANK"])]
os.environ.update(mine["environment"])
os.execvp(mine["command"][0], mine["command"])
"""


@pytest.mark.netns
@pytest.mark.extended
@pytest.mark.usefixtures("emulating")
def test_the_commands_of_compose_run_in_namespaces_named_like_its_services(monkeypatch):
    services = read("compose.yaml")["services"]
    monkeypatch.chdir(RECIPES)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = []
    with emulate_cluster(Topology(hosts=tuple(Host(name=name) for name in services)), check=False) as cluster:
        argv = [sys.executable, "-c", RUN, json.dumps(list(services.values()))]
        take = lambda rank, line: said.append((rank, line))  # noqa: E731
        results = cluster.run(argv, env={"PATH": path}, on_line=take, timeout_s=280)
    assert [result.exit_code for result in results] == [0] * len(services), said
    assert any(f"100 steps on {len(services)} ranks" in line for rank, line in said if rank == 0)
