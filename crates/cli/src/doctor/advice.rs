//! Derives the findings from the facts.

mod environment;
mod rdma_device;
mod rdma_port;

use headworks::devices::{INSTALL_LIBIBVERBS, INSTALL_LIBRDMACM};
use headworks::environment::ResourceLimit;

use super::system_info::{ManagerFile, SystemInfo};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should be.
    Good,
    /// It works, and could work better.
    Improvable,
    /// A device that exists, or something that the software device needs, does not work.
    Broken,
}

/// Finding of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Name of the check.
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// Meaning of the finding for a user.
    pub(super) why: Option<String>,
    /// Facts that the finding is about, a line each.
    pub(super) details: Vec<String>,
    /// Command that fixes it.
    pub(super) mend: Option<String>,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Good,
            found: found.into(),
            why: None,
            details: Vec::new(),
            mend: None,
        }
    }

    fn bad(verdict: Verdict, check: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict,
            ..Self::good(check, found)
        }
    }

    fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    fn with(mut self, details: impl IntoIterator<Item = String>) -> Self {
        self.details.extend(details);
        self
    }

    fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

use Verdict::{Broken, Improvable};

/// Command that gives a container the devices, and the memory that they need.
const IN_CONTAINER: &str = "docker run --device=/dev/infiniband --ulimit memlock=-1 …";
/// Bytes that programs with rings of a few MiB register.
const MEMLOCK_MIN: u64 = 64 << 20;
/// Files that a pipe holds open, standard streams included.
pub(super) const OPEN_FILES_PIPE: u64 = 32;
/// Files that a few hundred rings hold open.
const OPEN_FILES_MIN: u64 = 4096;
/// Limit of open files that is enough for everything.
const OPEN_FILES_ENOUGH: u64 = 65536;

/// Returns all findings, in the order in which to fix them.
pub(super) fn advise(facts: &SystemInfo) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(environment::soft_device(facts));
    match facts.devices.is_empty() {
        true => findings.extend(no_device(facts)),
        false => findings.push(library(facts)),
    }
    for nic in &facts.devices {
        findings.extend(rdma_device::advise(facts, nic));
    }
    findings.extend(manager(facts));
    findings.push(memlock(facts));
    findings.push(open_files(facts));
    if !facts.is_single_device {
        findings.extend(environment::advise(facts));
    }
    findings.push(huge_pages(facts));
    findings.push(cores(facts));
    findings.extend(governor(facts));
    findings
}

/// Findings on a machine without an RDMA device, which is no fault: how to get one, and which of its
/// libraries are installed.
fn no_device(facts: &SystemInfo) -> Vec<Finding> {
    let state = |check, missing: Option<&String>, install| match missing {
        None => Finding::good(check, "installed"),
        Some(why) => Finding::good(check, "not installed: an RDMA device would need it")
            .because(why)
            .mend(install),
    };
    let (library, manager) = (facts.library.as_ref(), facts.manager.as_ref());
    let library = library.and_then(|library| library.as_ref().err());
    let manager = manager.and_then(|manager| manager.as_ref().err());
    vec![
        Finding::good(
            "devices",
            "no RDMA device: the software one, soft, needs none",
        )
        .because(
            "the kernel's rxe turns any network device into one; if its module cannot be loaded, `cargo xtask rxe \
             PROGRAM` in the source of Headworks runs a program on two of them in a virtual machine",
        )
        .mend("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"),
        state("libibverbs", library, INSTALL_LIBIBVERBS),
        state("librdmacm", manager, INSTALL_LIBRDMACM),
    ]
}

fn library(facts: &SystemInfo) -> Finding {
    match &facts.library {
        Some(Err(why)) => Finding::bad(Broken, "libibverbs", why)
            .because("the kernel has RDMA devices, and programs reach them through this library")
            .mend(INSTALL_LIBIBVERBS),
        _ => Finding::good("libibverbs", "there"),
    }
}

/// If there are devices: whether their programs can also meet through the connection manager.
fn manager(facts: &SystemInfo) -> Option<Finding> {
    if facts.devices.is_empty() {
        return None;
    }
    let check = "manager";
    let missing = |found: &str| {
        let finding = Finding::bad(Improvable, check, found);
        finding.because("connecting over RDMA, at rdma:HOST:PORT, needs the connection manager; connecting over TCP does not")
    };
    if let Some(Err(why)) = &facts.manager {
        return Some(missing(why).mend(INSTALL_LIBRDMACM));
    }
    let file = "/dev/infiniband/rdma_cm";
    Some(match (facts.manager_file, facts.container) {
        (ManagerFile::Open, _) => Finding::good(check, format!("librdmacm, {file}")),
        (ManagerFile::Closed, _) => {
            missing(&format!("{file} cannot be opened")).mend(format!("chmod a+rw {file}"))
        }
        (ManagerFile::Missing, None) => {
            missing(&format!("there is no {file}")).mend("modprobe rdma_ucm")
        }
        (ManagerFile::Missing, Some(_)) => {
            missing(&format!("there is no {file}")).mend(IN_CONTAINER)
        }
    })
}

/// Remark about a limit that the kernel does not tell.
const LIMIT_IS_UNKNOWN: &str =
    "not known: the kernel does not tell this process its limits (prlimit64)";

fn memlock(facts: &SystemInfo) -> Finding {
    let Some(limit) = facts.memlock else {
        return Finding::bad(Improvable, "memlock", LIMIT_IS_UNKNOWN)
            .because("registered memory of RDMA devices counts as locked; that of the software device does not");
    };
    let Some(bytes) = limit.soft else {
        return Finding::good("memlock", "unlimited");
    };
    if facts.may_lock_all_memory {
        return Finding::good("memlock", "unlimited for this user");
    }
    let hard = match limit.hard {
        Some(hard) if hard == bytes => String::new(),
        Some(hard) => format!("; hard limit {} KiB", hard >> 10),
        None => "; hard limit none".to_owned(),
    };
    let found = format!("{} KiB may be locked{hard}", bytes >> 10);
    if bytes >= MEMLOCK_MIN || facts.devices.is_empty() {
        return Finding::good("memlock", found);
    }
    let finding = Finding::bad(Broken, "memlock", found)
        .because("registered memory counts as locked: registering more fails with \"cannot allocate memory\"");
    match facts.container {
        Some(_) => finding.mend("docker run --ulimit memlock=-1 …"),
        None => finding
            .mend("ulimit -l unlimited   # for all logins: memlock in /etc/security/limits.conf"),
    }
}

fn open_files(facts: &SystemInfo) -> Finding {
    let check = "open files";
    let Some(ResourceLimit { soft, hard }) = facts.open_files else {
        return Finding::bad(Improvable, check, LIMIT_IS_UNKNOWN)
            .because("each segment, channel and connection is an open file; the daemon cannot raise the limit here");
    };
    let Some(soft) = soft else {
        return Finding::good(check, "unlimited");
    };
    let found = match hard {
        Some(hard) if hard == soft => format!("{soft} at most"),
        Some(hard) => format!("{soft} at most; hard limit {hard}"),
        None => format!("{soft} at most; hard limit none"),
    };
    if soft >= OPEN_FILES_MIN {
        return Finding::good(check, found);
    }
    let finding = match soft < OPEN_FILES_PIPE {
        true => Finding::bad(Broken, check, found).because(
            "each segment, channel and connection is an open file, and a single pipe needs more of them",
        ),
        false => Finding::bad(Improvable, check, found).because(
            "each segment, channel and connection is an open file: hundreds of rings exceed the limit; the daemon \
             raises its own to the hard limit",
        ),
    };
    let reach = hard.unwrap_or(OPEN_FILES_ENOUGH).min(OPEN_FILES_ENOUGH);
    match facts.container {
        _ if reach >= OPEN_FILES_MIN || soft < OPEN_FILES_PIPE && reach >= OPEN_FILES_PIPE => finding.mend(format!("ulimit -n {reach}")),
        Some(_) => finding.mend("docker run --ulimit nofile=65536:65536 …"),
        None => finding.mend(
            "prlimit --nofile=65536:65536 --pid $$   # as root; for all logins: nofile in /etc/security/limits.conf",
        ),
    }
}

fn huge_pages(facts: &SystemInfo) -> Finding {
    let huge = &facts.huge;
    let found = format!("{} of {} pages of 2 MiB free", huge.free, huge.total);
    if huge.free > 0 || ["always", "advise", "within_size", "force"].contains(&&*huge.shmem) {
        let shmem = match &*huge.shmem {
            "" => String::new(),
            when => format!("; shared memory gets them by itself: {when}"),
        };
        return Finding::good("huge pages", format!("{found}{shmem}"));
    }
    Finding::bad(Improvable, "huge pages", found)
        .because("large rings on huge pages need fewer address translations in the RNIC")
        .mend("sysctl vm.nr_hugepages=512")
}

fn cores(facts: &SystemInfo) -> Finding {
    match facts.cores {
        1 => Finding::bad(Improvable, "cores", "one core")
            .because("two ends that poll share the one core: let them sleep (mode Notify) or give them two cores")
            .mend(match facts.container {
                Some(_) => "docker run --cpuset-cpus=0-1 …",
                None => "taskset -cp $$   # the cores that this shell may use; taskset -cp 0-1 $$ gives it two",
            }),
        n => Finding::good("cores", format!("{n} that this process may use")),
    }
}

fn governor(facts: &SystemInfo) -> Option<Finding> {
    let slow: Vec<_> = facts
        .governors
        .iter()
        .filter(|name| *name != "performance")
        .collect();
    if facts.governors.is_empty() {
        return None;
    }
    if slow.is_empty() {
        return Some(Finding::good("governor", "performance"));
    }
    let finding = Finding::bad(Improvable, "governor", facts.governors.join(", "));
    let why = "cores slow down between messages: latencies are longer and vary";
    Some(
        finding
            .because(why)
            .mend("cpupower frequency-set -g performance"),
    )
}

#[cfg(test)]
mod tests;
