//! The contract of every store. Each behaviour is written once and runs in process, on one Redis
//! server and on a cluster.
//!
//! Known defects of rate limiters, and the tests that prevent them:
//!
//! | defect | test |
//! |---|---|
//! | entries of one moment collapse | `admission::simultaneous_calls_do_not_collapse` |
//! | denials are counted | `admission::a_denial_consumes_nothing`, `admission::a_denied_call_does_not_prolong_the_wait` |
//! | the first call is free | `admission::the_first_call_is_charged` |
//! | truncation loses refill when polled often | `rollout::a_rate_polled_often_loses_nothing` |
//! | parameters are frozen at first use | `policies::a_bucket_keeps_its_tokens_up_to_the_new_capacity` and its neighbours |
//! | a refund mints permits | `refunds::refund_returns_at_most_usage` |
//! | keys without a TTL | scripts: `lifetime::every_key_expires_when_its_state_equals_absence` |
//! | a key expires between two commands | scripts: `lifetime::expiring_key_is_never_persistent` |
//! | the client's clock is ahead or behind | scripts: `lifetime::the_servers_clock_decides` |
//! | the clock steps back | `time::a_step_back_refills_nothing`, `time::clock_step_back_locks_out_no_client` |
//! | retry hints of 0 | `retry::retry_after_is_never_zero_on_a_denial` |
//! | retry hints too early for a large cost | `retry::retry_after_is_for_the_whole_cost`, `retry::retry_after_is_exact` |
//! | a cost above the capacity waits for ever | `giving_up::a_wait_for_more_than_the_quota_ends_at_once` |
//! | a timeout is counted per try | `giving_up::the_deadline_is_for_all_tries_together`, `giving_up::the_time_in_the_queue_counts` |
//! | negative or zero cost | `input::a_cost_that_is_no_amount_is_refused_by_name`, `input::a_cost_of_zero_is_a_peek_and_always_allowed` |
//! | negative or zero rate or window | `input::invalid_policies_are_named` |
//! | NaN, infinity, overflow | `input::a_cost_that_is_no_amount_is_refused_by_name`, `input::extreme_policies_are_exact` |
//! | a value of the wrong type at the key | scripts: `values::value_of_another_type_fails_only_its_own_decision` |
//! | key injection, by special bytes or by length | `keys::hostile_keys_have_budgets_of_their_own` and its neighbours |
//! | unbounded keys | `peek_and_reset::a_peek_of_an_unknown_key_stores_nothing`, `several::a_denial_leaves_fresh_limits_fresh` |
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
#[path = "contract/counted.rs"]
mod counted;
#[path = "contract/detached.rs"]
mod detached;
#[path = "contract/enforcement.rs"]
mod enforcement;
#[path = "contract/giving_up.rs"]
mod giving_up;
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
#[path = "contract/settling.rs"]
mod settling;
#[path = "contract/several.rs"]
mod several;
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
        a_window_passes_its_limit_at_once
        window_permit_lasts_exactly_one_window
        cell_rate_vectors_come_out
        the_first_call_is_charged
        a_denial_consumes_nothing
        a_denied_call_does_not_prolong_the_wait
        simultaneous_calls_do_not_collapse
        cost_counts_as_multiple_calls
        buckets_and_funnels_count_thousandths
        remaining_can_be_acquired_next
        a_call_may_cost_the_whole_quota
        keys_have_budgets_of_their_own
        policies_have_budgets_of_their_own
    ;
    retry:
        retry_after_is_exact
        retry_after_is_exact_for_fractions
        retry_after_is_for_the_whole_cost
        retry_after_is_never_zero_on_a_denial
        allowed_call_has_no_retry_after
        several_limits_can_be_waited_for
        reset_after_is_exact
        next_after_is_exact
        reset_after_of_several_limits_is_the_last
    ;
    time:
        a_step_back_refills_nothing
        clock_step_back_locks_out_no_client
        clock_step_back_keeps_remaining
        time_counts_before_and_after_a_step_back
        a_trembling_clock_admits_no_more
        clock_jump_forward_refills_once
        large_clock_step_back_resets_at_most
        decisions_are_dated_by_the_clock
        microseconds_are_exact_in_the_year_2100
    ;
    policies:
        a_bucket_keeps_its_tokens_up_to_the_new_capacity
        raised_bucket_keeps_tokens_until_old_state_expires
        funnel_and_window_keep_usage
        a_changed_rate_counts_from_the_next_call
        a_changed_window_counts_from_the_next_call
        denied_state_is_kept_until_retry_time
        a_ring_that_grows_keeps_its_order
        a_ring_that_was_larger_obeys_the_smaller_limit
        a_cost_may_reach_across_the_end_of_a_ring
    ;
    rollout:
        alternating_buckets_create_and_lose_no_permits
        alternating_funnels_create_and_lose_no_permits
        alternating_windows_create_and_lose_no_permits
        alternating_change_creates_no_permits
        a_small_buckets_permits_are_missing_from_the_large_one
        a_short_windows_permits_count_in_the_long_one
        a_rate_polled_often_loses_nothing
    ;
    several:
        all_are_charged_or_none
        a_denial_leaves_fresh_limits_fresh
        each_limit_has_its_own_outcome_in_the_order_of_asking
        one_cost_can_be_given_for_all
        a_cost_of_zero_among_several_charges_the_others
        a_repeated_limit_is_refused
        sixteen_limits_are_decided_and_seventeen_or_zero_rejected
        too_many_limits_are_rejected_before_they_are_compared
    ;
    groups:
        different_groups_are_refused
        a_common_group_of_the_keys_allows_different_keys
        a_common_group_of_the_policies_allows_different_keys
        a_key_in_a_group_is_another_key
        one_policy_may_limit_two_keys
    ;
    input:
        a_cost_of_zero_is_a_peek_and_always_allowed
        a_cost_above_the_quota_never_fits
        a_cost_that_never_fits_one_limit_charges_no_other
        a_cost_that_is_no_amount_is_refused_by_name
        fractional_cost_of_window_is_named
        extreme_policies_are_exact
        invalid_policies_are_named
    ;
    keys:
        hostile_keys_have_budgets_of_their_own
        hostile_groups_have_budgets_of_their_own
        hostile_policy_names_have_budgets_of_their_own
    ;
    waiting:
        available_permit_is_granted_at_once
        waiter_is_served_at_announced_time
        waiters_are_served_in_the_order_of_arrival
        a_small_cost_does_not_overtake_a_large_one
        waiters_of_other_keys_are_not_held_up
        several_limits_share_one_wait
        thousand_waiters_are_served_in_order_while_half_leave
        refund_wakes_waiter
        newer_policy_is_not_blocked_by_earlier_waiters
        waiter_above_new_quota_is_rejected
        unpolled_waiter_delays_queue_briefly
        grant_of_cancelled_unpolled_waiter_goes_to_next
        refund_wakes_waiters_of_several_limits
    ;
    giving_up:
        short_wait_lasts_for_its_timeout
        waiter_is_served_by_early_refund
        the_time_in_the_queue_counts
        the_deadline_is_for_all_tries_together
        waiter_behind_head_times_out
        zero_timeout_is_a_check
        cancelled_waiter_is_replaced_by_next
        a_wait_for_more_than_the_quota_ends_at_once
        shutdown_ends_waits_and_refuses_later_calls
    ;
    peek_and_reset:
        a_peek_changes_nothing
        peek_equals_check
        a_peek_of_an_unknown_key_stores_nothing
        a_reset_makes_fresh
        a_reset_touches_no_other_limit
        reset_of_unknown_key_succeeds
        state_is_kept_while_relevant
        several_limits_can_be_peeked_together
    ;
    refunds:
        refund_is_available_at_once
        refund_returns_at_most_usage
        refund_of_zero_or_unknown_key_changes_nothing
        a_refund_of_all_leaves_nothing
        window_refunds_oldest_permits
        window_of_a_century_is_refundable
        refund_keeps_refilled_permits
        refund_of_invalid_amount_is_rejected
    ;
    reservations:
        unused_estimate_is_refunded
        cost_above_estimate_is_a_debt
        a_debt_of_a_window_lasts_for_one_window
        a_debt_pushes_the_oldest_permits_out_of_a_window
        late_cost_is_charged_unconditionally
        a_refund_pays_a_debt
        dropped_reservation_stays_charged
        settlement_creates_no_permits
        oversized_reservation_is_denied
        settlement_wakes_waiters
        a_reservation_can_be_waited_for
        several_limits_are_settled_together
        invalid_amount_settles_nothing
        a_debt_outlasts_a_change_of_policy
        uncharged_limit_is_not_settled
    ;
    paced:
        simultaneous_calls_leave_one_by_one
        calls_leave_evenly_whenever_they_come
        peek_reports_delay
        longest_delay_of_several_limits_applies
        pacing_may_begin_and_end_while_calls_are_waiting
        cancelled_delayed_call_lets_next_leave_earlier
        acquire_waits_for_delay
        call_above_delay_budget_is_not_charged
        cancelled_annotated_call_is_refunded
        shadow_limit_causes_no_delay
    ;
    named:
        a_name_and_its_policy_are_one_limit
        registry_change_applies_to_next_call
        unknown_policy_is_allowed_and_counted
        handle_by_name_has_every_policy_operation
        key_override_matches_plain_and_escaped_colons
        key_override_uses_alignment_of_policy
        a_key_may_have_a_quota_of_its_own_for_a_time
        named_and_given_policies_are_decided_together
    ;
    annotations:
        uncounted_call_is_refunded
        a_degraded_call_is_answered_by_the_fallback
        a_budget_is_found_by_name_and_key_parts
    ;
    counted:
        fixed_window_admits_limit_per_period
        an_aligned_period_ends_with_the_calendars
        counter_window_decays_previous_period
        large_limits_are_exact
        changed_limit_keeps_usage
        a_changed_window_takes_effect_within_itself
        clock_step_back_keeps_period_end
        jittering_clock_at_midnight_admits_one_quota_per_day
        period_from_first_use_follows_monotonic_time
        usage_is_refilled
    ;
    concurrency:
        no_more_than_the_maximum_are_in_flight
        cost_is_acquired_as_a_whole
        held_permits_outlive_many_leases
        released_permit_goes_to_first_waiter
        long_held_permit_is_transferred
        cheap_waiter_does_not_overtake_expensive_one
        a_wait_ends_when_its_time_is_over
        waiter_leaving_queue_holds_no_permit
        shutdown_ends_waits_and_keeps_held_permits
        only_concurrency_policy_can_be_acquired
        keys_in_groups_have_separate_concurrency
        a_changed_maximum_counts_from_the_next_call
        changed_maximum_applies_to_waiters
        random_traces_are_answered_as_by_a_count
        a_reset_takes_nothing_from_this_process
        ten_thousand_cycles_never_exceed_and_end_at_none
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
        detached_reservation_of_several_limits_is_settled_together
        expired_reservation_keeps_its_estimate
        reservation_id_of_wrong_limits_is_rejected
        uncharged_reservation_is_settled_without_effect
        invalid_lifetime_gives_the_estimate_back
        settlement_after_proportional_change_is_converted
    ;
    enforcement:
        shadow_mode_decides_and_denies_no_call
        shadow_usage_counts
        off_mode_queries_and_charges_nothing
        the_looser_of_policy_and_limiter_holds
        shadow_beside_enforced_limits_changes_nothing_for_them
        shadow_limit_causes_no_wait
        rejected_call_is_allowed_in_shadow
        failing_store_denies_no_shadow_call
    ;
    key_lists:
        a_listed_key_is_allowed_and_charged_nothing
        a_denied_key_is_forbidden_even_if_it_is_allowed_too
        key_list_applies_to_its_own_limit
        refund_without_charge_changes_nothing
        key_lists_follow_enforcement_mode
        colon_in_name_does_not_escape_list
        a_list_that_cannot_be_read_names_its_entry
        network_key_matches_every_entry_that_contains_it
    ;
    overlays:
        suspension_applies_in_spite_of_caches
        suspension_ends_by_the_clock
        narrower_suspension_takes_precedence
        suspension_applies_to_concurrency
        block_denies_its_keys_under_every_policy
        key_list_entry_does_not_match_after_its_end
    ;
    trials:
        trial_is_decided_beside_the_policy
        trial_ends_by_the_clock
        trial_follows_charged_calls_only
        invalid_trials_are_named
    ;
    on_denial:
        default_denial_handling_rejects
        denied_call_waits_for_policy_timeout
        degraded_call_continues_without_charge
        strictest_policy_determines_denial_handling
        nothing_is_degraded_or_waits_in_shadow
    ;
    penalties:
        key_denied_too_often_is_blocked_for_block_time
        other_keys_and_policies_are_not_blocked
        distant_denials_cause_no_block
        peeks_and_calls_in_shadow_do_not_count
        a_reset_lifts_the_block_and_the_count
        a_cost_of_zero_is_never_blocked
        a_block_denies_the_whole_decision_and_charges_nothing
        a_denial_counts_for_the_limit_that_denies
        timed_out_wait_counts_as_one_denial
        blocked_key_is_not_degraded
        clock_step_back_extends_no_block
        block_is_stored_beside_limit_and_expires
        a_penalty_beside_a_lease_is_refused
    ;
    inheritance:
        reset_change_discards_all_usage
        usage_keeps_its_fraction_of_new_quota
        refill_uses_rate_of_its_time
        the_policy_before_decides_until_the_change
        replicas_convert_a_limit_once
        a_denial_before_the_change_is_none_after_it
        refunds_and_debts_apply_to_converted_state
        several_limits_are_converted_for_one_decision
        registry_text_contains_policy_changes
    ;
    settling:
        shadow_limit_ignores_refund
        shadow_limit_ignores_debt
        each_limit_is_settled_with_its_own_amount
        uncounted_call_is_refunded_beside_shadow_limit
        expired_permit_is_not_refunded
        shadow_funnel_delays_no_call
        settlement_across_proportional_change_creates_no_permits
        debt_is_converted_by_proportional_change
        refill_at_new_rate_is_not_refunded
        reservation_before_scheduled_change_is_converted
        several_proportional_changes_refund_nothing
    ;
}
