"""Names of `pliant.algorithms`, each handed on when it is first asked for."""

from .base import (
    CURVATURE as CURVATURE,
    Algorithm as Algorithm,
    State as State,
    StepContext as StepContext,
    UsesCurvature as UsesCurvature,
)
from .by_name import (
    plan_for_name as plan_for_name,
    plan_of_text as plan_of_text,
)
from .combinators import (
    after as after,
    between_hosts as between_hosts,
    delayed as delayed,
    every as every,
    with_target as with_target,
)
from .executors import (
    EXECUTORS as EXECUTORS,
    executor_for as executor_for,
)
from .executors.compressed_momentum import (
    OneBitAdam as OneBitAdam,
)
from .gradients import (
    allreduce as allreduce,
    bf16 as bf16,
    blocktopk as blocktopk,
    bounded_staleness as bounded_staleness,
    bytegrad as bytegrad,
    decoupled_momentum as decoupled_momentum,
    fp16 as fp16,
    int4 as int4,
    natural as natural,
    onebit as onebit,
    onebit_adam as onebit_adam,
    powersgd as powersgd,
    qsgd as qsgd,
    randomk as randomk,
    sharded_optimizer as sharded_optimizer,
    tasc as tasc,
    terngrad as terngrad,
    topk as topk,
)
from .grammar import (
    parse as parse,
)
from .inputs import (
    AlgorithmLike as AlgorithmLike,
    as_codec_spec as as_codec_spec,
    node_of as node_of,
)
from .plans import (
    partition as partition,
    plan_of as plan_of,
)
from .registry import (
    ALGORITHMS as ALGORITHMS,
    algorithm_named as algorithm_named,
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
