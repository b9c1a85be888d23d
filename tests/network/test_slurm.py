"""The recipe for Slurm, run by Slurm: its controller and two of its daemons, each on an emulated host of its own."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from pliant.network import emulate_cluster
from pliant.spec import Host, Topology

RECIPES = Path(__file__).parents[2] / "recipes"
NEEDED = ("slurmd", "slurmctld", "munged", "sbatch")
pytestmark = [
    pytest.mark.netns,
    pytest.mark.extended,
    pytest.mark.usefixtures("emulating"),
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)) or os.geteuid() != 0,
        reason="Slurm's daemons are not here, or not for root: apt-get install slurmd slurmctld slurm-client munge",
    ),
]

CONF = """
ClusterName=two
SlurmctldHost=host0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
NodeName=host[0-1] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""

HOST = """
set -u
cd "$FOLDER"
hostname "host$RANK"
export SLURM_CONF=$FOLDER/slurm.conf
if [ "$RANK" = 0 ]; then
    munged --force --foreground --key-file=$FOLDER/munge.key --socket=$FOLDER/munge.socket \
        --pid-file=$FOLDER/munge.pid --log-file=$FOLDER/munge.log --seed-file=$FOLDER/munge.seed &
    until [ -S munge.socket ]; do sleep 0.1; done
    slurmctld -D > controller.log 2>&1 &
fi
until [ -S munge.socket ]; do sleep 0.1; done
slurmd -D -N "host$RANK" > "slurmd$RANK.log" 2>&1 &
if [ "$RANK" = 0 ]; then
    until [ "$(sinfo -h -t idle -o %D)" = 2 ]; do sleep 0.5; done
    unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK
    cd "$RECIPES"
    sbatch --wait --output="$FOLDER/job.log" slurm.sbatch train.py --steps 5
    echo $? > "$FOLDER/ended"
else
    until [ -e ended ]; do sleep 0.5; done
fi
kill $(jobs -p)
exit 0
"""


def test_two_nodes_train(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "slurm.conf").write_text(CONF.format(folder=tmp_path))
    (tmp_path / "munge.key").write_bytes(os.urandom(1024))
    (tmp_path / "munge.key").chmod(0o600)
    env = {
        "FOLDER": str(tmp_path),
        "RECIPES": str(RECIPES),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    said = []
    hosts = tuple(Host(name=f"host{k}") for k in range(2))
    with emulate_cluster(Topology(hosts=hosts), check=False) as cluster:
        argv = ["unshare", "--uts", "bash", "-c", HOST]
        cluster.run(argv, env=env, on_line=lambda rank, line: said.append((rank, line)), timeout_s=250)
    logs = {log.name: log.read_text()[-1500:] for log in tmp_path.glob("*.log")}
    assert (tmp_path / "ended").exists(), (said, logs)
    assert (tmp_path / "ended").read_text() == "0\n", logs
    assert "5 steps on 2 ranks" in logs["job.log"]
