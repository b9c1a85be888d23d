"""Names of `pliant.recsys`, each handed on when it is first asked for: what only plans must not wait for torch."""

from .calibrate import measure_rates as measure_rates
from .embedding.module import ShardedEmbeddingBag as ShardedEmbeddingBag
from .embedding.stats import LookupStats as LookupStats
from .frequencies.bins import RowBins as RowBins
from .frequencies.counting import FrequencyCounter as FrequencyCounter, TableCounter as TableCounter
from .frequencies.criteo import (
    CRITEO_BAGS as CRITEO_BAGS,
    CRITEO_ROWS as CRITEO_ROWS,
    CriteoBatch as CriteoBatch,
    criteo_batches as criteo_batches,
    criteo_tables as criteo_tables,
)
from .frequencies.logs import count_log as count_log
from .frequencies.merge import merge_counters as merge_counters
from .frequencies.rows import Frequencies as Frequencies, RowFrequencies as RowFrequencies
from .frequencies.unique import (
    probability_all_hot as probability_all_hot,
    probability_seen as probability_seen,
    unique_by_owner as unique_by_owner,
    unique_rows as unique_rows,
)
from .placement.cost import StepCost as StepCost, step_cost as step_cost
from .placement.counted_traffic import count_traffic as count_traffic
from .placement.expected_traffic import expected_traffic as expected_traffic
from .placement.explain import Reason as Reason
from .placement.memory import Memory as Memory, memory_per_rank as memory_per_rank
from .placement.place import EmbeddingPlacement as EmbeddingPlacement, place_tables as place_tables
from .placement.problem import EvaluatedPlan as EvaluatedPlan, PlacementLimits as PlacementLimits, Problem as Problem
from .placement.rates import Rates as Rates, fit_rates as fit_rates
from .placement.traffic import Sync as Sync, Traffic as Traffic
