"""Names of `pliant.schedules`, each handed on when it is first asked for."""

from .background import (
    SolverOptions as SolverOptions,
)
from .collective import (
    Collective as Collective,
    MergedCollective as MergedCollective,
    merge_blocks as merge_blocks,
)
from .cost import (
    Cost as Cost,
    RoundCost as RoundCost,
    lower_bound_s as lower_bound_s,
    predict_cost as predict_cost,
)
from .execute import (
    ScheduledAllReduce as ScheduledAllReduce,
)
from .family import (
    GroupLevel as GroupLevel,
    NestedGroups as NestedGroups,
    build_schedule as build_schedule,
    halving as halving,
    mixed_radix as mixed_radix,
    shapes as shapes,
)
from .owners import (
    Assignment as Assignment,
    greedy_owners as greedy_owners,
    one_owner as one_owner,
    solve_owners as solve_owners,
    spread_owners as spread_owners,
)
from .program import (
    SolvedRounds as SolvedRounds,
    solve_rounds as solve_rounds,
)
from .refine import (
    improve_owners as improve_owners,
    improve_rounds as improve_rounds,
)
from .select import (
    Candidate as Candidate,
    ScheduleRule as ScheduleRule,
    ScheduleSelector as ScheduleSelector,
    SelectedSchedule as SelectedSchedule,
    SelectorOptions as SelectorOptions,
    candidates as candidates,
)
from .sparse import (
    SparseAllReduce as SparseAllReduce,
)
from .verify import (
    ScheduleError as ScheduleError,
    Verified as Verified,
    verify as verify,
)
