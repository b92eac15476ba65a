//! The contract of every store. Each behaviour is written once and runs in process, on one Redis
//! server and on a cluster.
//!
//! Known defects of rate limiters, and the tests that prevent them:
//!
//! | defect | test |
//! |---|---|
//! | entries of one moment collapse | `admission::simultaneous_calls_do_not_collapse` |
//! | denials are counted | `admission::denial_consumes_nothing`, `admission::denied_call_does_not_extend_wait` |
//! | the first call is free | `admission::first_call_is_charged` |
//! | truncation loses refill when polled often | `rollout::frequently_polled_rate_loses_nothing` |
//! | parameters are frozen at first use | `policies::bucket_keeps_tokens_up_to_new_capacity` and its neighbours |
//! | a refund mints permits | `refunds::refund_returns_at_most_usage` |
//! | keys without a TTL | scripts: `lifetime::keys_expire_when_state_equals_absence` |
//! | a key expires between two commands | scripts: `lifetime::expiring_key_is_never_persistent` |
//! | the client's clock is ahead or behind | scripts: `lifetime::server_clock_dates_decisions` |
//! | the clock steps back | `time::clock_step_back_refills_nothing`, `time::clock_step_back_locks_out_no_client` |
//! | retry hints of 0 | `retry::retry_after_of_denial_is_never_zero` |
//! | retry hints too early for a large cost | `retry::retry_after_covers_the_whole_cost`, `retry::retry_after_is_exact` |
//! | a cost above the capacity waits for ever | `failed_waits::wait_for_more_than_quota_ends_at_once` |
//! | a timeout is counted per try | `failed_waits::timeout_covers_all_attempts`, `failed_waits::time_in_queue_counts_towards_timeout` |
//! | negative or zero cost | `input::invalid_cost_is_rejected_by_name`, `input::zero_cost_is_a_peek_and_always_allowed` |
//! | negative or zero rate or window | `input::invalid_policies_are_named` |
//! | NaN, infinity, overflow | `input::invalid_cost_is_rejected_by_name`, `input::extreme_policies_are_exact` |
//! | a value of the wrong type at the key | scripts: `values::value_of_another_type_fails_only_its_own_decision` |
//! | key injection, by special bytes or by length | `keys::hostile_keys_have_separate_budgets` and its neighbours |
//! | unbounded keys | `peek_and_reset::peek_of_unknown_key_stores_nothing`, `several_limits::denial_stores_no_state_for_unused_limits` |
//! | one bad key fails a whole batch | scripts: `values::value_of_another_type_fails_only_its_own_decision` |
//! | a replay charges twice | scripts: `servers::server_without_script_charges_once` |
//! | a layout version in the key doubles limits | scripts: `values::unknown_layout_is_never_treated_as_unused` |
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

#[path = "contract/admission.rs"]
mod admission;
#[path = "contract/annotations.rs"]
mod annotations;
#[path = "contract/concurrency.rs"]
mod concurrency;
#[path = "contract/counter_windows.rs"]
mod counter_windows;
#[path = "contract/detached.rs"]
mod detached;
#[path = "contract/enforcement.rs"]
mod enforcement;
#[path = "contract/failed_waits.rs"]
mod failed_waits;
#[path = "contract/groups.rs"]
mod groups;
#[path = "contract/inheritance.rs"]
mod inheritance;
#[path = "contract/input.rs"]
mod input;
#[path = "contract/key_lists.rs"]
mod key_lists;
#[path = "contract/keys.rs"]
mod keys;
#[path = "contract/named.rs"]
mod named;
#[path = "contract/on_denial.rs"]
mod on_denial;
#[path = "contract/overlays.rs"]
mod overlays;
#[path = "contract/paced.rs"]
mod paced;
#[path = "contract/peek_and_reset.rs"]
mod peek_and_reset;
#[path = "contract/penalties.rs"]
mod penalties;
#[path = "contract/policies.rs"]
mod policies;
#[path = "contract/refunds.rs"]
mod refunds;
#[path = "contract/reservations.rs"]
mod reservations;
#[path = "contract/retry.rs"]
mod retry;
#[path = "contract/rollout.rs"]
mod rollout;
#[path = "contract/settlement.rs"]
mod settlement;
#[path = "contract/several_limits.rs"]
mod several_limits;
#[path = "contract/time.rs"]
mod time;
#[path = "contract/trials.rs"]
mod trials;
#[path = "contract/waiting.rs"]
mod waiting;

use support::promise;

/// One test for each store and behaviour. A behaviour that is not listed is dead code, which the
/// compiler reports.
macro_rules! on_every_store {
    ($($theme:ident: $($behaviour:ident)*;)*) => {
        on_store!(memory Memory; $($theme: $($behaviour)*;)*);
        on_store!(standalone Standalone; $($theme: $($behaviour)*;)*);
        on_store!(cluster Cluster; $($theme: $($behaviour)*;)*);
    };
}

macro_rules! on_store {
    ($store:ident $kind:ident; $($theme:ident: $($behaviour:ident)*;)*) => {
        mod $store {
            $(mod $theme {
                use crate::support::{Kind, Subject};

                $(#[tokio::test]
                async fn $behaviour() {
                    crate::$theme::$behaviour(Subject::new(Kind::$kind)).await;
                })*
            })*
        }
    };
}

on_every_store! {
    admission:
        funnel_admits_drained_amount
        bucket_admits_refilled_amount
        window_admits_its_limit_at_once
        window_permit_lasts_exactly_one_window
        levels_reproduce_redis_cell_replies
        first_call_is_charged
        denial_consumes_nothing
        denied_call_does_not_extend_wait
        simultaneous_calls_do_not_collapse
        cost_counts_as_multiple_calls
        buckets_and_funnels_count_thousandths
        remaining_can_be_acquired_next
        call_can_cost_the_whole_quota
        keys_have_separate_budgets
        policies_have_separate_budgets
    ;
    retry:
        retry_after_is_exact
        retry_after_is_exact_for_fractions
        retry_after_covers_the_whole_cost
        retry_after_of_denial_is_never_zero
        allowed_call_has_no_retry_after
        retry_after_of_several_limits_is_the_largest
        reset_after_is_exact
        next_after_is_exact
        available_after_is_never_too_short_beside_leases
        reset_after_of_several_limits_is_the_largest
    ;
    time:
        clock_step_back_refills_nothing
        clock_step_back_locks_out_no_client
        clock_step_back_keeps_remaining
        time_counts_before_and_after_clock_step_back
        jittering_clock_admits_no_additional_permits
        clock_jump_forward_refills_once
        large_clock_step_back_resets_at_most
        decisions_are_dated_by_the_clock
        microseconds_are_exact_in_the_year_2100
    ;
    policies:
        bucket_keeps_tokens_up_to_new_capacity
        raised_bucket_keeps_tokens_until_old_state_expires
        funnel_and_window_keep_usage
        changed_rate_applies_to_next_call
        changed_window_applies_to_next_call
        denied_state_is_kept_until_retry_time
        growing_ring_keeps_its_order
        shrinking_ring_respects_smaller_limit
        cost_can_wrap_around_end_of_ring
    ;
    rollout:
        alternating_buckets_create_and_lose_no_permits
        alternating_funnels_create_and_lose_no_permits
        alternating_windows_create_and_lose_no_permits
        alternating_change_creates_no_permits
        permits_of_small_bucket_count_in_large_one
        permits_of_short_window_count_in_long_one
        frequently_polled_rate_loses_nothing
    ;
    several_limits:
        several_limits_are_charged_atomically
        denial_stores_no_state_for_unused_limits
        each_limit_has_its_own_outcome_in_request_order
        one_cost_can_be_given_for_all
        zero_cost_among_several_charges_other_limits
        repeated_limit_is_rejected
        sixteen_limits_are_decided_and_seventeen_or_zero_rejected
        too_many_limits_are_rejected_before_they_are_compared
    ;
    groups:
        different_groups_are_rejected
        common_group_of_keys_allows_different_keys
        common_group_of_policies_allows_different_keys
        group_is_part_of_key_identity
        one_policy_may_limit_two_keys
    ;
    input:
        zero_cost_is_a_peek_and_always_allowed
        cost_above_quota_never_fits
        cost_that_never_fits_one_limit_charges_no_other
        invalid_cost_is_rejected_by_name
        fractional_cost_of_window_is_named
        extreme_policies_are_exact
        invalid_policies_are_named
    ;
    keys:
        hostile_keys_have_separate_budgets
        hostile_groups_have_separate_budgets
        hostile_policy_names_have_separate_budgets
    ;
    waiting:
        available_permit_is_granted_at_once
        waiter_is_served_at_announced_time
        waiters_are_served_in_the_order_of_arrival
        small_cost_does_not_overtake_large_one
        waiters_of_other_keys_are_not_blocked
        several_limits_share_one_wait
        thousand_waiters_are_served_in_order_while_half_leave
        refund_wakes_waiter
        newer_policy_is_not_blocked_by_earlier_waiters
        waiter_above_new_quota_is_rejected
        unpolled_waiter_delays_queue_briefly
        grant_of_cancelled_unpolled_waiter_goes_to_next
        late_refund_of_unpolled_grant_creates_no_permits
        refund_wakes_waiters_of_several_limits
    ;
    failed_waits:
        short_wait_lasts_for_its_timeout
        waiter_is_served_by_early_refund
        time_in_queue_counts_towards_timeout
        timeout_covers_all_attempts
        waiter_behind_head_times_out
        zero_timeout_is_a_check
        cancelled_waiter_is_replaced_by_next
        wait_for_more_than_quota_ends_at_once
        shutdown_ends_waits_and_rejects_later_calls
    ;
    peek_and_reset:
        peek_changes_nothing
        peek_equals_check
        peek_of_unknown_key_stores_nothing
        reset_removes_all_state
        reset_affects_no_other_limit
        reset_of_unknown_key_succeeds
        state_is_kept_while_relevant
        several_limits_can_be_peeked_together
    ;
    refunds:
        refund_is_available_at_once
        refund_returns_at_most_usage
        refund_above_quota_repays_debt
        refund_of_zero_or_unknown_key_changes_nothing
        full_refund_leaves_no_state
        window_refunds_oldest_permits
        window_of_a_century_is_refundable
        refund_keeps_refilled_permits
        refund_of_invalid_amount_is_rejected
    ;
    reservations:
        unused_estimate_is_refunded
        cost_above_estimate_is_a_debt
        debt_of_window_lasts_one_window
        debt_removes_oldest_permits_of_window
        late_cost_is_charged_unconditionally
        refund_repays_debt
        dropped_reservation_stays_charged
        settlement_creates_no_permits
        oversized_reservation_is_denied
        settlement_wakes_waiters
        reservation_can_wait_for_permits
        several_limits_are_settled_together
        invalid_amount_settles_nothing
        debt_survives_policy_change
        uncharged_limit_is_not_settled
    ;
    paced:
        simultaneous_calls_leave_one_by_one
        paced_calls_leave_evenly
        peek_reports_delay
        longest_delay_of_several_limits_applies
        pacing_can_start_and_stop_while_calls_wait
        cancelled_delayed_call_lets_next_leave_earlier
        acquire_waits_for_delay
        change_in_registry_keeps_delays
        call_above_delay_budget_is_not_charged
        cancelled_annotated_call_is_refunded
        shadow_limit_causes_no_delay
    ;
    named:
        name_and_policy_denote_one_limit
        registry_change_applies_to_next_call
        unknown_policy_is_allowed_and_counted
        handle_by_name_has_every_policy_operation
        key_override_matches_plain_and_escaped_colons
        ended_override_uncovers_override_with_plain_colons
        key_override_uses_alignment_of_policy
        key_override_applies_until_its_end
        named_and_given_policies_are_decided_together
        reset_in_registry_ends_waits
        waiting_call_follows_policy_within_its_timeout
        reset_in_registry_ends_wait_for_concurrency
        reservation_is_settled_under_policy_that_granted_it
        shutdown_rejects_only_enforced_named_calls
    ;
    annotations:
        uncounted_call_is_refunded
        degraded_call_runs_fallback
        budget_is_found_by_name_and_key_parts
    ;
    counter_windows:
        fixed_window_admits_limit_per_period
        aligned_period_ends_with_calendar_period
        counter_window_decays_previous_period
        large_limits_are_exact
        changed_limit_keeps_usage
        changed_window_keeps_usage_for_at_most_its_length
        peek_under_shorter_window_states_exact_wait
        clock_step_back_keeps_period_end
        jittering_clock_at_midnight_admits_one_quota_per_day
        period_from_first_use_follows_monotonic_time
        usage_is_refilled
    ;
    concurrency:
        concurrency_never_exceeds_maximum
        cost_is_acquired_as_a_whole
        held_permits_outlive_many_leases
        released_permit_goes_to_first_waiter
        long_held_permit_is_transferred
        cheap_waiter_does_not_overtake_expensive_one
        wait_ends_at_its_timeout
        waiter_leaving_queue_holds_no_permit
        shutdown_ends_waits_and_keeps_held_permits
        only_concurrency_policy_can_be_acquired
        keys_in_groups_have_separate_concurrency
        changed_maximum_applies_to_next_call
        changed_maximum_applies_to_waiters
        random_traces_equal_a_counter
        reset_keeps_permits_of_this_process
        ten_thousand_cycles_keep_maximum_and_leak_nothing
        modes_and_key_lists_apply_to_concurrency
    ;
    detached:
        detached_permit_is_held_until_it_is_released
        detached_permit_expires_unless_it_is_renewed
        detached_permit_of_wrong_scope_is_rejected
        forged_permit_id_changes_nothing
        reset_releases_detached_permits
        shadow_policy_returns_detached_permit_of_nothing
        detached_acquire_rejects_a_timeout
        random_traces_never_exceed_the_maximum
        detached_reservation_is_settled_once
        settlement_under_faster_policy_creates_no_permits
        detached_reservation_of_several_limits_is_settled_together
        id_from_before_reset_remains_valid
        expired_reservation_keeps_its_estimate
        reservation_id_of_wrong_limits_is_rejected
        uncharged_reservation_is_settled_without_effect
        invalid_lifetime_refunds_the_estimate
        settlement_after_proportional_change_is_converted
        reservation_beside_many_uncharged_limits_is_settled
    ;
    enforcement:
        shadow_mode_decides_and_denies_no_call
        shadow_usage_counts
        off_mode_queries_and_charges_nothing
        looser_mode_of_policy_and_limiter_applies
        shadow_limit_does_not_affect_enforced_limits
        denied_call_has_outcomes_at_positions_of_its_limits
        shadow_limit_causes_no_wait
        rejected_call_is_allowed_in_shadow
        failing_store_denies_no_shadow_call
    ;
    key_lists:
        allow_listed_key_is_allowed_without_charge
        deny_list_takes_precedence_over_allow_list
        key_list_applies_to_its_own_limit
        refund_without_charge_changes_nothing
        key_lists_follow_enforcement_mode
        colon_in_name_does_not_escape_list
        error_of_invalid_key_list_names_its_entry
        network_key_matches_each_entry_that_contains_it
    ;
    overlays:
        suspension_applies_in_spite_of_caches
        suspension_ends_by_the_clock
        narrower_suspension_takes_precedence
        suspension_applies_to_concurrency
        block_denies_its_keys_under_every_policy
        block_of_a_part_denies_keys_with_the_declared_part
        key_list_entry_does_not_match_after_its_end
        key_list_entry_of_concurrency_does_not_match_after_its_end
    ;
    trials:
        trial_is_decided_beside_the_policy
        trial_ends_by_the_clock
        trial_follows_charged_calls_only
        forbidden_call_is_not_part_of_trial
        invalid_trials_are_named
    ;
    on_denial:
        default_denial_handling_rejects
        denied_call_waits_for_policy_timeout
        degraded_call_continues_without_charge
        strictest_policy_determines_denial_handling
        shadow_mode_neither_degrades_nor_waits
    ;
    penalties:
        key_denied_too_often_is_blocked_for_block_time
        other_keys_and_policies_are_not_blocked
        distant_denials_cause_no_block
        peeks_and_calls_in_shadow_do_not_count
        reset_removes_block_and_denial_count
        zero_cost_is_never_blocked
        block_denies_whole_decision_without_charge
        block_of_two_limits_of_one_name_lasts
        waiter_keeps_block_of_its_own_cost
        denial_counts_for_the_denying_limit
        timed_out_wait_counts_as_one_denial
        blocked_key_is_not_degraded
        clock_step_back_extends_no_block
        block_is_stored_beside_limit_and_expires
        penalty_with_token_lease_is_rejected
    ;
    inheritance:
        reset_change_discards_all_usage
        usage_keeps_its_fraction_of_new_quota
        refill_uses_rate_of_its_time
        previous_policy_decides_until_scheduled_change
        cost_above_previous_quota_waits_for_change
        replaced_change_converts_policy_in_force
        replicas_convert_a_limit_once
        cached_denial_ends_at_policy_change
        refunds_and_debts_apply_to_converted_state
        change_of_settings_keeps_conversion
        several_limits_are_converted_for_one_decision
        registry_text_contains_policy_changes
    ;
    settlement:
        shadow_limit_ignores_refund
        shadow_limit_ignores_debt
        each_limit_is_settled_with_its_own_amount
        uncounted_call_is_refunded_beside_shadow_limit
        expired_permit_is_not_refunded
        shadow_funnel_delays_no_call
        settlement_across_proportional_change_creates_no_permits
        debt_is_charged_to_enlarged_level
        debt_is_converted_by_proportional_change
        refill_at_new_rate_is_not_refunded
        refund_after_kept_usage_creates_no_permits
        refund_does_not_shorten_window_of_successor
        reservation_before_scheduled_change_is_converted
        several_proportional_changes_refund_nothing
        debt_across_several_changes_leaves_enlarged_level
    ;
}
