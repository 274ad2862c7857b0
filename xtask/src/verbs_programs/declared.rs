//! The programs that run on the drop-in library, and their options, as a table.

/// A program with the sets of options that it is run with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// First column of the table. Unique.
    pub(super) title: &'static str,
    /// Name of the executable.
    pub(super) command: &'static str,
    /// Debian's package.
    pub(super) package: &'static str,
    /// Environment variables of both sides.
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// Value of `headworks verbs --link`.
    pub(super) link: &'static str,
    /// How one set of options is run.
    pub(super) how: How,
    /// What the output has if the program worked.
    pub(super) shows: Shows,
    pub(super) groups: &'static [Group],
}

/// How one set of options is run. In the texts, `{port}` stands for a free TCP port and `{options}` for the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// One process with the options.
    Alone,
    /// A server, and a client that starts once the server listens. Both must succeed.
    Pair {
        server: &'static str,
        client: &'static str,
    },
    /// The same, with a server that serves until it is killed.
    Served {
        server: &'static str,
        client: &'static str,
    },
    /// The tests of pyverbs. Each of them counts as one set of options.
    PythonTests,
}

/// What the output of a program has if it worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    Text(&'static str),
    /// Results of qperf, none of which is zero: see [`super::outputs::are_results`].
    Results,
    /// A line of measurements: see [`super::outputs::is_report`].
    Report,
}

/// Sets of options that have words in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Words that each set begins with.
    pub(super) always: &'static str,
    /// The sets, one text each.
    pub(super) options: &'static [&'static str],
    /// The program has no end. It works if it prints two reports. Then it is killed.
    pub(super) is_endless: bool,
}

const fn ending(always: &'static str, options: &'static [&'static str]) -> Group {
    Group {
        always,
        options,
        is_endless: false,
    }
}

/// The programs of rdma-core and perftest take the port after `-p`, and the client the server's address last.
const LIKE_PINGPONG: How = How::Pair {
    server: "{options} -p {port}",
    client: "{options} -p {port} localhost",
};

const fn alone(command: &'static str, shows: &'static str, groups: &'static [Group]) -> Program {
    Program {
        title: command,
        command,
        package: "ibverbs-utils",
        environment: &[],
        link: "ethernet",
        how: How::Alone,
        shows: Shows::Text(shows),
        groups,
    }
}

const fn pingpong(command: &'static str, groups: &'static [Group]) -> Program {
    Program {
        how: LIKE_PINGPONG,
        ..alone(command, "Mbit/sec", groups)
    }
}

const fn perftest(command: &'static str, groups: &'static [Group]) -> Program {
    Program {
        package: "perftest",
        how: LIKE_PINGPONG,
        shows: Shows::Report,
        ..alone(command, "", groups)
    }
}

const fn ucx(
    title: &'static str,
    environment: &'static [(&'static str, &'static str)],
    groups: &'static [Group],
) -> Program {
    Program {
        title,
        package: "ucx-utils",
        environment,
        how: How::Pair {
            server: "-p {port}",
            client: "localhost -p {port} {options}",
        },
        ..alone("ucx_perftest", "Final:", groups)
    }
}

/// Iterations of a perftest tool, and the GID with the IPv4 address.
const FEW: &str = "-x 1 -n 20";
/// A run of one second. perftest ignores the number of iterations then.
const TIMED: Group = ending("-x 1", &["-D 1"]);
/// A run without end, with one report each second.
const ENDLESS: Group = Group {
    always: "-x 1 -D 1",
    options: &["--run_infinitely"],
    is_endless: true,
};

const UCX_OPERATIONS: &[Group] = &[
    ending(
        "-n 1000 -w 100 -s 1024",
        &[
            "-t tag_lat",
            "-t tag_bw",
            "-t tag_sync_lat",
            "-t stream_lat",
            "-t ucp_am_lat",
            "-t ucp_put_bw",
            "-t ucp_put_lat",
            "-t ucp_get",
        ],
    ),
    ending("-n 1000 -w 100 -s 8", &["-t ucp_fadd", "-t ucp_cswap"]),
    ending("-n 50 -w 10 -s 1000000", &["-t tag_bw", "-t ucp_put_bw"]),
];

/// All programs, in the order of the table.
pub(super) const PROGRAMS: &[Program] = &[
    Program {
        package: "python3-pyverbs",
        how: How::PythonTests,
        ..alone(PYTHON_TESTS, "", &[])
    },
    alone("ibv_devices", "headworks_0", &[ending("", &[""])]),
    alone(
        "ibv_devinfo",
        "headworks_0",
        &[ending("", &["", "-v", "-l", "-d headworks_0 -i 1"])],
    ),
    pingpong(
        "ibv_rc_pingpong",
        &[ending(
            "",
            &[
                "-g 0",
                "-g 1 -c",
                "-g 0 -e -c",
                "-g 0 -t",
                "-g 0 -N -c",
                "-g 0 -m 4096 -r 64",
                "-g 0 -s 1000000 -n 20 -c",
                "-g 0 -o -c",
                "-g 0 -j",
            ],
        )],
    ),
    pingpong(
        "ibv_uc_pingpong",
        &[ending(
            "",
            &["-g 0", "-g 1 -c", "-g 1 -e -c", "-g 0 -s 100000 -n 50"],
        )],
    ),
    pingpong(
        "ibv_ud_pingpong",
        &[ending(
            "",
            &["-g 0", "-g 0 -c", "-g 1", "-g 1 -e", "-g 1 -s 1024"],
        )],
    ),
    pingpong(
        "ibv_srq_pingpong",
        &[ending(
            "",
            &[
                "-g 0",
                "-g 0 -c",
                "-g 1 -e",
                "-g 1 -e -q 32",
                "-g 0 -q 4 -c",
            ],
        )],
    ),
    perftest(
        "ib_write_bw",
        &[
            ending(
                FEW,
                &[
                    "",
                    "-a",
                    "-q 4",
                    "-b",
                    "-b -q 4",
                    "-a -b",
                    "-c UC",
                    "-c UC -a",
                    "-I 64 -s 32",
                    "-l 5",
                    "-Q 1",
                    "--mr_per_qp -q 4",
                    "--report_gbits",
                    "-m 1024",
                    "--noPeak",
                    "--use_old_post_send",
                ],
            ),
            TIMED,
            ENDLESS,
        ],
    ),
    perftest(
        "ib_write_lat",
        &[
            ending(
                FEW,
                &[
                    "",
                    "-a",
                    "-c UC",
                    "-c UC -a",
                    "-I 64 -s 32",
                    "-H",
                    "-U",
                    "-m 1024",
                ],
            ),
            TIMED,
        ],
    ),
    perftest(
        "ib_read_bw",
        &[
            ending(
                FEW,
                &[
                    "",
                    "-a",
                    "-q 4",
                    "-b",
                    "-b -q 4",
                    "-e",
                    "-l 5",
                    "-o 4",
                    "--report_gbits",
                ],
            ),
            TIMED,
            ENDLESS,
        ],
    ),
    perftest(
        "ib_read_lat",
        &[ending(FEW, &["", "-a", "-e", "-o 1", "-H"]), TIMED],
    ),
    perftest(
        "ib_send_bw",
        &[
            ending(
                FEW,
                &[
                    "",
                    "-a",
                    "-q 4",
                    "-b",
                    "-b -q 4",
                    "-e",
                    "-c UC",
                    "-c UC -e",
                    "-c UD",
                    "-c UD -a",
                    "-c UD -e",
                    "-c UD -b",
                    "--use-srq",
                    "--use-srq -q 4",
                    "-c UD --use-srq",
                    "-I 64 -s 32",
                    "-l 5",
                    "-r 256",
                ],
            ),
            TIMED,
            ENDLESS,
        ],
    ),
    perftest(
        "ib_send_lat",
        &[
            ending(
                FEW,
                &[
                    "",
                    "-a",
                    "-e",
                    "-c UC",
                    "-c UC -e",
                    "-c UD",
                    "-c UD -a",
                    "-c UD -e",
                    "--use-srq",
                    "--use-srq -e",
                    "-I 64 -s 32",
                ],
            ),
            TIMED,
        ],
    ),
    perftest(
        "ib_atomic_bw",
        &[
            ending(
                FEW,
                &[
                    "",
                    "-A CMP_AND_SWAP",
                    "-A FETCH_AND_ADD",
                    "-q 4",
                    "-b",
                    "-b -q 4",
                    "-e",
                    "-l 5",
                ],
            ),
            TIMED,
            ENDLESS,
        ],
    ),
    perftest(
        "ib_atomic_lat",
        &[
            ending(FEW, &["", "-A CMP_AND_SWAP", "-A FETCH_AND_ADD", "-e"]),
            TIMED,
        ],
    ),
    Program {
        title: "qperf",
        package: "qperf",
        link: "infiniband",
        how: How::Served {
            server: "-lp {port}",
            client: "localhost -lp {port} {options}",
        },
        shows: Shows::Results,
        ..alone(
            "qperf",
            "",
            &[ending(
                "-t 1",
                &[
                    "rc_bw",
                    "rc_bi_bw",
                    "rc_lat",
                    "uc_bw",
                    "uc_bi_bw",
                    "uc_lat",
                    "ud_bw",
                    "ud_bi_bw",
                    "ud_lat",
                    "rc_rdma_read_bw",
                    "rc_rdma_read_lat",
                    "rc_rdma_write_bw",
                    "rc_rdma_write_lat",
                    "rc_rdma_write_poll_lat",
                    "uc_rdma_write_bw",
                    "uc_rdma_write_lat",
                    "uc_rdma_write_poll_lat",
                    "rc_compare_swap_mr",
                    "rc_fetch_add_mr",
                    "ver_rc_compare_swap",
                    "ver_rc_fetch_add",
                ],
            )],
        )
    },
    ucx(
        "ucx_perftest, UCX_TLS=rc_verbs,ud_verbs,self",
        &[
            ("UCX_TLS", "rc_verbs,ud_verbs,self"),
            ("UCX_NET_DEVICES", "headworks_0:1"),
        ],
        UCX_OPERATIONS,
    ),
    ucx(
        "ucx_perftest, UCX_TLS=ud_verbs,self",
        &[
            ("UCX_TLS", "ud_verbs,self"),
            ("UCX_NET_DEVICES", "headworks_0:1"),
        ],
        UCX_OPERATIONS,
    ),
    ucx(
        "ucx_perftest of one transport",
        &[],
        &[
            ending(
                "-n 1000 -w 100 -d headworks_0:1 -x rc_verbs",
                &[
                    "-t am_lat",
                    "-t am_bw",
                    "-t put_lat",
                    "-t put_bw",
                    "-t get -D zcopy -s 1024",
                    "-t am_lat -D bcopy -s 1024",
                    "-t put_bw -D zcopy -s 1024",
                    "-t fadd",
                    "-t cswap",
                    "-t add_lat",
                ],
            ),
            ending(
                "-n 1000 -w 100 -d headworks_0:1 -x ud_verbs",
                &["-t am_lat", "-t am_bw", "-t am_lat -D zcopy -s 1024"],
            ),
        ],
    ),
];

/// Title of the row with the tests of pyverbs.
pub(super) const PYTHON_TESTS: &str = "tests of pyverbs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_unique_and_fit_in_a_table() {
        let mut titles: Vec<_> = PROGRAMS.iter().map(|program| program.title).collect();
        assert!(titles.iter().all(|title| !title.contains('|')));
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), PROGRAMS.len());
    }
}
