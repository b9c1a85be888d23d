"""Names of `pliant`, each handed on when it is first asked for: what needs no torch must not wait for it."""

from .algorithms import (
    OneBitAdam as OneBitAdam,
)
from .algorithms import (
    after as after,
)
from .algorithms import (
    allreduce as allreduce,
)
from .algorithms import (
    async_average as async_average,
)
from .algorithms import (
    between_hosts as between_hosts,
)
from .algorithms import (
    bf16 as bf16,
)
from .algorithms import (
    blocktopk as blocktopk,
)
from .algorithms import (
    bytegrad as bytegrad,
)
from .algorithms import (
    choco as choco,
)
from .algorithms import (
    dcd as dcd,
)
from .algorithms import (
    demo as demo,
)
from .algorithms import (
    diloco as diloco,
)
from .algorithms import (
    dynamic as dynamic,
)
from .algorithms import (
    every as every,
)
from .algorithms import (
    fp16 as fp16,
)
from .algorithms import (
    gossip as gossip,
)
from .algorithms import (
    int4 as int4,
)
from .algorithms import (
    late as late,
)
from .algorithms import (
    local_sgd as local_sgd,
)
from .algorithms import (
    natural as natural,
)
from .algorithms import (
    onebit as onebit,
)
from .algorithms import (
    owner as owner,
)
from .algorithms import (
    parse as parse,
)
from .algorithms import (
    partition as partition,
)
from .algorithms import (
    post_local_sgd as post_local_sgd,
)
from .algorithms import (
    powersgd as powersgd,
)
from .algorithms import (
    qsgd as qsgd,
)
from .algorithms import (
    randomk as randomk,
)
from .algorithms import (
    register as register,
)
from .algorithms import (
    sparse_loco as sparse_loco,
)
from .algorithms import (
    stale as stale,
)
from .algorithms import (
    streaming_diloco as streaming_diloco,
)
from .algorithms import (
    tasc as tasc,
)
from .algorithms import (
    terngrad as terngrad,
)
from .algorithms import (
    topk as topk,
)
from .comm import (
    CommError as CommError,
)
from .comm import (
    run_world as run_world,
)
from .curvature import (
    Fisher as Fisher,
)
from .curvature import (
    GaussNewton as GaussNewton,
)
from .curvature import (
    Hutchinson as Hutchinson,
)
from .curvature import (
    Task as Task,
)
from .curvature import (
    top_eigenvalues as top_eigenvalues,
)
from .curvature import (
    trace as trace,
)
from .engine import (
    Auto as Auto,
)
from .engine import (
    Bounds as Bounds,
)
from .engine import (
    Elastic as Elastic,
)
from .engine import (
    IncompleteBackwardError as IncompleteBackwardError,
)
from .engine import (
    NonFiniteGradientError as NonFiniteGradientError,
)
from .engine import (
    Observation as Observation,
)
from .engine import (
    Recording as Recording,
)
from .engine import (
    ReplicasDisagreeError as ReplicasDisagreeError,
)
from .engine import (
    Run as Run,
)
from .engine import (
    load_run as load_run,
)
from .engine import (
    observe as observe,
)
from .engine import (
    record as record,
)
from .engine import (
    relax as relax,
)
from .engine import (
    resize as resize,
)
from .schedules import (
    ScheduledSum as ScheduledSum,
)
from .schedules import (
    ScheduleError as ScheduleError,
)
from .schedules import (
    SparseSum as SparseSum,
)
from .simulator import (
    Costs as Costs,
)
from .simulator import (
    simulate as simulate,
)
from .spec import (
    CurvatureSpec as CurvatureSpec,
)
from .spec import (
    Graph as Graph,
)
from .spec import (
    Machine as Machine,
)
from .spec import (
    Match as Match,
)
from .spec import (
    Schedule as Schedule,
)
from .spec import (
    Selection as Selection,
)
from .spec import (
    SyncPlan as SyncPlan,
)
from .spec import (
    Timeline as Timeline,
)
from .spec import (
    Topology as Topology,
)
from .spec import (
    Workload as Workload,
)
from .spec import (
    load as load,
)
from .spec import (
    save as save,
)
