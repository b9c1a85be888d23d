"""Names of `pliant.network`, each handed on when it is first asked for."""

from .emulate import (
    EmulatedCluster as EmulatedCluster,
    RankResult as RankResult,
    emulate_cluster as emulate_cluster,
)
from .link_check import (
    LinkReport as LinkReport,
)
from .machine import (
    measure_machine as measure_machine,
)
from .namespaces import (
    CannotEmulateError as CannotEmulateError,
)
from .probing import (
    probe as probe,
)
