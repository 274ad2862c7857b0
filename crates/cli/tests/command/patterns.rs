//! `headworks patterns` and `headworks advise`: plans in threads, processes, ranks and virtual time; runs that are
//! interrupted or killed; and advice that is checked by running both designs.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;

use headworks::runtime::testing;
use rustix::process::Signal;

use crate::c_library::there_is;
use crate::test_env::{CommandProcess, TestEnv, until};

/// Writes a plan, and returns its path.
fn plan(env: &TestEnv, text: &str) -> String {
    let path = env.file("plan.toml");
    std::fs::write(&path, text).expect("a plan");
    path.to_str().expect("UTF-8").to_owned()
}

fn folder(env: &TestEnv) -> (PathBuf, String) {
    let path = env.file("results");
    let text = path.to_str().expect("UTF-8").to_owned();
    (path, text)
}

/// Runs the command, which must succeed, and returns its standard output.
fn printed(env: &TestEnv, args: &[&str]) -> String {
    let output = env.headworks(args).stdout(Stdio::piped()).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn fails(env: &TestEnv, args: &[&str], code: i32, says: &str) {
    let mut side = CommandProcess::start(&mut env.headworks(args));
    let complaint = side.expect_exit(code);
    assert!(complaint.contains(says), "{args:?}: {complaint}");
    assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
}

const SHORT: &str =
    "designs = [\"WriteWrite\", \"SendSend\"]\nresponses = [\"64\"]\nseconds = 0.02\nrepeats = 2\n";

#[test]
fn a_plan_runs_in_threads_and_in_processes_and_goes_on_where_it_ended() {
    let env = TestEnv::new();
    let plan = plan(&env, SHORT);
    for place in ["threads", "processes"] {
        let (path, out) = folder(&env);
        let args = ["patterns", "run", &plan, "--out", &out, "--place", place];
        let text = printed(&env, &args);
        assert_eq!(text.lines().count(), 3, "{text}");
        // A point that is there is not measured again, and one that is missing is.
        let kept = path.join("WriteWrite-64b-1to1-1.json");
        let before = std::fs::read(&kept).expect("a point");
        std::fs::remove_file(path.join("SendSend-64b-1to1-1.json")).expect("a point");
        let again = printed(&env, &args);
        assert_eq!(again.lines().count(), 3, "{again}");
        assert_eq!(std::fs::read(&kept).expect("a point"), before);
        assert_eq!(printed(&env, &["patterns", "show", &out]), again);
        std::fs::remove_dir_all(path).expect("the results");
    }
    env.is_clean();
}

#[test]
fn a_plan_runs_on_rdma_devices_and_their_counters_grow() {
    let none = || Err("HEADWORKS_IBV names none".to_owned());
    let Some([device, peer]) = testing::devices_or(none) else {
        return;
    };
    let env = TestEnv::new();
    let plan = plan(
        &env,
        "designs = [\"SendSend\"]\nresponses = [\"64\"]\nrequesters = [2]\nseconds = 0.2\nrepeats = 1\n",
    );
    let (_, out) = folder(&env);
    let args = ["patterns", "run", &plan, "--out", &out];
    let text = printed(
        &env,
        &[&args[..], &["--device", &device, "--peer-device", &peer]].concat(),
    );
    assert_eq!(text.lines().count(), 2, "{text}");
    let counters = printed(&env, &["patterns", "show", &out, "--counters"]);
    let grown = |line: &str| line.contains(" hw_counters/") || line.contains(" counters/");
    assert!(counters.lines().skip(1).any(grown), "{counters}");
}

#[test]
fn a_folder_that_cannot_take_results_or_lost_what_they_are_of_is_refused() {
    let env = TestEnv::new();
    let plan = plan(&env, SHORT);
    let place = ["--place", "threads"];
    fails(
        &env,
        &[&["patterns", "run", &plan, "--out", &plan][..], &place].concat(),
        2,
        "--out ",
    );
    let (path, out) = folder(&env);
    let args = [&["patterns", "run", &plan, "--out", &out][..], &place].concat();
    printed(&env, &args);
    let point = |design: &str| path.join(format!("{design}-64b-1to1-1.json"));
    std::fs::copy(point("WriteWrite"), point("SendSend")).expect("a point");
    let show = ["patterns", "show", &out];
    fails(
        &env,
        &show,
        2,
        "it has the results of WriteWrite, 64 B, 1:1",
    );
    std::fs::remove_file(point("SendSend")).expect("a point");
    let advise = [
        "advise",
        "--requesters",
        "1",
        "--response",
        "64",
        "--results",
        &out,
    ];
    let advice = printed(&env, &advise);
    assert!(advice.contains("Not measured yet: SendSend."), "{advice}");
    std::fs::write(path.join("run.json"), "{").expect("a file");
    fails(&env, &show, 2, "use another folder");
    std::fs::remove_file(path.join("run.json")).expect("a file");
    for args in [&show[..], &args, &advise] {
        fails(&env, args, 2, "has points and no run.json");
    }
    env.is_clean();
}

#[test]
fn dispatchers_run_in_threads_and_are_refused_in_processes() {
    let env = TestEnv::new();
    let plan = plan(
        &env,
        "designs = [\"SendWrite+dispatcher\"]\nresponses = [\"64\"]\nrequesters = [2]\nseconds = 0.02\nrepeats = 1\n",
    );
    let (path, out) = folder(&env);
    let args = ["patterns", "run", &plan, "--out", &out];
    fails(&env, &args, 2, "use --place threads");
    assert!(!path.exists());
    let text = printed(&env, &[&args[..], &["--place", "threads"]].concat());
    assert_eq!(text.lines().count(), 2, "{text}");
    env.is_clean();
}

#[test]
fn what_a_machine_does_not_count_is_not_available() {
    let env = TestEnv::new();
    let plan = plan(&env, SHORT);
    let (_, out) = folder(&env);
    let args = ["patterns", "run", &plan, "--out", &out];
    let simulated = printed(&env, &[&args[..], &["--device", "sim:cx5-100g"]].concat());
    let mut lines = simulated.lines();
    let columns = lines.next().expect("a header").split(',').count();
    for line in lines {
        assert_eq!(line.split(',').count(), columns, "{line}");
        assert!(line.ends_with(&",not available".repeat(4)), "{line}");
    }
    let counters = printed(&env, &["patterns", "show", &out, "--counters"]);
    assert!(
        counters.starts_with("not available: sim:cx5-100g"),
        "{counters}"
    );
    env.is_clean();
}

#[test]
fn advice_agrees_with_a_run_of_both_designs() {
    let env = TestEnv::new();
    // In virtual time a second run gives the same: the advice can be checked exactly.
    let plan = plan(
        &env,
        "designs = [\"WriteWrite\", \"SendSend\"]\nresponses = [\"4KiB\"]\nrequesters = [16]\nseconds = 0.0005\n",
    );
    let (_, out) = folder(&env);
    let text = printed(
        &env,
        &[
            "patterns",
            "run",
            &plan,
            "--out",
            &out,
            "--device",
            "sim:cx5-100g",
        ],
    );
    let rate = |design: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(design));
        let rate = line.expect("a line").split(',').nth(5);
        rate.expect("a rate").parse().expect("a number")
    };
    let (write, send) = (rate("WriteWrite"), rate("SendSend"));
    assert!(write > send, "{text}");
    let workload = [
        "advise",
        "--requesters",
        "16",
        "--response",
        "4KiB",
        "--results",
        &out,
    ];
    let advice = printed(&env, &workload);
    assert!(advice.starts_with("1. WriteWrite: "), "{advice}");
    let less = format!("{:.0} % less", (1.0 - send / write) * 100.0);
    assert!(
        advice.contains(&less) && advice.contains("Simulated: sim:cx5-100g"),
        "{advice}"
    );
    let other = [
        "advise",
        "--requesters",
        "17",
        "--response",
        "4KiB",
        "--results",
        &out,
    ];
    fails(&env, &other, 2, "requesters = 17; measured: 16");
    env.is_clean();
}

#[test]
fn advice_from_the_software_rnic_is_for_this_machine_only() {
    let env = TestEnv::new();
    let plan = plan(&env, SHORT);
    let (_, out) = folder(&env);
    printed(
        &env,
        &[
            "patterns", "run", &plan, "--out", &out, "--place", "threads",
        ],
    );
    let advice = printed(
        &env,
        &[
            "advise",
            "--requesters",
            "1",
            "--response",
            "64",
            "--results",
            &out,
        ],
    );
    assert!(advice.contains("this machine only"), "{advice}");
}

#[test]
fn bad_input_is_one_line_that_names_it() {
    let env = TestEnv::new();
    let (path, out) = folder(&env);
    let run = |text: &str, more: &[&str], says: &str| {
        let plan = plan(&env, text);
        fails(
            &env,
            &[&["patterns", "run", &plan, "--out", &out], more].concat(),
            2,
            says,
        );
    };
    run(
        &format!("{SHORT}colour = 1\n"),
        &[],
        "unknown field `colour`",
    );
    run(SHORT, &["--device", "nope"], "nope");
    run(
        SHORT,
        &["--set", "cpu.post=1"],
        "--set needs a simulated device",
    );
    run(
        &SHORT.replace("\"WriteWrite\", ", "").replace("64", "8GiB"),
        &["--place", "threads"],
        "responses = 8GiB: a multiple of 8 from 64 to 1GiB",
    );
    for many in ["1025", "9223372036854775807"] {
        let text = format!("{SHORT}requesters = [{many}]\nrequesters_per_thread = 1\n");
        run(
            &text,
            &["--place", "threads"],
            "threads, and 1024 are the most",
        );
    }
    run(
        SHORT,
        &["--device", "sim:cx5-100g", "--peer-device", "sim:cx6-100g"],
        "a simulated run has one device for both sides",
    );
    run(
        &SHORT.replace("64", "60"),
        &["--place", "threads"],
        "responses = 60: a multiple of 8",
    );
    fails(
        &env,
        &["patterns", "run", "/nonexistent/plan.toml"],
        2,
        "/nonexistent/plan.toml",
    );
    fails(
        &env,
        &["advise", "--requesters", "1", "--response", "4 kB"],
        2,
        "4 kB",
    );
    let nothing = [
        "advise",
        "--requesters",
        "1",
        "--response",
        "64",
        "--results",
        "/nonexistent",
    ];
    fails(&env, &nothing, 2, "has no results");
    // Results of another plan or device stay as they are.
    let text = plan(&env, SHORT);
    std::fs::remove_dir_all(&path).ok();
    printed(
        &env,
        &[
            "patterns", "run", &text, "--out", &out, "--place", "threads",
        ],
    );
    run(
        &SHORT.replace("64", "128"),
        &["--place", "threads"],
        "has results of a plan with responses = [\"64\"], not of a plan with responses = [\"128\"]",
    );
    run(
        SHORT,
        &["--place", "processes"],
        "has results of soft in threads",
    );
    assert_eq!(
        printed(&env, &["patterns", "show", &out]).lines().count(),
        3
    );
    // So do those of other devices.
    let peer = ["--place", "threads", "--peer-device", "soft:h9"];
    run(
        SHORT,
        &peer,
        "of soft in threads, not of soft to soft:h9 in threads",
    );
    // So do those of another version.
    let run_file = path.join("run.json");
    let json = std::fs::read_to_string(&run_file).expect("run.json");
    std::fs::write(&run_file, json.replace("\"version\": 1", "\"version\": 2")).expect("run.json");
    fails(&env, &["patterns", "show", &out], 2, "version 2");
}

/// A plan whose first point takes long.
const LONG: &str =
    "designs = [\"WriteWrite\"]\nresponses = [\"64\"]\nseconds = 60.0\nrepeats = 1\n";

/// Starts a long run in processes, and waits until its children run.
fn long_run(env: &TestEnv, out: &str) -> CommandProcess {
    let plan = plan(env, LONG);
    let mut command = env.headworks(&["patterns", "run", &plan, "--out", out]);
    let run = CommandProcess::start(&mut command);
    until("the run has children", || children(&run).len() == 2);
    run
}

/// Returns the ids of a process's children.
fn children(of: &CommandProcess) -> Vec<u32> {
    let own = of.pid().as_raw_nonzero().get();
    let task = format!("/proc/{own}/task");
    let tasks = std::fs::read_dir(task).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let ids = lists.flat_map(|list| {
        let ids = list.split_whitespace().filter_map(|id| id.parse().ok());
        ids.collect::<Vec<u32>>()
    });
    ids.collect()
}

#[test]
fn a_requester_or_responder_that_is_killed_ends_the_run_with_its_name() {
    for victim in 0..2 {
        let env = TestEnv::new();
        let (_, out) = folder(&env);
        let mut run = long_run(&env, &out);
        let pid = children(&run)[victim];
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(pid, Signal::KILL).expect("it is a child's child of ours");
        let complaint = run.expect_exit(1);
        let names = ["requester.0", "responder.0"];
        assert!(
            names.iter().any(|name| complaint.contains(name)),
            "{complaint}"
        );
        env.is_clean();
    }
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_leaves_nothing() {
    let env = TestEnv::new();
    let (_, out) = folder(&env);
    let mut run = long_run(&env, &out);
    // Meanwhile another run is refused.
    let other = plan(&env, LONG);
    fails(
        &env,
        &["patterns", "run", &other, "--out", &out],
        2,
        "in use by another run",
    );
    run.signal(Signal::INT);
    let complaint = run.expect_exit(130);
    assert!(
        complaint.contains("run the same command again"),
        "{complaint}"
    );
    env.is_clean();
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Starts rank `rank` of `ranks`, as Open MPI does.
fn rank(
    env: &TestEnv,
    plan: &str,
    out: &str,
    [rank, ranks]: [usize; 2],
    port: u16,
) -> CommandProcess {
    let rendezvous = format!("127.0.0.1:{port}");
    let args = [
        "patterns",
        "run",
        plan,
        "--out",
        out,
        "--rendezvous",
        &rendezvous,
        "--rank-timeout",
        "5",
    ];
    let mut command = env.headworks(&args);
    command
        .env("OMPI_COMM_WORLD_RANK", rank.to_string())
        .env("OMPI_COMM_WORLD_SIZE", ranks.to_string());
    CommandProcess::start(&mut command)
}

#[test]
fn ranks_that_are_too_many_too_few_or_missing_are_named() {
    let env = TestEnv::new();
    let plan = plan(&env, SHORT);
    let (_, out) = folder(&env);
    let alone = |ranks| rank(&env, &plan, &out, [0, ranks], free_port());
    assert!(alone(1).expect_exit(2).contains("needs 2 ranks"));
    assert!(alone(3).expect_exit(2).contains("start 2"));
    let missing = alone(2).expect_exit(1);
    assert!(
        missing.contains("rank 1 did not come within 5 s"),
        "{missing}"
    );
    let unreachable = rank(&env, &plan, &out, [1, 2], free_port()).expect_exit(1);
    assert!(
        unreachable.contains("rank 0 cannot be reached"),
        "{unreachable}"
    );
}

#[test]
fn a_rank_that_dies_ends_the_others() {
    let env = TestEnv::new();
    let plan = plan(&env, LONG);
    let (path, out) = folder(&env);
    let port = free_port();
    let mut first = rank(&env, &plan, &out, [0, 2], port);
    let mut second = rank(&env, &plan, &out, [1, 2], port);
    until("the results are begun", || path.join("run.json").exists());
    second.signal(Signal::KILL);
    second.wait();
    let complaint = first.expect_exit(1);
    assert!(complaint.contains("rank 1 is gone"), "{complaint}");
    env.is_clean_after_next_user();
}

#[test]
fn mpirun_starts_ranks_that_meet_at_rank_0() {
    if !there_is("mpirun") {
        return;
    }
    let env = TestEnv::new();
    let text = format!("{SHORT}requesters = [4]\nrequesters_per_thread = 2\n");
    let plan = plan(&env, &text);
    let (_, out) = folder(&env);
    let port = free_port().to_string();
    let rendezvous = format!("127.0.0.1:{port}");
    let mut mpirun = env.headworks(&[
        "patterns",
        "run",
        &plan,
        "--out",
        &out,
        "--rendezvous",
        &rendezvous,
    ]);
    let program = mpirun.get_program().to_owned();
    let args: Vec<_> = mpirun.get_args().map(ToOwned::to_owned).collect();
    let vars: Vec<_> = mpirun
        .get_envs()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
        .collect();
    mpirun = std::process::Command::new("mpirun");
    mpirun
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "3"])
        .arg(program)
        .args(args)
        .envs(vars)
        .stdout(Stdio::piped());
    let output = mpirun.output().expect("mpirun runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text.lines()
            .filter(|line| line.contains(",64,4,1,1,"))
            .count(),
        2,
        "{text}"
    );
    env.is_clean();
}
