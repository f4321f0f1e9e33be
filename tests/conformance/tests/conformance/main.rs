//! Every promise on every driver. A promise is a function of a [`World`]; `promises!` makes a test of it per driver.

mod errors;
mod files;
mod queues;
mod sockets;
mod tokens;
mod world;

/// Makes one test a promise and driver.
macro_rules! promises {
    ($($group:ident: $($promise:ident),+ $(,)?;)+) => {
        promises!(@driver syscalls, "kernel@syscalls", $($group: $($promise),+;)+);
        promises!(@driver uring, "kernel@uring", $($group: $($promise),+;)+);
        promises!(@driver auto, "kernel", $($group: $($promise),+;)+);
    };
    (@driver $driver:ident, $libos:literal, $($group:ident: $($promise:ident),+;)+) => {
        mod $driver {
            $($(
                #[test]
                fn $promise() {
                    if let Some(world) = crate::world::World::new(
                        $libos,
                        concat!("conformance::", stringify!($driver), "::", stringify!($promise)),
                    ) {
                        crate::$group::$promise(&world);
                    }
                }
            )+)+
        }
    };
}

promises! {
    sockets:
        stream_returns_bytes_whole_and_in_order,
        stream_larger_than_every_buffer_arrives_whole,
        stream_at_its_end_pops_empty_again_and_again,
        stream_half_closed_still_answers,
        pushes_to_a_full_stream_keep_their_order,
        datagram_says_who_sent_it,
        datagram_of_any_size_arrives_whole,
        connected_datagram_needs_no_address,
        addresses_of_both_ends_agree,
        options_are_taken_where_they_apply,
        data_pushed_may_be_dropped_at_once,
        every_way_of_waiting_passes_messages,
        many_connections_are_served_at_once,
        unix_path_is_removed_with_its_queue;
    tokens:
        token_waited_for_twice_is_an_error,
        token_never_issued_is_an_error,
        token_with_a_waiter_refuses_another,
        token_after_a_timeout_can_be_waited_for,
        tokens_of_a_closed_queue_are_canceled,
        completion_wakes_one_waiter,
        wait_any_takes_the_first,
        wait_all_keeps_the_order_of_tokens,
        wait_set_of_thousands_brings_the_ready_ones,
        wait_set_forgets_what_is_removed,
        wait_inside_a_coroutine_is_refused,
        tokens_and_futures_share_a_queue;
    queues:
        memory_queue_keeps_order_and_references,
        memory_queue_that_is_full_lets_pushes_wait,
        pop_given_up_loses_nothing,
        accept_given_up_loses_nothing,
        another_thread_wakes_a_sleeping_runtime,
        timer_ends_a_sleep,
        shutdown_of_the_runtime_ends_everything,
        descriptor_of_a_closed_queue_is_stale;
    files:
        file_reads_back_what_was_written,
        file_appends_durably_in_order,
        file_cursor_moves_as_lseek_says,
        file_truncated_is_short,
        file_missing_says_its_name,
        file_larger_than_a_buffer_reads_whole,
        file_syncs_beside_sockets;
    errors:
        connect_to_nobody_is_refused,
        bind_to_an_address_in_use_says_so,
        address_of_another_family_is_refused,
        peer_that_resets_fails_push_and_pop,
        peer_that_never_reads_does_not_stop_others,
        operations_that_do_not_apply_say_why,
        datagram_too_large_is_refused,
        connect_by_a_missing_path_is_refused;
}
