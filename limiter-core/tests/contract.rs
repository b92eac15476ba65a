//! What every store keeps to. Each behaviour is written once, and run in process, on one Redis
//! server and on a cluster.
//!
//! Defects that rate limiters are known for, and the tests that keep them out:
//!
//! | defect | test |
//! |---|---|
//! | entries of one moment collapse | `admission::calls_of_one_moment_do_not_collapse` |
//! | denials are counted | `admission::a_denial_consumes_nothing`, `admission::a_denied_call_does_not_prolong_the_wait` |
//! | the first call is free | `admission::the_first_call_is_charged` |
//! | truncation loses refill when polled often | `rollout::a_rate_polled_often_loses_nothing` |
//! | parameters are frozen at first use | `policies::a_bucket_keeps_its_tokens_up_to_the_new_capacity` and its neighbours |
//! | a refund mints permits | `refunds::a_refund_returns_at_most_what_was_used` |
//! | keys without a TTL | scripts: `lifetime::every_key_goes_when_its_state_equals_absence` |
//! | a key expires between two commands | scripts: `lifetime::a_key_that_expires_at_any_moment_never_stays_for_good` |
//! | the client's clock is ahead or behind | scripts: `lifetime::the_servers_clock_decides` |
//! | the clock steps back | `time::a_step_back_refills_nothing`, `time::a_step_back_locks_nobody_out` |
//! | retry hints of 0 | `retry::retry_after_is_never_zero_on_a_denial` |
//! | retry hints too early for a large cost | `retry::retry_after_is_for_the_whole_cost`, `retry::retry_after_is_exact` |
//! | a cost above the capacity waits for ever | `giving_up::a_wait_for_more_than_the_quota_ends_at_once` |
//! | a timeout is counted per try | `giving_up::the_deadline_is_for_all_tries_together`, `giving_up::the_time_in_the_queue_counts` |
//! | negative or zero cost | `input::a_cost_that_is_no_amount_is_refused_by_name`, `input::a_cost_of_zero_is_a_peek_and_always_allowed` |
//! | negative or zero rate or window | `input::policies_that_cannot_hold_are_refused_by_name` |
//! | NaN, infinity, overflow | `input::a_cost_that_is_no_amount_is_refused_by_name`, `input::extreme_policies_are_exact` |
//! | a value of the wrong type at the key | scripts: `values::a_value_of_another_type_fails_its_own_decision_only` |
//! | key injection, by special bytes or by length | `keys::hostile_keys_have_budgets_of_their_own` and its neighbours |
//! | unbounded keys | `peek_and_reset::a_peek_of_an_unknown_key_stores_nothing`, `several::a_denial_leaves_fresh_limits_fresh` |
//! | one bad key fails a whole batch | scripts: `values::a_value_of_another_type_fails_its_own_decision_only` |
//! | a replay charges twice | scripts: `servers::a_server_that_forgot_the_script_charges_once` |
//! | a layout version in the key doubles limits | scripts: `values::a_value_of_an_unknown_layout_is_never_a_fresh_start` |
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
        a_funnel_passes_what_drains
        a_bucket_passes_what_refills
        a_window_passes_its_limit_at_once
        a_permit_of_a_window_lasts_exactly_a_window
        cell_rate_vectors_come_out
        the_first_call_is_charged
        a_denial_consumes_nothing
        a_denied_call_does_not_prolong_the_wait
        calls_of_one_moment_do_not_collapse
        a_cost_counts_as_so_many_calls
        buckets_and_funnels_count_thousandths
        remaining_is_what_could_be_taken_next
        a_call_may_cost_the_whole_quota
        keys_have_budgets_of_their_own
        policies_have_budgets_of_their_own
    ;
    retry:
        retry_after_is_exact
        retry_after_is_exact_for_fractions
        retry_after_is_for_the_whole_cost
        retry_after_is_never_zero_on_a_denial
        an_allowed_call_is_told_no_wait
        several_limits_are_waited_for_together
        reset_after_is_exact
        next_after_is_exact
        reset_after_of_several_limits_is_the_last
    ;
    time:
        a_step_back_refills_nothing
        a_step_back_locks_nobody_out
        a_step_back_keeps_what_is_left
        time_counts_before_and_after_a_step_back
        a_trembling_clock_admits_no_more
        a_leap_ahead_fills_a_budget_once
        a_step_back_into_the_past_starts_afresh_at_worst
        decisions_are_dated_by_the_clock
        microseconds_are_exact_in_the_year_2100
    ;
    policies:
        a_bucket_keeps_its_tokens_up_to_the_new_capacity
        raised_bucket_keeps_tokens_until_old_state_expires
        a_funnel_and_a_window_keep_what_was_used
        a_changed_rate_counts_from_the_next_call
        a_changed_window_counts_from_the_next_call
        what_a_denial_names_is_kept_until_then
        a_ring_that_grows_keeps_its_order
        a_ring_that_was_larger_obeys_the_smaller_limit
        a_cost_may_reach_across_the_end_of_a_ring
    ;
    rollout:
        alternating_buckets_mint_nothing_and_clip_nothing
        alternating_funnels_mint_nothing_and_clip_nothing
        alternating_windows_mint_nothing_and_clip_nothing
        a_change_to_and_fro_mints_nothing
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
        sixteen_limits_are_decided_and_seventeen_or_none_refused
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
        a_fraction_of_a_windows_permit_is_refused_by_name
        extreme_policies_are_exact
        policies_that_cannot_hold_are_refused_by_name
    ;
    keys:
        hostile_keys_have_budgets_of_their_own
        hostile_groups_have_budgets_of_their_own
        hostile_policy_names_have_budgets_of_their_own
    ;
    waiting:
        a_permit_that_is_there_is_given_at_once
        a_waiter_is_served_at_the_moment_it_was_told
        waiters_are_served_in_the_order_of_arrival
        a_small_cost_does_not_overtake_a_large_one
        waiters_of_other_keys_are_not_held_up
        several_limits_are_waited_for_as_one
        a_thousand_are_served_in_the_order_of_arrival_and_half_may_leave
        a_refund_wakes_who_waits
        who_comes_under_another_policy_is_not_held_up_by_those_before
        who_wants_more_than_a_new_policy_ever_admits_is_told_so
        a_waiter_that_is_not_polled_holds_up_its_line_for_a_while_only
        what_a_waiter_was_given_that_is_not_polled_goes_to_the_next
        what_comes_back_to_one_limit_wakes_who_waits_for_it_beside_others
    ;
    giving_up:
        a_wait_that_is_too_short_lasts_as_long_as_was_said
        who_waits_for_what_is_due_too_late_is_served_if_it_comes_back
        the_time_in_the_queue_counts
        the_deadline_is_for_all_tries_together
        who_never_reaches_the_head_times_out_too
        zero_timeout_is_a_check
        a_cancelled_waiter_leaves_its_place_to_the_next
        a_wait_for_more_than_the_quota_ends_at_once
        shutdown_ends_waits_and_refuses_later_calls
    ;
    peek_and_reset:
        a_peek_changes_nothing
        a_peek_says_what_a_check_would
        a_peek_of_an_unknown_key_stores_nothing
        a_reset_makes_fresh
        a_reset_touches_no_other_limit
        a_reset_of_an_unknown_key_is_no_mistake
        state_is_kept_as_long_as_it_means_something
        a_question_may_be_asked_of_several_limits_at_once
    ;
    refunds:
        a_refund_makes_room_at_once
        a_refund_returns_at_most_what_was_used
        a_refund_of_nothing_or_to_nobody_does_nothing
        a_refund_of_all_leaves_nothing
        a_window_gives_back_its_oldest_permits
        a_window_of_a_century_gives_back_too
        a_refund_keeps_what_comes_back_by_itself
        a_refund_of_what_is_no_amount_is_refused
    ;
    reservations:
        what_was_not_needed_is_given_back
        what_was_needed_beyond_is_a_debt
        a_debt_of_a_window_lasts_for_one_window
        a_debt_pushes_the_oldest_permits_out_of_a_window
        what_is_known_afterwards_is_charged_whatever_is_left
        a_refund_pays_a_debt
        one_that_is_dropped_stays_charged
        a_settlement_mints_nothing
        one_that_does_not_fit_is_refused
        a_settlement_is_seen_by_those_who_wait
        a_reservation_can_be_waited_for
        several_limits_are_settled_together
        what_is_no_amount_settles_nothing
        a_debt_outlasts_a_change_of_policy
        what_was_not_charged_is_not_settled
    ;
    paced:
        calls_of_one_moment_leave_one_by_one
        calls_leave_evenly_whenever_they_come
        a_peek_says_how_long_a_call_would_wait
        of_several_limits_the_longest_delay_counts
        pacing_may_begin_and_end_while_calls_are_waiting
        who_gives_up_lets_the_next_leave_earlier
        who_acquires_waits_until_its_turn
        who_cannot_leave_in_time_is_charged_nothing
        an_annotated_call_that_is_cancelled_gives_its_place_back
        nobody_waits_for_a_turn_in_shadow
    ;
    named:
        a_name_and_its_policy_are_one_limit
        a_policy_that_changes_in_the_book_counts_for_the_next_call
        what_is_not_configured_is_allowed_and_counted
        whatever_can_be_asked_of_a_policy_can_be_asked_by_its_name
        a_quota_of_a_key_is_found_wherever_its_colons_came_from
        a_quota_of_a_key_begins_its_periods_as_the_policy_does
        a_key_may_have_a_quota_of_its_own_for_a_time
        named_and_given_policies_are_decided_together
    ;
    annotations:
        a_call_that_does_not_count_is_given_back
        a_degraded_call_is_answered_by_the_fallback
        a_budget_is_found_by_name_and_key_parts
    ;
    counted:
        a_fixed_window_gives_its_limit_in_each_period
        an_aligned_period_ends_with_the_calendars
        a_counter_window_forgets_the_last_period_bit_by_bit
        large_limits_are_exact
        a_changed_limit_keeps_what_was_used
        a_changed_window_takes_effect_within_itself
        a_clock_that_steps_back_ends_no_period_and_prolongs_none
        a_clock_that_trembles_at_midnight_gives_one_day_and_the_next
        time_passes_for_what_began_with_its_first_use
        what_was_used_comes_back
    ;
    concurrency:
        no_more_than_the_maximum_are_in_flight
        a_cost_is_held_whole_or_not_at_all
        what_is_held_outlives_many_leases
        what_is_given_back_goes_to_who_came_first
        what_was_held_for_long_is_handed_on_as_well
        who_needs_little_does_not_overtake_who_needs_much
        a_wait_ends_when_its_time_is_over
        who_leaves_the_queue_holds_nothing
        shutdown_ends_waits_and_leaves_what_is_held
        a_policy_of_concurrency_is_entered_and_no_other
        keys_in_groups_are_in_flight_apart
        a_changed_maximum_counts_from_the_next_call
        a_changed_maximum_counts_for_those_who_wait_too
        random_traces_are_answered_as_by_a_count
        a_reset_takes_nothing_from_this_process
        ten_thousand_cycles_never_exceed_and_end_at_none
        modes_and_lists_of_keys_hold_for_what_is_in_flight
    ;
    enforcement:
        shadow_decides_as_ever_and_denies_nobody
        what_was_used_in_shadow_is_used
        off_asks_nobody_and_charges_nothing
        the_looser_of_policy_and_limiter_holds
        shadow_beside_enforced_limits_changes_nothing_for_them
        nobody_waits_for_a_limit_in_shadow
        what_would_be_rejected_is_allowed_in_shadow
        a_store_that_fails_denies_nobody_in_shadow
    ;
    key_lists:
        a_listed_key_is_allowed_and_charged_nothing
        a_denied_key_is_forbidden_even_if_it_is_allowed_too
        a_list_speaks_for_its_own_limit
        a_refund_gives_nothing_back_where_nothing_is_charged
        lists_are_obeyed_as_far_as_decisions_are
        no_colon_in_a_name_leads_out_of_a_list
        a_list_that_cannot_be_read_names_its_entry
        network_key_matches_every_entry_that_contains_it
    ;
    on_denial:
        a_policy_that_says_nothing_rejects
        a_denied_call_waits_as_long_as_its_policy_says
        a_degraded_call_goes_on_and_is_charged_nothing
        the_strictest_of_several_policies_says_what_becomes_of_the_call
        nothing_is_degraded_or_waits_in_shadow
    ;
    penalties:
        a_key_that_is_denied_too_often_is_blocked_for_exactly_as_long
        other_keys_and_policies_are_not_blocked
        denials_that_lie_far_apart_block_nobody
        peeks_and_calls_in_shadow_do_not_count
        a_reset_lifts_the_block_and_the_count
        a_cost_of_zero_is_never_blocked
        a_block_denies_the_whole_decision_and_charges_nothing
        a_denial_counts_for_the_limit_that_denies
        a_wait_in_vain_counts_as_one_denial
        who_is_blocked_is_not_degraded
        a_step_back_prolongs_no_block_beyond_its_length
        a_block_lies_beside_its_limit_and_goes_with_its_time
        a_penalty_beside_a_lease_is_refused
    ;
    inheritance:
        a_reset_has_everybody_start_afresh
        what_was_used_is_the_same_part_of_the_new_quota
        what_came_back_did_so_at_the_rate_of_its_time
        the_policy_before_decides_until_the_change
        replicas_convert_a_limit_once
        a_denial_before_the_change_is_none_after_it
        refunds_and_debts_find_what_was_converted
        several_limits_are_converted_for_one_decision
        a_book_says_how_a_policy_was_changed
    ;
    settling:
        what_is_in_shadow_keeps_nothing_of_a_refund
        what_is_in_shadow_keeps_nothing_of_a_debt
        each_limit_is_settled_by_its_own_part
        what_does_not_count_is_given_back_beside_a_limit_in_shadow
        a_call_that_outlives_its_permit_gives_nothing_back
        a_funnel_in_shadow_delays_nobody
        a_settlement_across_a_change_in_proportion_mints_nothing
        a_debt_across_a_change_in_proportion_is_converted
        what_came_back_by_the_new_rate_is_not_given_back
        a_reservation_before_a_change_to_come_is_converted
        nothing_is_given_back_across_several_changes_in_proportion
    ;
}
