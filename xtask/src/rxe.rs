//! `cargo xtask rxe`: runs a program on real verbs without an RDMA NIC.
//!
//! Linux has a software RNIC, rxe. Few machines that run tests have its module or allow users to load it. So
//! this command boots Debian's kernel in a small emulated virtual machine, which needs no hardware
//! virtualisation and no root. The machine sees this host's files through an overlay that keeps its writes to
//! itself. It runs one program between two rxe devices that stand for two hosts.
//!
//! | module | contents |
//! |---|---|
//! | `kernel` | the kernel's package, and the modules to load, in order |
//! | `cpio` | the archive that the kernel unpacks as its first file system |
//! | `init.sh` | the script that runs in the machine before the program |
//!
//! Only `target/rxe/` is left behind. The job travels in the machine's firmware configuration. The exit
//! status comes back through a second serial line, into a file. If no status arrives there, the machine has
//! failed, whatever the exit status of its emulator.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::root;

mod cpio;
mod kernel;

/// Help text of `cargo xtask rxe`.
pub const USAGE: &str = "usage: cargo xtask rxe [--seconds N] [--memory MiB] [--cores N] [--] PROGRAM [ARG…]

Runs PROGRAM in a virtual machine with two software RDMA devices of the kernel:
  rxe0  192.0.2.1     rxe1  192.0.2.2
The machine sees the files of this host; what it writes to them is discarded. The exit status is that of PROGRAM.
Variables that begin with HEADWORKS_, PROPTEST_, CARGO_ or RUST_ are passed to PROGRAM.
PROGRAM's standard error comes out on standard output, because both use one serial line.

  --seconds N   stop the machine after N seconds (default 600)
  --memory MiB  memory of the machine (default 2048)
  --cores N     cores of the machine (default 2)

Needs Debian's qemu-system-x86, busybox-static, kmod, iproute2 and procps. A PROGRAM that uses verbs also
needs ibverbs-providers and librdmacm1. The kernel's package is downloaded once and unpacked to target/rxe/.
";

/// Prefixes of the environment variables that are passed to the program.
const PREFIXES: [&str; 4] = ["HEADWORKS_", "PROPTEST_", "CARGO_", "RUST_"];

/// Limits of the machine, and the program that it runs.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    seconds: u32,
    memory: u32,
    cores: u32,
    program: Vec<String>,
}

impl Job {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut job = Self {
            seconds: 600,
            memory: 2048,
            cores: 2,
            program: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (field, legal) = match arg.as_str() {
                "--seconds" => (&mut job.seconds, 10..=86_400),
                "--memory" => (&mut job.memory, 512..=65_536),
                "--cores" => (&mut job.cores, 1..=16),
                "--" => {
                    job.program = args.cloned().collect();
                    break;
                }
                option if option.starts_with('-') => {
                    return Err(format!("no option {option}\n{USAGE}"));
                }
                program => {
                    job.program = vec![program.to_owned()];
                    job.program.extend(args.cloned());
                    break;
                }
            };
            let value = args.next().and_then(|value| value.parse().ok());
            *field = value.filter(|value| legal.contains(value)).ok_or_else(|| {
                let (least, most) = (legal.start(), legal.end());
                format!("{arg} takes a number from {least} to {most}")
            })?;
        }
        match job.program.is_empty() {
            true => Err(USAGE.to_owned()),
            false => Ok(job),
        }
    }

    /// The shell script that runs the program in the machine.
    fn script(&self, directory: &str, variables: &[(String, String)]) -> String {
        let mut script = format!("cd {}\n", quoted(directory));
        for (name, value) in variables {
            script.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        script.push_str("exec");
        for word in &self.program {
            script.push(' ');
            script.push_str(&quoted(word));
        }
        script.push('\n');
        script
    }
}

/// Quotes `word` as one word of a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs the command with `args` and returns the exit status of the program.
pub fn run(args: &[String]) -> Result<u8, String> {
    let directory = env::current_dir().map_err(|error| format!("this directory: {error}"))?;
    let travels = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let variables: Vec<_> = env::vars().filter(|(name, _)| travels(name)).collect();
    let job = Job::parse(args)?;
    check_program(&job.program[0])?;
    boot_machine(&job, &directory, &variables, |command| {
        let status = command.status();
        status.map_err(|error| format!("timeout: {error}"))
    })
}

/// Checks that the program is executable. The machine has the same files, so what cannot run here cannot run
/// there. The machine's shell looks up names without a slash.
fn check_program(program: &str) -> Result<(), String> {
    if !program.contains('/') {
        return Ok(());
    }
    let found = fs::metadata(program).map_err(|error| format!("{program}: {error}"))?;
    match found.is_file() && found.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(format!("{program}: not an executable file")),
    }
}

/// Runs a script in the machine for at most `seconds`, with these environment variables. `run` executes the
/// command that is the machine. Returns the exit status of the script.
pub(crate) fn run_script(
    script: &str,
    seconds: u32,
    variables: &[(String, String)],
    run: impl FnOnce(&mut Command) -> Result<ExitStatus, String>,
) -> Result<u8, String> {
    let words = ["--seconds", &seconds.to_string(), "sh", "-c", script].map(str::to_owned);
    boot_machine(&Job::parse(&words)?, &root(), variables, run)
}

fn boot_machine(
    job: &Job,
    directory: &Path,
    variables: &[(String, String)],
    run: impl FnOnce(&mut Command) -> Result<ExitStatus, String>,
) -> Result<u8, String> {
    let (folder, kernel) = prepare_machine()?;
    let disk = disk(&folder, &kernel)?;
    let script = job.script(&directory.display().to_string(), variables);
    let status = folder.join(format!("status.{}", std::process::id()));
    let ended = run(qemu_command(job, &kernel, &disk, &status, &script).stdin(Stdio::null()));
    let said = fs::read_to_string(&status).unwrap_or_default();
    let _ = fs::remove_file(&status);
    let ended = ended?;
    match (said.trim().parse(), ended.code()) {
        (Ok(status), _) => Ok(status),
        // `timeout` exits with 124 if the command took too long, and with 137 if it had to kill the command.
        (Err(_), Some(124 | 137)) => {
            Err(format!("the machine was stopped after {} s", job.seconds))
        }
        (Err(_), _) => Err(format!("the machine ended before the program: {ended}")),
    }
}

/// Checks that a machine can run here, and downloads its kernel if necessary. The error says what is missing.
pub fn missing_programs() -> Result<(), String> {
    let providers = Path::new("/etc/libibverbs.d/rxe.driver");
    if !providers.exists() {
        return Err("missing: apt-get install ibverbs-providers librdmacm1 (Debian)".to_owned());
    }
    prepare_machine().map(drop)
}

/// Checks the programs and prepares the kernel. Returns the folder that is kept between runs, and the kernel.
fn prepare_machine() -> Result<(PathBuf, kernel::Kernel), String> {
    programs()?;
    let folder = folder();
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let kernel = kernel::Kernel::of(&folder)?;
    Ok((folder, kernel))
}

/// Checks the programs needed here and in the machine, which has the same files. The error lists all that are
/// missing.
fn programs() -> Result<(), String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(
            "the virtual machine is x86-64 and runs this host's programs: use an x86-64 host"
                .to_owned(),
        );
    }
    let needed = [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("modprobe", "kmod"),
        ("depmod", "kmod"),
        ("ip", "iproute2"),
        ("rdma", "iproute2"),
        ("sysctl", "procps"),
        ("dpkg", "dpkg"),
        ("apt-get", "apt"),
        ("timeout", "coreutils"),
        ("setpriv", "util-linux"),
    ];
    let mut packages: Vec<_> = needed
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    match packages.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "missing: apt-get install {} (Debian)",
            packages.join(" ")
        )),
    }
}

/// Finds a program in `PATH`, or in the folders that usually only root's `PATH` has.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let candidates = folders.into_iter().map(|folder| folder.join(program));
    candidates.into_iter().find(|path| path.is_file())
}

/// The folder that is kept between runs.
fn folder() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target).join("rxe")
}

/// Makes the initial file system. It is generated for every run, and written only if it differs.
fn disk(folder: &Path, kernel: &kernel::Kernel) -> Result<PathBuf, String> {
    let mut archive = cpio::Archive::default();
    for name in ["bin", "modules", "proc", "sys", "dev", "host", "top", "new"] {
        archive.folder(name);
    }
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let busybox = find("busybox").ok_or("no busybox")?;
    archive.program("bin/busybox", &read(&busybox)?);
    archive.program("init", include_bytes!("rxe/init.sh"));
    for (index, module) in kernel.modules.iter().enumerate() {
        // The names sort in the order in which the modules must be loaded.
        archive.file(&format!("modules/{index:02}"), &read(module)?);
    }
    let path = folder.join(format!("{}.cpio", kernel.version));
    let bytes = archive.finish();
    if fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    // Replaced by one rename, because another run may be reading the old file.
    let new = folder.join(format!("{}.cpio.{}", kernel.version, std::process::id()));
    let made = fs::write(&new, bytes).and_then(|()| fs::rename(&new, &path));
    made.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The machine, as a command. The machine ends when this process ends or its time is up.
fn qemu_command(
    job: &Job,
    kernel: &kernel::Kernel,
    disk: &Path,
    status: &Path,
    script: &str,
) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM", "timeout", "--foreground"])
        .args(["--kill-after=10", &job.seconds.to_string()])
        .arg("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi"])
        // Without the fast string instructions, the machine's kernel copies words in order. Here rxe
        // therefore keeps promises that it does not declare.
        .args(["-cpu", "max,-erms,-fsrm"])
        .args([
            "-m",
            &job.memory.to_string(),
            "-smp",
            &job.cores.to_string(),
        ])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio", "-serial"])
        .arg(format!(
            "file:{}",
            status.display().to_string().replace(',', ",,")
        ))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(disk)
        .args(["-append", "console=ttyS0 quiet loglevel=3 panic=-1"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .args(["-device", "virtio-rng-pci"])
        .arg("-virtfs")
        .arg("local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
        .arg("-fw_cfg")
        .arg(format!(
            "name=opt/headworks/job,string={}",
            script.replace(',', ",,")
        ));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexecutable_program_is_rejected_before_startup() {
        for good in ["sh", "/bin/sh"] {
            assert_eq!(check_program(good), Ok(()));
        }
        for bad in ["/nonexistent/program", "/etc/passwd", "/tmp"] {
            let error = check_program(bad).unwrap_err();
            assert!(error.starts_with(bad), "{error}");
        }
    }

    fn parse(args: &[&str]) -> Result<Job, String> {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        Job::parse(&args)
    }

    #[test]
    fn the_help_says_where_standard_error_goes_as_long_as_there_is_one_line_for_both() {
        let init = include_str!("rxe/init.sh");
        let is_apart = init.contains("job.sh </dev/null 2>");
        assert_ne!(
            USAGE.contains("standard error comes out on standard output"),
            is_apart
        );
    }

    #[test]
    fn arguments_after_the_program_belong_to_it() {
        let job = parse(&["--seconds", "30", "--", "/bin/test", "--seconds", "x"]).unwrap();
        assert_eq!(job.seconds, 30);
        assert_eq!(job.program, ["/bin/test", "--seconds", "x"]);
        assert_eq!(
            parse(&["ls", "--cores"]).unwrap().program,
            ["ls", "--cores"]
        );
    }

    #[test]
    fn a_wrong_option_is_named_with_the_legal_values() {
        assert!(
            parse(&["--cores", "0", "ls"])
                .unwrap_err()
                .contains("1 to 16")
        );
        assert!(parse(&["--cores"]).unwrap_err().contains("--cores"));
        assert!(parse(&["--frob", "ls"]).unwrap_err().contains("--frob"));
        assert!(parse(&["--seconds", "30"]).unwrap_err().contains("PROGRAM"));
    }

    #[test]
    fn any_word_survives_the_shell() {
        let job = parse(&["echo", "it's", "$HOME `x` \"q\"", "a,b"]).unwrap();
        let variables = [("HEADWORKS_SEED".to_owned(), "1 2".to_owned())];
        let script = job
            .script("/", &variables)
            .replace("exec", "env echo \"$HEADWORKS_SEED\";");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, "1 2\nit's $HOME `x` \"q\" a,b\n");
    }
}
