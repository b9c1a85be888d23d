"""Names of `pliant.schedules`, each handed on when it is first asked for."""

from .beside import (
    Improving as Improving,
)
from .choose import (
    Candidate as Candidate,
    Chooser as Chooser,
    Choosing as Choosing,
    Planned as Planned,
    Recipe as Recipe,
    candidates as candidates,
)
from .collective import (
    Collective as Collective,
    Grouped as Grouped,
    group as group,
)
from .cost import (
    Cost as Cost,
    RoundCost as RoundCost,
    cost as cost,
    lower_bound_s as lower_bound_s,
)
from .execute import (
    ScheduledSum as ScheduledSum,
)
from .family import (
    Level as Level,
    Shape as Shape,
    build as build,
    halving as halving,
    mixed_radix as mixed_radix,
    shapes as shapes,
)
from .improving import (
    better_owners as better_owners,
    better_rounds as better_rounds,
)
from .owners import (
    Assignment as Assignment,
    greedy_owners as greedy_owners,
    one_owner as one_owner,
    program_owners as program_owners,
    spread_owners as spread_owners,
)
from .program import (
    Improved as Improved,
    improve as improve,
)
from .sparse import (
    SparseSum as SparseSum,
)
from .verify import (
    ScheduleError as ScheduleError,
    Verified as Verified,
    verify as verify,
)
