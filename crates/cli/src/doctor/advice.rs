//! Derives the findings from the facts.

mod rdma_device;

use headworks::devices::{INSTALL_LIBIBVERBS, INSTALL_LIBRDMACM};

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
/// Files that a few hundred rings hold open.
const OPEN_FILES_MIN: u64 = 4096;
/// Bytes that the registry and the wake-ups of a few thousand processes take.
const SHM_BYTES_MIN: u64 = 16 << 20;

/// Returns all findings, in the order in which to fix them.
pub(super) fn advise(facts: &SystemInfo) -> Vec<Finding> {
    let mut findings = match facts.devices.is_empty() {
        true => no_device(facts),
        false => vec![library(facts)],
    };
    for nic in &facts.devices {
        findings.extend(rdma_device::advise(facts, nic));
    }
    findings.extend(manager(facts));
    findings.push(memlock(facts));
    findings.push(open_files(facts));
    if !facts.is_single_device {
        findings.extend(shm(facts));
    }
    findings.push(huge_pages(facts));
    findings.push(cores(facts));
    findings.extend(governor(facts));
    if !facts.is_single_device {
        findings.extend(private_memory(facts));
    }
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

fn memlock(facts: &SystemInfo) -> Finding {
    let Some(bytes) = facts.memlock else {
        return Finding::good("memlock", "unlimited");
    };
    if facts.may_lock_all_memory {
        return Finding::good("memlock", "unlimited for this user");
    }
    let found = format!("{} KiB may be locked", bytes >> 10);
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
    match facts.open_files {
        Some(most) if most < OPEN_FILES_MIN => {
            Finding::bad(Improvable, "open files", format!("{most} at most"))
                .because("each segment, channel and connection is an open file: hundreds of rings exceed the limit")
                .mend("ulimit -n 65536")
        }
        Some(most) => Finding::good("open files", format!("{most} at most")),
        None => Finding::good("open files", "unlimited"),
    }
}

fn shm(facts: &SystemInfo) -> Option<Finding> {
    let bytes = facts.shm_bytes?;
    let found = format!("/dev/shm has {} MiB", bytes >> 20);
    if bytes >= SHM_BYTES_MIN {
        return Some(Finding::good("shared memory", found));
    }
    let finding = Finding::bad(Improvable, "shared memory", found)
        .because("the registry of the software device is there, unless HEADWORKS_FABRIC names another directory");
    Some(match facts.container {
        Some(_) => finding.mend("docker run --shm-size=256m …"),
        None => finding.mend("mount -o remount,size=256m /dev/shm"),
    })
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

fn private_memory(facts: &SystemInfo) -> Option<Finding> {
    let scope = facts.ptrace_scope?;
    if scope == 0 {
        return Some(Finding::good("private memory", "peers may copy it"));
    }
    let found = format!("yama.ptrace_scope is {scope}");
    let finding = Finding::bad(Improvable, "private memory", found).because(
        "memory that the software device did not allocate is copied by its owner instead of directly, which is slower",
    );
    Some(finding.mend("sysctl kernel.yama.ptrace_scope=0"))
}

#[cfg(test)]
mod tests;
