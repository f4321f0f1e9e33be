//! What each model times, what it ignores and how it was validated: the text of `towpath sim doc`.

/// One model.
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// What takes simulated time.
    pub times: &'static str,
    /// What real hardware or Linux has and this has not.
    pub ignores: &'static str,
    /// By what it was checked, and the error found.
    pub validated: &'static str,
}

/// The models of this crate and the functional core.
pub const MODELS: &[Model] = &[
    Model {
        name: "functional core",
        times: "one cycle an instruction; `time` follows the cycle count by the board's timebase",
        ignores: "caches, pipelines, memory latency; vector floating point is an illegal instruction; a store becomes \
                  visible to other harts at once, and harts take turns of 10,000 instructions",
        validated: "register by register with QEMU user on random programs (`towpath sim verify`), with QEMU on whole \
                    programs, static and dynamic; no difference remains but QEMU 7.2's unmasked vxrm",
    },
    Model {
        name: "Linux system calls",
        times: "nothing: a call, a page fault and a context switch take no simulated time; sleeping and time-outs do",
        ignores: "/proc and /sys, control messages on sockets, edges in epoll (reported as levels), robust futex \
                  lists, job control, file locks; a call that is not provided ends the run by name",
        validated: "programs with threads, processes, signals, sockets and shared memory give QEMU's output and status \
                    on one hart and on four, and the same instruction count twice",
    },
    Model {
        name: "frame allocator",
        times: "nothing; it decides which channels, banks and cache sets a page uses",
        ignores: "reclaim: memory that is used up ends the run",
        validated: "frames are distinct until used up, and the same seed gives the same order",
    },
    Model {
        name: "bare-metal devices",
        times: "nothing: CLINT, UART and finisher answer in the cycle of the access",
        ignores: "the UART's receiver and speed, the PLIC",
        validated: "a supervisor program with timer interrupts and a mended page fault, checkpointed at every seventh \
                    instruction, ends with the same output and count",
    },
];

/// The models as text for a person.
pub fn text() -> String {
    let mut text = String::new();
    for m in MODELS {
        text += &format!(
            "{}\n  times:     {}\n  ignores:   {}\n  validated: {}\n\n",
            m.name, m.times, m.ignores, m.validated
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_says_everything_of_every_model() {
        let text = super::text();
        for m in super::MODELS {
            assert!(
                [m.name, m.times, m.ignores, m.validated].iter().all(|part| !part.is_empty() && text.contains(part))
            );
        }
    }
}
