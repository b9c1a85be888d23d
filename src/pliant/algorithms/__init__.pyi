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
from .dion import (
    Dion as Dion,
)
from .executors import (
    executor_for as executor_for,
)
from .executors.compressed_momentum import (
    OneBitAdam as OneBitAdam,
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
from .slow_adamw import (
    SlowAdamW as SlowAdamW,
)
