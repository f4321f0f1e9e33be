//! The probes.

use super::Finding;
use std::ffi::c_int;
use std::fs;
use std::io;
use std::path::Path;
use towpath_libos::{Backend, Config, LibOs, Runtime};

/// Processor, cores, kernel.
pub fn machine() -> String {
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{}, {cores} processors, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}

/// Everything, in the order it is shown.
pub fn all() -> Vec<Finding> {
    vec![
        system_calls(),
        io_uring(),
        sealed_memory(),
        membarrier(),
        device_file("tap", "/dev/net/tun", "inet@tap", "modprobe tun (and root, or the setcap line of --nic)"),
        socket("packet sockets", libc::AF_PACKET, "inet@packet"),
        socket("AF_XDP", libc::AF_XDP, "inet@xdp"),
        huge_pages(),
        transparent_huge_pages(),
        steady_clock(),
        isolated_processors(),
        locked_memory(),
        dpdk(),
        listed(
            "RDMA",
            "/sys/class/infiniband",
            "library OS rdma, which this version does not have",
            "rdma link add rxe0 type rxe netdev eth0 (soft RoCE), with the module rdma_rxe",
        ),
        listed(
            "NVMe",
            "/sys/class/nvme",
            "storage queues on a device of their own, which this version does not have; files work on any disk",
            "attach an NVMe disk",
        ),
        listed(
            "DSA",
            "/sys/bus/dsa/devices",
            "a copy engine, which this version does not use",
            "boot with intel_iommu=on,sm_on on a processor that has it",
        ),
    ]
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn system_calls() -> Finding {
    let started = Runtime::start(Config { libos: LibOs::Kernel(Backend::Syscalls), ..Config::default() });
    Finding {
        name: "system calls",
        there: started.is_ok(),
        detail: started.map_or_else(|e| e.to_string(), |_| "non-blocking sockets and epoll work".to_string()),
        enables: "kernel@syscalls",
        remedy: Some("a kernel of 5.10 or later, and a limit of open files above a few (ulimit -n)"),
    }
}

fn io_uring() -> Finding {
    let started = Runtime::start(Config { libos: LibOs::Kernel(Backend::Uring), ..Config::default() });
    Finding {
        name: "io_uring",
        there: started.is_ok(),
        detail: started.map_or_else(|e| e.to_string(), |_| "a ring was set up".to_string()),
        enables: "kernel@uring",
        remedy: Some("sysctl kernel.io_uring_disabled=0; in a container, a seccomp profile that allows it"),
    }
}

/// Seals that make a shared arena safe from whoever sends it.
fn sealed_memory() -> Finding {
    let tried = sys::sealed_memfd();
    Finding {
        name: "sealed memory",
        there: tried.is_ok(),
        detail: tried.map_or_else(|e| format!("memfd with seals: {e}"), |()| "memfd takes its seals".to_string()),
        enables: "frame arenas shared with devices and processes; inet@shm",
        remedy: Some("a kernel of 5.1 or later"),
    }
}

fn membarrier() -> Finding {
    let commands = sys::membarrier_commands();
    let there = commands.is_ok_and(|bits| bits & libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED != 0);
    Finding {
        name: "membarrier",
        there,
        detail: if there { "expedited barriers work" } else { "no expedited barriers" }.to_string(),
        enables: "a sleeper that costs its wakers one load (inet@shm)",
        remedy: Some("a kernel of 4.16 or later; in a container, a seccomp profile that allows it"),
    }
}

fn device_file(name: &'static str, path: &str, enables: &'static str, remedy: &'static str) -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path);
    Finding {
        name,
        there: opened.is_ok(),
        detail: opened.map_or_else(|e| format!("{path}: {e}"), |_| format!("{path} opens")),
        enables,
        remedy: Some(remedy),
    }
}

fn socket(name: &'static str, family: c_int, enables: &'static str) -> Finding {
    let opened = sys::raw_socket(family);
    Finding {
        name,
        there: opened.is_ok(),
        detail: opened.map_or_else(|e| format!("socket: {e}"), |()| "a socket opens".to_string()),
        enables,
        remedy: Some("root, or the setcap line that `towpath doctor --nic IFACE` prints"),
    }
}

fn huge_pages() -> Finding {
    let text = read("/proc/meminfo");
    let number = |key: &str| -> u64 {
        let line = text.lines().find_map(|l| l.strip_prefix(key));
        line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let (total, free) = (number("HugePages_Total:"), number("HugePages_Free:"));
    Finding {
        name: "huge pages",
        there: total > 0,
        detail: format!("{total} reserved, {free} free, {} kB each", number("Hugepagesize:")),
        enables: "devices that want them (DPDK); nothing here needs them",
        remedy: Some("sysctl vm.nr_hugepages=512"),
    }
}

fn transparent_huge_pages() -> Finding {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("none");
    Finding {
        name: "transparent huge pages",
        there: matches!(chosen, "always" | "madvise"),
        detail: format!("set to {chosen}"),
        enables: "heap arenas with fewer TLB misses",
        remedy: Some("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    }
}

fn steady_clock() -> Finding {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let cpu = read("/proc/cpuinfo");
    let flags = cpu.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    let steady = flags.split_whitespace().filter(|f| ["constant_tsc", "nonstop_tsc"].contains(f)).count() == 2;
    Finding {
        name: "steady TSC",
        there: steady,
        detail: format!(
            "the kernel's clock is {}; the counter is {}",
            source.trim(),
            if steady { "steady" } else { "not" }
        ),
        enables: "a clock of a few nanoseconds; without it the kernel's is read",
        remedy: None,
    }
}

fn isolated_processors() -> Finding {
    let list = read("/sys/devices/system/cpu/isolated");
    let list = list.trim();
    Finding {
        name: "isolated processors",
        there: !list.is_empty(),
        detail: if list.is_empty() { "none".to_string() } else { list.to_string() },
        enables: "tails without the scheduler in them, for runtimes that spin",
        remedy: Some("boot with isolcpus=LIST nohz_full=LIST"),
    }
}

fn locked_memory() -> Finding {
    let limits = read("/proc/self/limits");
    let line = limits.lines().find(|l| l.starts_with("Max locked memory")).unwrap_or_default();
    let soft = line.split_whitespace().nth(3).unwrap_or("unknown").to_string();
    let enough = soft == "unlimited" || soft.parse::<u64>().is_ok_and(|bytes| bytes >= 64 << 20);
    Finding {
        name: "locked memory",
        there: enough,
        detail: format!("limit {soft}{}", if soft == "unlimited" { "" } else { " bytes (root is not bound by it)" }),
        enables: "frame arenas registered with devices",
        remedy: Some("ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit"),
    }
}

fn dpdk() -> Finding {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/local/lib"];
    let found = places.iter().find(|dir| {
        let names = fs::read_dir(dir).into_iter().flatten().flatten();
        names.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("librte_eal.so"))
    });
    Finding {
        name: "DPDK",
        there: found.is_some(),
        detail: found.map_or_else(|| "no librte_eal".to_string(), |dir| format!("librte_eal in {dir}")),
        enables: "the device dpdk, which this version does not have",
        remedy: Some("apt install dpdk-dev"),
    }
}

fn listed(name: &'static str, folder: &str, enables: &'static str, remedy: &'static str) -> Finding {
    let names: Vec<String> = fs::read_dir(Path::new(folder))
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    let detail = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    Finding { name, there: !names.is_empty(), detail, enables, remedy: Some(remedy) }
}

/// The few system calls that no library here makes.
mod sys {
    use super::{c_int, io};
    use std::os::fd::{FromRawFd, OwnedFd};

    fn owned(fd: c_int) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub fn raw_socket(family: c_int) -> io::Result<()> {
        // SAFETY: plain numbers go in, a descriptor or an error comes out.
        owned(unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }).map(drop)
    }

    pub fn sealed_memfd() -> io::Result<()> {
        use std::os::fd::AsRawFd;
        // SAFETY: the name is a C string.
        let fd = owned(unsafe { libc::memfd_create(c"towpath-doctor".as_ptr(), libc::MFD_ALLOW_SEALING) })?;
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
        // SAFETY: the descriptor is ours, the rest are numbers.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn membarrier_commands() -> io::Result<c_int> {
        // SAFETY: a query takes no pointer.
        let bits = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_QUERY, 0, 0) };
        if bits < 0 { Err(io::Error::last_os_error()) } else { Ok(bits as c_int) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_on_any_machine_answers_for_every_probe() {
        let findings = all();
        assert!(findings.iter().any(|f| f.name == "system calls" && f.there), "plain sockets work everywhere");
        for f in &findings {
            assert!(!f.detail.is_empty() && !f.enables.is_empty(), "{} says nothing", f.name);
        }
    }
}
