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
from .executors import (
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
