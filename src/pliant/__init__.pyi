"""Names of `pliant`, each handed on when it is first asked for: what needs no torch must not wait for it."""

from .algorithms import (
    Dion as Dion,
    OneBitAdam as OneBitAdam,
    SlowAdamW as SlowAdamW,
    differences as differences,
    parse as parse,
    partition as partition,
    register as register,
    sharded as sharded,
)
from .autotune import (
    Auto as Auto,
    QualityBounds as QualityBounds,
)
from .comm import (
    CommError as CommError,
    run_world as run_world,
)
from .engine import (
    Elastic as Elastic,
    IncompleteBackwardError as IncompleteBackwardError,
    NonFiniteGradientError as NonFiniteGradientError,
    ReplicasDisagreeError as ReplicasDisagreeError,
    Run as Run,
    load_run as load_run,
    resize as resize,
)
from .entry import (
    relax as relax,
)
from .profiling import (
    observe as observe,
    profile as profile,
)
from .spec import (
    CurvatureSpec as CurvatureSpec,
    Graph as Graph,
    Match as Match,
    Selection as Selection,
    SyncPlan as SyncPlan,
    Timeline as Timeline,
    Topology as Topology,
    Workload as Workload,
    load as load,
    save as save,
)

# isort: split
# Algorithms, as `scripts/rows.py` writes them from the registry.
from .algorithms.combinators import (
    after as after,
    between_hosts as between_hosts,
    between_racks as between_racks,
    delayed as delayed,
    every as every,
    with_target as with_target,
)
from .algorithms.gradients import (
    allreduce as allreduce,
    bf16 as bf16,
    blocktopk as blocktopk,
    bytegrad as bytegrad,
    chunktopk as chunktopk,
    decoupled_momentum as decoupled_momentum,
    fp16 as fp16,
    int4 as int4,
    natural as natural,
    onebit as onebit,
    onebit_adam as onebit_adam,
    powersgd as powersgd,
    qsgd as qsgd,
    randomk as randomk,
    sigma2 as sigma2,
    tasc as tasc,
    terngrad as terngrad,
    topk as topk,
)
from .algorithms.momenta import (
    dion as dion,
    ef21_muon as ef21_muon,
)
from .algorithms.optimizer_states import (
    des_loc as des_loc,
    local_momentum as local_momentum,
    mt_dao as mt_dao,
)
from .algorithms.outer import (
    decoupled_diloco as decoupled_diloco,
    delayed_nesterov as delayed_nesterov,
    diloco as diloco,
    muloco as muloco,
    no_loco as no_loco,
    pier as pier,
    streaming_diloco as streaming_diloco,
)
from .algorithms.owners import (
    acco as acco,
    bounded_staleness as bounded_staleness,
    sharded_optimizer as sharded_optimizer,
)
from .algorithms.regions import (
    halos as halos,
)
from .algorithms.weights import (
    async_average as async_average,
    choco as choco,
    dcd as dcd,
    gossip as gossip,
    local_sgd as local_sgd,
    post_local_sgd as post_local_sgd,
    pulse_loco as pulse_loco,
    sparse_loco as sparse_loco,
)
