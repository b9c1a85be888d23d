"""Names of `pliant.network`, each handed on when it is first asked for."""

from .emulate import (
    EmulatedCluster as EmulatedCluster,
    RankResult as RankResult,
    emulated as emulated,
)
from .linkcheck import (
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
