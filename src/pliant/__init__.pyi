"""Names of `pliant`, each handed on when it is first asked for: what needs no torch must not wait for it."""

from .algorithms import (
    OneBitAdam as OneBitAdam,
    after as after,
    allreduce as allreduce,
    async_average as async_average,
    between_hosts as between_hosts,
    bf16 as bf16,
    blocktopk as blocktopk,
    bounded_staleness as bounded_staleness,
    bytegrad as bytegrad,
    choco as choco,
    dcd as dcd,
    decoupled_momentum as decoupled_momentum,
    delayed as delayed,
    differences as differences,
    diloco as diloco,
    every as every,
    fp16 as fp16,
    gossip as gossip,
    int4 as int4,
    local_sgd as local_sgd,
    natural as natural,
    onebit as onebit,
    parse as parse,
    partition as partition,
    post_local_sgd as post_local_sgd,
    powersgd as powersgd,
    qsgd as qsgd,
    randomk as randomk,
    register as register,
    sharded as sharded,
    sharded_optimizer as sharded_optimizer,
    sparse_loco as sparse_loco,
    streaming_diloco as streaming_diloco,
    tasc as tasc,
    terngrad as terngrad,
    topk as topk,
    with_target as with_target,
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
