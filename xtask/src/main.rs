//! `cargo xtask ci [STEP…]` runs the checks that a change must pass. `cargo xtask fuzz` searches for inputs.
//! `cargo xtask rxe` runs a program on real verbs in a virtual machine. `cargo xtask install-c` installs the
//! C library. `cargo xtask verbs-programs` runs programs of others on the drop-in libibverbs.

use std::process::ExitCode;

use xtask::{ci, fuzz, install, rxe, verbs_programs};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.split_first() {
        Some((command, steps)) if command == "ci" => ci::run(steps),
        Some((help, [])) if asks_for_help(help) => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Some((command, [help])) if command == "fuzz" && asks_for_help(help) => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Some((command, args)) if command == "fuzz" => fuzz::run(args),
        Some((command, [help])) if command == "install-c" && asks_for_help(help) => {
            print!("{}", install::USAGE);
            return ExitCode::SUCCESS;
        }
        Some((command, args)) if command == "install-c" => install::run(args),
        Some((command, [help])) if command == "rxe" && asks_for_help(help) => {
            print!("{}", rxe::USAGE);
            return ExitCode::SUCCESS;
        }
        Some((command, args)) if command == "rxe" => match rxe::run(args) {
            Ok(status) => return ExitCode::from(status),
            Err(message) => Err(message),
        },
        Some((command, [help])) if command == "verbs-programs" && asks_for_help(help) => {
            print!("{}", verbs_programs::USAGE);
            return ExitCode::SUCCESS;
        }
        Some((command, args)) if command == "verbs-programs" => verbs_programs::run(args),
        _ => Err(usage()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::from(2)
        }
    }
}

fn asks_for_help(arg: &str) -> bool {
    ["help", "--help", "-h"].contains(&arg)
}

fn usage() -> String {
    let mut text = "usage: cargo xtask ci [STEP…]\n       \
                    cargo xtask fuzz TARGET [--seconds N] [--seed N] [--into FOLDER]\n       \
                    cargo xtask rxe [--seconds N] PROGRAM [ARG…]\n       \
                    cargo xtask verbs-programs [--check | --write] [--rxe] [PROGRAM…]\n       \
                    cargo xtask install-c --prefix DIR [--debug]\n\nsteps:\n"
        .to_owned();
    for step in ci::STEPS {
        text.push_str(&format!("  {:<20} {}\n", step.name, step.about));
    }
    text
}
