//! Findings about the software device and its environment.

use std::path::Path;

use headworks::environment::{MemoryLimit, SystemCall};

use super::super::environment::{Environment, Namespaces, Proc, Yama};
use super::super::soft_device::Unusable;
use super::super::system_info::SystemInfo;
use super::Finding;
use super::OPEN_FILES_PIPE;
use super::Verdict::{Broken, Improvable};

/// Free bytes that the registry and the wake-ups of a few thousand processes take.
const REGISTRY_FREE_MIN: u64 = 16 << 20;
/// Bytes of memory that a few rings and a daemon take.
const MEMORY_MIN: u64 = 64 << 20;
/// User id that the kernel shows for all users that a user namespace does not map.
const UNMAPPED_USER: u32 = 65534;

/// Returns whether the software device works, if it was tried, and the reason if it does not.
pub(super) fn soft_device(facts: &SystemInfo) -> Option<Finding> {
    let check = "software device";
    let environment = &facts.environment;
    Some(match facts.soft.as_ref()? {
        Ok(()) => {
            let registry = environment.registry.display();
            Finding::good(check, format!("soft works; its registry is {registry}"))
        }
        Err(unusable) => {
            let (why, mend) = reason(facts, unusable);
            let broken = Finding::bad(Broken, check, &*unusable.said);
            broken.because(why).mend(mend)
        }
    })
}

/// Returns all other findings about the environment.
pub(super) fn advise(facts: &SystemInfo) -> Vec<Finding> {
    let environment = &facts.environment;
    let mut findings = vec![shared_memory(facts)];
    findings.extend(memory_limits(facts));
    findings.extend(environment.namespaces.as_ref().map(namespaces));
    findings.push(proc(environment));
    findings.extend(system_calls(facts));
    findings.push(private_memory(facts));
    findings
}

/// Returns why the software device does not work, and the command that helps.
fn reason(facts: &SystemInfo, unusable: &Unusable) -> (String, String) {
    let environment = &facts.environment;
    let files = facts.open_files.and_then(|limit| limit.soft);
    if let Some(files) = files.filter(|files| *files < OPEN_FILES_PIPE) {
        let why = format!(
            "{files} files may be open at most (ulimit -n), and a pipe needs {OPEN_FILES_PIPE}"
        );
        return (why, "ulimit -n 4096".to_owned());
    }
    if unusable.is_registry {
        return registry_reason(environment, facts.container);
    }
    if let Some(error) = refused(environment, SystemCall::MemfdCreate) {
        let why =
            format!("the kernel refuses memfd_create ({error}); all shared memory is made with it");
        return (why, allow(facts, SystemCall::MemfdCreate));
    }
    if let Some(limit) = environment.file_size.filter(|limit| *limit < MEMORY_MIN) {
        let why = format!(
            "a file of this process may have {} KiB at most (ulimit -f), and shared memory counts as a file",
            limit >> 10
        );
        return (why, "ulimit -f unlimited".to_owned());
    }
    match least(environment) {
        Some(limit) if limit.available() < MEMORY_MIN => {
            (memory_left(limit), more_memory(facts.container, limit))
        }
        _ => (
            "programs that open soft devices get this error".to_owned(),
            "headworks doctor -vv   # logs more".to_owned(),
        ),
    }
}

/// Returns why the registry cannot be used, and the command that helps.
fn registry_reason(environment: &Environment, container: Option<&str>) -> (String, String) {
    let where_all_see_it = match container {
        Some(_) => "; in containers, one on a volume of all of them",
        None => "",
    };
    let elsewhere = format!(
        "HEADWORKS_FABRIC=/path/to/a/directory headworks doctor   # one that user {} can make; all programs must name \
         the same{where_all_see_it}",
        environment.user
    );
    let Some(place) = &environment.place else {
        return (
            "no directory on the registry's path can be seen".to_owned(),
            elsewhere,
        );
    };
    let (path, mode) = (place.path.display(), place.mode);
    let is_registry = place.path == environment.registry;
    let open = is_registry && place.is_directory && place.owner == environment.user;
    if open && mode & 0o077 != 0 {
        let why =
            format!("other users may enter {path} (mode {mode:04o}): a registry is for one user");
        return (why, format!("chmod 700 {path}"));
    }
    let why = if !place.is_directory {
        format!("{path} is not a directory")
    } else if is_registry && place.owner != environment.user {
        format!(
            "{path} belongs to {}, and this process is of user {}: a registry is for one user",
            owner(environment, place.owner),
            environment.user
        )
    } else if place.file_system.is_some_and(|there| there.is_read_only) {
        format!("the file system of {path} is mounted read-only")
    } else if !place.may_write {
        format!(
            "user {} may not write to {path}, which belongs to {} and has mode {mode:04o}",
            environment.user,
            owner(environment, place.owner)
        )
    } else if place
        .file_system
        .is_some_and(|there| there.free == 0 && there.bytes > 0)
    {
        format!("the file system of {path} is full")
    } else if is_registry {
        format!("{path} is there, and cannot be used")
    } else {
        format!("no directory can be made in {path}")
    };
    (why, elsewhere)
}

fn owner(environment: &Environment, id: u32) -> String {
    let is_first = environment.namespaces.is_none_or(|own| own.is_first_user);
    match id {
        UNMAPPED_USER if !is_first => {
            format!("a user that this user namespace does not map (shown as {id})")
        }
        _ => format!("user {id}"),
    }
}

/// Room for the registry.
fn shared_memory(facts: &SystemInfo) -> Finding {
    let (check, environment) = ("shared memory", &facts.environment);
    let shm = Path::new("/dev/shm");
    let registry = environment.registry.display();
    let is_there = environment.registry.starts_with(shm);
    let place = environment.place.as_ref();
    let space = match is_there {
        true => environment.shm,
        false => place.and_then(|place| place.file_system),
    };
    // A file system of the kernel's own has no size.
    let space = space.filter(|space| space.bytes > 0);
    let mib = |bytes: u64| bytes >> 20;
    let found = match (is_there, environment.shm, space) {
        (true, Some(shm), _) => format!(
            "/dev/shm has {} MiB, {} free; only the registry is there",
            mib(shm.bytes),
            mib(shm.free)
        ),
        (true, None, _) => "/dev/shm is missing, and the registry would be there".to_owned(),
        (false, shm, space) => {
            let state = match shm {
                None => " (it is missing)",
                Some(shm) if shm.is_read_only => " (it is read-only)",
                Some(_) => "",
            };
            let free = space.map(|space| format!(", with {} MiB free", mib(space.free)));
            format!(
                "/dev/shm{state} is not used: the registry is {registry}{}",
                free.unwrap_or_default()
            )
        }
    };
    if space.is_none_or(|space| space.free >= REGISTRY_FREE_MIN) {
        return Finding::good(check, found);
    }
    let finding = Finding::bad(Improvable, check, found).because(format!(
        "the registry has small files of each process; {} MiB are enough for thousands",
        mib(REGISTRY_FREE_MIN)
    ));
    match (is_there, facts.container) {
        (true, Some(_)) => finding.mend("docker run --shm-size=64m …"),
        (true, None) => finding.mend("mount -o remount,size=256m /dev/shm"),
        (false, _) => finding.mend(format!(
            "df -h {registry}   # free space there, or name another directory in HEADWORKS_FABRIC"
        )),
    }
}

/// Returns the limit that leaves the least memory.
fn least(environment: &Environment) -> Option<&MemoryLimit> {
    let limits = environment.memory_limits.iter().flatten();
    limits.min_by_key(|limit| limit.available())
}

fn memory_left(limit: &MemoryLimit) -> String {
    format!(
        "{} of {} MiB are left by {}",
        limit.available() >> 20,
        limit.bytes >> 20,
        limit.file.display()
    )
}

fn more_memory(container: Option<&str>, limit: &MemoryLimit) -> String {
    // Twice what is used now, and what Headworks needs.
    let wanted = ((limit.held + MEMORY_MIN) * 2) >> 20;
    match container {
        Some(_) => format!("docker run --memory={wanted}m …"),
        None => format!("echo {wanted}M > {}", limit.file.display()),
    }
}

/// Memory that the control groups leave. If `/proc` does not show the groups, [`proc`] says so.
fn memory_limits(facts: &SystemInfo) -> Option<Finding> {
    let (check, environment) = ("memory limit", &facts.environment);
    if environment.memory_limits.is_none() && environment.proc == Proc::Missing {
        return None;
    }
    Some(match (&environment.memory_limits, least(environment)) {
        (None, _) => Finding::good(check, "not known: no control group is below /sys/fs/cgroup"),
        (Some(_), None) => Finding::good(check, "no control group limits it"),
        (Some(_), Some(limit)) if limit.available() >= MEMORY_MIN => {
            Finding::good(check, memory_left(limit))
        }
        (Some(_), Some(limit)) => Finding::bad(Improvable, check, memory_left(limit))
            .because(
                "each device, ring and application of a daemon takes some MiB, which count for the process that made \
                 them; the kernel kills a process that needs more than the limit",
            )
            .mend(more_memory(facts.container, limit)),
    })
}

fn namespaces(own: &Namespaces) -> Finding {
    let check = "namespaces";
    let users = match own.mapped_users {
        Some(1) => "; one user id is mapped".to_owned(),
        Some(count) => format!("; {count} user ids are mapped"),
        None => String::new(),
    };
    let found = match (own.is_first_pid, own.is_first_user) {
        (true, true) => {
            return Finding::good(check, "the machine's first PID and user namespaces");
        }
        (false, true) => "a PID namespace of its own".to_owned(),
        (true, false) => format!("a user namespace of its own{users}"),
        (false, false) => format!("a PID and a user namespace of its own{users}"),
    };
    let mut why = "processes of several containers meet if HEADWORKS_FABRIC names one directory in all of them, and \
                   their user id is the same"
        .to_owned();
    if !own.is_first_pid {
        why += "; private memory of processes in other PID namespaces is copied by its owner";
    }
    if !own.is_first_user {
        why += &format!("; user ids that are not mapped show as {UNMAPPED_USER}");
    }
    Finding::good(check, found).because(why)
}

/// State of `/proc`, and the facts that are unknown for it.
fn proc(environment: &Environment) -> Finding {
    let check = "/proc";
    let is_missing = environment.proc == Proc::Missing;
    let facts = [
        (environment.namespaces.is_none(), "the namespaces"),
        (
            environment.memory_limits.is_none() && is_missing,
            "the memory limits of control groups",
        ),
        (environment.seccomp.is_none(), "the mode of seccomp"),
        (environment.yama == Yama::Unknown, "Yama's ptrace_scope"),
    ];
    let unknown = facts.into_iter().filter(|(is_unknown, _)| *is_unknown);
    let unknown: Vec<_> = unknown.map(|(_, fact)| fact).collect();
    let state = match &environment.proc {
        Proc::Missing => "missing".to_owned(),
        Proc::Mounted { hiding } if hiding.is_empty() => "mounted".to_owned(),
        Proc::Mounted { hiding } => format!("mounted with {}", hiding.join(" and ")),
    };
    if unknown.is_empty() {
        let hint = match &environment.proc {
            Proc::Mounted { hiding } if !hiding.is_empty() => {
                ": no process needs the entries of others"
            }
            _ => "",
        };
        return Finding::good(check, format!("{state}{hint}"));
    }
    let found = format!("{state}; not known: {}", unknown.join(", "));
    let finding = Finding::bad(Improvable, check, found);
    if !is_missing {
        return finding.because("the kernel does not show it here; Headworks works without");
    }
    finding
        .because(
            "Headworks works without, but a registry's path may have 105 bytes at most, and free memory is not \
             checked in advance: the kernel kills a process that takes too much",
        )
        .mend("mount -t proc proc /proc")
}

fn refused(environment: &Environment, call: SystemCall) -> Option<&str> {
    let mut refused = environment.refused_calls.iter();
    refused.find_map(|(refused, error)| (*refused == call).then_some(&**error))
}

/// Command that allows a system call.
fn allow(facts: &SystemInfo, call: SystemCall) -> String {
    let is_filtered = facts.environment.seccomp.is_none_or(|how| how.is_filtered);
    let name = call.name();
    match facts.container {
        _ if !is_filtered => format!(
            "uname -r   # {name} needs Linux {}, or a security module refuses it",
            first_kernel(call)
        ),
        Some(_) => format!(
            "docker run --security-opt seccomp=PROFILE.json …   # a profile that allows {name}"
        ),
        None => format!("systemctl edit UNIT   # of a service: SystemCallFilter={name}"),
    }
}

/// First version of Linux that has a system call in the form that is used.
fn first_kernel(call: SystemCall) -> &'static str {
    match call {
        SystemCall::PidfdOpen => "5.3",
        SystemCall::Membarrier => "4.16",
        _ => "3.17",
    }
}

/// The sandbox, and what it costs. [`private_memory`] is about copies between processes.
fn system_calls(facts: &SystemInfo) -> Vec<Finding> {
    let (check, environment) = ("system calls", &facts.environment);
    let sandbox = match environment.seccomp {
        None => String::new(),
        Some(how) => {
            let filter = if how.is_filtered {
                "a seccomp filter"
            } else {
                "no seccomp filter"
            };
            let privileges = if how.no_new_privs {
                ", no_new_privs"
            } else {
                ""
            };
            format!("; {filter}{privileges}")
        }
    };
    let costs = [
        (
            SystemCall::MemfdCreate,
            Broken,
            "all shared memory is made with it: no software device opens",
        ),
        (
            SystemCall::PidfdOpen,
            Improvable,
            "others notice the death of this process within 250 ms, not at once",
        ),
        (
            SystemCall::Membarrier,
            Improvable,
            "each request executes a full memory fence, which slows small requests down",
        ),
    ];
    let findings = costs.into_iter().filter_map(|(call, verdict, why)| {
        let error = refused(environment, call)?;
        let found = format!("{} is refused: {error}{sandbox}", call.name());
        let finding = Finding::bad(verdict, check, found).because(why);
        Some(finding.mend(allow(facts, call)))
    });
    let findings: Vec<_> = findings.collect();
    match findings.is_empty() {
        false => findings,
        true => {
            let found = format!("memfd_create, pidfd_open and membarrier work{sandbox}");
            vec![Finding::good(check, found)]
        }
    }
}

/// Whether the kernel copies memory that the software device did not allocate. Otherwise its owner does.
fn private_memory(facts: &SystemInfo) -> Finding {
    let (check, environment) = ("private memory", &facts.environment);
    let slow = |found: String| {
        Finding::bad(Improvable, check, found).because(
            "memory that the software device did not allocate is copied by its owner instead of by the kernel, which is \
             slower",
        )
    };
    let call = SystemCall::ProcessVmWritev;
    if let Some(error) = refused(environment, call) {
        let finding = slow(format!("{} is refused: {error}", call.name()));
        return finding.mend(allow(facts, call));
    }
    if environment.is_dumpable == Some(false) {
        let finding =
            slow("this process is not dumpable: others may not copy its memory".to_owned());
        return finding
            .mend("ls -l $(which headworks); getcap $(which headworks)   # readable, without capabilities");
    }
    match environment.yama {
        Yama::Scope(scope) if scope > 0 => {
            let finding = slow(format!("yama.ptrace_scope is {scope}"));
            finding.mend("sysctl kernel.yama.ptrace_scope=0")
        }
        Yama::Unknown => Finding::good(check, "peers may copy it, unless Yama restricts them"),
        _ => Finding::good(check, "peers may copy it"),
    }
}

#[cfg(test)]
mod tests;
