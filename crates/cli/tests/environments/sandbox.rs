//! Environments, and processes in them.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process_group};

use super::LIMIT;
use super::roles::{self, Prepare, Role};

/// Namespaces, limits and user id of a process.
pub(crate) struct Environment {
    /// Its name in the table.
    pub(crate) title: &'static str,
    /// Programs that make it, each with its arguments, the outer one first; none for the plain environment.
    wrappers: &'static [&'static [&'static str]],
    /// Shell commands that run in the new namespaces before the program.
    setup: &'static str,
    /// Restrictions that the program puts on itself first.
    prepare: Prepare,
    /// The environment that it meets, which is of the same user unless the row is about other users.
    pub(crate) beside: &'static Self,
}

const PID: &[&str] = &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
const USER: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];
const CONTAINER: &[&str] = &[
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--mount",
    "--ipc",
    "--uts",
    "--net",
    "--cgroup",
];
const MOUNT: &[&str] = &["unshare", "--mount"];

const NOBODY: &[&str] = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];
/// The plain environment.
static PLAIN: Environment = Environment {
    title: "plain",
    wrappers: &[],
    setup: "",
    prepare: Prepare::Nothing,
    beside: &PLAIN,
};
/// The plain environment of another user.
static PLAIN_OF_NOBODY: Environment = Environment {
    title: "plain",
    wrappers: &[NOBODY],
    setup: "",
    prepare: Prepare::Nothing,
    beside: &PLAIN_OF_NOBODY,
};
/// Shell commands that put the process into a memory control group of 64 MiB, of version 1 or 2.
const MEMORY: &str = "group=/sys/fs/cgroup/memory/${HEADWORKS_PLACE##*/}; limit=memory.limit_in_bytes; \
     if ! [ -d /sys/fs/cgroup/memory ]; then group=/sys/fs/cgroup/${HEADWORKS_PLACE##*/}; limit=memory.max; fi; \
     mkdir -p $group && echo 67108864 > $group/$limit && echo 0 > $group/cgroup.procs";

/// All environments.
pub(crate) static ALL: &[Environment] = &[
    Environment {
        title: "plain",
        wrappers: &[],
        setup: "",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "PID namespace",
        wrappers: &[PID],
        setup: "",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "user and PID namespaces",
        wrappers: &[USER],
        setup: "",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "PID, mount, IPC, network, host name and cgroup namespaces",
        wrappers: &[CONTAINER],
        setup: "ip link set lo up",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "no `/proc`",
        wrappers: &[MOUNT],
        setup: "mount -t tmpfs none /proc",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "`/proc` with hidepid",
        wrappers: &[PID],
        setup: "mount -t proc -o hidepid=2 proc /proc",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "not dumpable",
        wrappers: &[],
        setup: "",
        prepare: Prepare::NotDumpable,
        beside: &PLAIN,
    },
    Environment {
        title: "seccomp: Docker's default",
        wrappers: &[],
        setup: "",
        prepare: Prepare::Forbid(&[roles::DOCKER]),
        beside: &PLAIN,
    },
    Environment {
        title: "seccomp: strict",
        wrappers: &[],
        setup: "",
        prepare: Prepare::Forbid(&[roles::DOCKER, roles::STRICT]),
        beside: &PLAIN,
    },
    Environment {
        title: "read-only root",
        wrappers: &[MOUNT],
        setup: "mount --bind \"$HEADWORKS_PLACE\" \"$HEADWORKS_PLACE\" && mount -o remount,bind,ro /",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "no `/dev/shm`",
        wrappers: &[MOUNT],
        setup: "mount -t tmpfs -o mode=0,ro none /dev/shm",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "64 MiB of `/dev/shm`",
        wrappers: &[MOUNT],
        setup: "mount -t tmpfs -o size=64m none /dev/shm",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "a program with file capabilities",
        wrappers: &[NOBODY],
        setup: "",
        prepare: Prepare::CopyProgram(0o755, Some("cap_net_bind_service+ep")),
        beside: &PLAIN_OF_NOBODY,
    },
    Environment {
        title: "a program that its user may not read",
        wrappers: &[NOBODY],
        setup: "",
        prepare: Prepare::CopyProgram(0o711, None),
        beside: &PLAIN_OF_NOBODY,
    },
    Environment {
        title: "64 MiB of memory (control group)",
        wrappers: &[],
        setup: MEMORY,
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "another user id",
        wrappers: &[NOBODY],
        setup: "",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
    Environment {
        title: "another user id, in user and PID namespaces",
        wrappers: &[NOBODY, USER],
        setup: "",
        prepare: Prepare::Nothing,
        beside: &PLAIN,
    },
];

impl Environment {
    /// Checks that it can be made here.
    pub(crate) fn check(&self) -> Result<(), String> {
        let place = Place::new();
        self.prepare.program(place.folder.path())?;
        let made = self.command(&place, "true").output();
        match made {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns a command that runs `program`, a shell command, here. The shell stays when the program has ended, so
    /// that a PID namespace lives as long as a forked child in it.
    fn command(&self, place: &Place, program: &str) -> Command {
        let mut words = self.wrappers.concat();
        words.push("sh");
        let mut shell = Command::new(words[0]);
        shell.args(&words[1..]);
        let setup = match self.setup {
            "" => "true",
            setup => setup,
        };
        shell
            .arg("-c")
            .arg(format!("{setup} || exit 9; {program}"))
            .env("HEADWORKS_PLACE", place.folder.path())
            .env("HEADWORKS_FABRIC", place.folder.path().join("fabric"))
            .env_remove("XDG_RUNTIME_DIR");
        shell
    }
}

/// A directory that all processes of a trial see, and the port of its daemons.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    port: u16,
}

impl Place {
    pub(crate) fn new() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let folder = tempfile::tempdir().expect("a directory");
        // Processes of other users make their own things in it.
        let anybody = Permissions::from_mode(0o1777);
        std::fs::set_permissions(folder.path(), anybody).expect("permissions");
        Self {
            folder,
            port: free.expect("a free port").port(),
        }
    }

    /// Starts a process.
    pub(crate) fn start(
        &self,
        environment: &Environment,
        role: Role,
    ) -> Result<SandboxedProcess, String> {
        let leash = roles::leash(self.folder.path(), role);
        mkfifoat(CWD, &leash, Mode::RUSR | Mode::WUSR).expect("a pipe");
        std::fs::set_permissions(&leash, Permissions::from_mode(0o666)).expect("permissions");
        let leash = File::options().read(true).write(true).open(&leash);
        let leash = leash.expect("the pipe");
        let program = environment.prepare.program(self.folder.path())?;
        let role_line = format!(
            "\"{}\" --exact --ignored --nocapture --test-threads=1 role_process; read -r _",
            program.display()
        );
        let mut process = environment
            .command(self, &role_line)
            .env(roles::ROLE, role.encode())
            .env(roles::PREPARE, environment.prepare.encode())
            .env(roles::PORT, self.port.to_string())
            .env(roles::COMMAND, env!("CARGO_BIN_EXE_headworks"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let (say, said) = channel();
        let lines = BufReader::new(process.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                // The first line follows the test's name.
                if let Some((_, line)) = line.split_once(roles::MARK)
                    && say.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Ok(SandboxedProcess {
            _leash: leash,
            input: process.stdin.take().expect("piped"),
            process,
            said,
            place: self.folder.path().display().to_string(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let name = self.folder.path().file_name().unwrap_or_default();
        for parent in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
            let group = Path::new(parent).join(name);
            let began = Instant::now();
            // A process that was killed stays in the group until the kernel has removed it.
            while group.exists() && std::fs::remove_dir(&group).is_err() && began.elapsed() < LIMIT
            {
                std::thread::yield_now();
            }
        }
    }
}

/// A process in an environment. It ends with its forked child when this is dropped.
pub(crate) struct SandboxedProcess {
    process: Child,
    input: ChildStdin,
    said: Receiver<String>,
    place: String,
    /// The end of a pipe whose closing ends the forked child.
    _leash: File,
}

impl SandboxedProcess {
    /// Waits until the process says `word`. The error is what it says instead.
    pub(crate) fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.said.recv_timeout(LIMIT) {
            Ok(said) if said == word => Ok(()),
            Ok(said) => Err(said.replace(&self.place, "…")),
            Err(_) => Err(format!("hangs: waited for {word:?}")),
        }
    }

    /// Has the process kill itself; its forked child lives on. Returns when.
    pub(crate) fn kill_role(&mut self) -> Instant {
        self.input.write_all(b"die\n").expect("it reads");
        Instant::now()
    }
}

impl Drop for SandboxedProcess {
    fn drop(&mut self) {
        // The shell, the role and its forked child. Those in a PID namespace end with its first process.
        let group = Pid::from_child(&self.process);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.process.wait();
    }
}
