//! What every packet device promises, each promise checked on each device. A pair is two devices joined by a link, used
//! from one thread; kernel devices get a network namespace of their own.

mod pairs;
mod promises;

/// A module for each device, with a test for each promise.
macro_rules! conformance {
    ($($device:ident),* $(,)?) => {
        $(mod $device {
            conformance!(@promises $device:
                frames_of_every_size_arrive_in_order_both_ways,
                frame_of_many_segments_arrives_whole,
                frame_in_any_memory_arrives_whole,
                frame_across_pages_arrives_whole,
                frames_beyond_the_ring_wait_and_arrive,
                references_are_held_until_sent_and_no_longer,
                one_buffer_sent_many_times_arrives_each_time,
                frames_that_cannot_be_sent_are_dropped_and_counted,
                sleeper_is_woken_by_a_frame_and_not_before,
                held_frames_keep_their_bytes,
                unfinished_checksum_is_finished_or_told,
            );
        })*
    };
    (@promises $device:ident: $($promise:ident),* $(,)?) => {
        $(#[test]
        fn $promise() {
            let name = concat!(stringify!($device), "::", stringify!($promise));
            if let Some(mut pair) = crate::pairs::$device(name) {
                crate::promises::$promise(&mut pair);
            }
        })*
    };
}

conformance!(shm, tap, packet, xdp_native, xdp_generic, xdp_jumbo, fault_of_none,);
