"""Names of `pliant.algorithms`, each handed on when it is first asked for."""

from .base import (
    CURVATURE as CURVATURE,
)
from .base import (
    Algorithm as Algorithm,
)
from .base import (
    FeelsCurvature as FeelsCurvature,
)
from .base import (
    Moment as Moment,
)
from .base import (
    State as State,
)
from .by_name import (
    plan_of_text as plan_of_text,
)
from .by_name import (
    recommended as recommended,
)
from .combining import (
    after as after,
)
from .combining import (
    between_hosts as between_hosts,
)
from .combining import (
    dynamic as dynamic,
)
from .combining import (
    every as every,
)
from .combining import (
    late as late,
)
from .executors import (
    EXECUTORS as EXECUTORS,
)
from .executors import (
    executor_for as executor_for,
)
from .executors.onebit_adam import (
    OneBitAdam as OneBitAdam,
)
from .given import (
    AlgorithmLike as AlgorithmLike,
)
from .given import (
    as_codec_spec as as_codec_spec,
)
from .given import (
    node_of as node_of,
)
from .gradients import (
    allreduce as allreduce,
)
from .gradients import (
    bf16 as bf16,
)
from .gradients import (
    blocktopk as blocktopk,
)
from .gradients import (
    bytegrad as bytegrad,
)
from .gradients import (
    demo as demo,
)
from .gradients import (
    fp16 as fp16,
)
from .gradients import (
    int4 as int4,
)
from .gradients import (
    natural as natural,
)
from .gradients import (
    onebit as onebit,
)
from .gradients import (
    onebit_adam as onebit_adam,
)
from .gradients import (
    owner as owner,
)
from .gradients import (
    powersgd as powersgd,
)
from .gradients import (
    qsgd as qsgd,
)
from .gradients import (
    randomk as randomk,
)
from .gradients import (
    stale as stale,
)
from .gradients import (
    tasc as tasc,
)
from .gradients import (
    terngrad as terngrad,
)
from .gradients import (
    topk as topk,
)
from .grammar import (
    parse as parse,
)
from .plans import (
    partition as partition,
)
from .plans import (
    plan_of as plan_of,
)
from .registry import (
    ALGORITHMS as ALGORITHMS,
)
from .registry import (
    named as named,
)
from .registry import (
    register as register,
)
from .weights import (
    async_average as async_average,
)
from .weights import (
    choco as choco,
)
from .weights import (
    dcd as dcd,
)
from .weights import (
    diloco as diloco,
)
from .weights import (
    gossip as gossip,
)
from .weights import (
    local_sgd as local_sgd,
)
from .weights import (
    post_local_sgd as post_local_sgd,
)
from .weights import (
    sparse_loco as sparse_loco,
)
from .weights import (
    streaming_diloco as streaming_diloco,
)
