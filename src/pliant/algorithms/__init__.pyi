"""Names of `pliant.algorithms`, each handed on when it is first asked for."""

from .base import (
    CURVATURE as CURVATURE,
    Algorithm as Algorithm,
    State as State,
    StepContext as StepContext,
    UsesCurvature as UsesCurvature,
)
from .by_name import (
    plan_of_text as plan_of_text,
    recommended as recommended,
)
from .combining import (
    after as after,
    between_hosts as between_hosts,
    dynamic as dynamic,
    every as every,
    late as late,
)
from .executors import (
    EXECUTORS as EXECUTORS,
    executor_for as executor_for,
)
from .executors.onebit_adam import (
    OneBitAdam as OneBitAdam,
)
from .given import (
    AlgorithmLike as AlgorithmLike,
    as_codec_spec as as_codec_spec,
    node_of as node_of,
)
from .gradients import (
    allreduce as allreduce,
    bf16 as bf16,
    blocktopk as blocktopk,
    bytegrad as bytegrad,
    demo as demo,
    fp16 as fp16,
    int4 as int4,
    natural as natural,
    onebit as onebit,
    onebit_adam as onebit_adam,
    owner as owner,
    powersgd as powersgd,
    qsgd as qsgd,
    randomk as randomk,
    stale as stale,
    tasc as tasc,
    terngrad as terngrad,
    topk as topk,
)
from .grammar import (
    parse as parse,
)
from .plans import (
    partition as partition,
    plan_of as plan_of,
)
from .registry import (
    ALGORITHMS as ALGORITHMS,
    named as named,
    register as register,
)
from .sharding import (
    differences as differences,
    sharded as sharded,
)
from .weights import (
    async_average as async_average,
    choco as choco,
    dcd as dcd,
    diloco as diloco,
    gossip as gossip,
    local_sgd as local_sgd,
    post_local_sgd as post_local_sgd,
    sparse_loco as sparse_loco,
    streaming_diloco as streaming_diloco,
)
