"""Names of Spark functions that decide where, or whether, a condition may be evaluated.

Taken from the function registry of Spark 4.3.0 by group: sqlglot knows only part of them, and under other
names, so its own classes do not help here.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Need a group of rows; Spark refuses them in a filter.
AGGREGATES = _words("""
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg
    bitmap_or_agg bool_and bool_or collect_list collect_set collect_union corr count count_if
    count_min_sketch covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric
    hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value listagg
    max max_by mean measure median min min_by mode percentile percentile_approx percentile_cont
    percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg
    theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance
""")

# Need an ordered partition of rows.
WINDOWS = _words("""
    counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
""")

# Yield several rows for one.
GENERATORS = _words("""
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack
    variant_explode variant_explode_outer
""")

# Drawn anew at each evaluation: before the join they would be drawn per row, not per result.
NONDETERMINISTIC = _words("""
    input_file_block_length input_file_block_start input_file_name java_method
    monotonically_increasing_id rand randn random randstr reflect shuffle spark_partition_id try_reflect
    uniform uuid
""")

# Bare words that functions such as timestampdiff take as their unit: not columns.
DATETIME_UNITS = _words("""
    day dayofyear days dow dow_iso hour hours microsecond microseconds millisecond milliseconds minute
    minutes month months quarter second seconds week weeks year yearofweek years
""")
