//! `headworks top`: watches a live fabric or daemon from outside.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use headworks::inspect::{self, RegistrySnapshot};
use headworks::net::Interrupt;

use crate::args::Top;
use crate::exit_status::{bad_input, interrupted, print};
use crate::interruptible_sleep::sleep_unless_interrupted;

mod counter_rates;
mod daemon_metrics;
mod json;
mod scrape;
mod text;

use counter_rates::Rates;
pub(crate) use scrape::scrape;

/// Shows the state of the fabric or of a daemon, once or repeatedly.
pub(crate) fn run(args: &Top) -> anyhow::Result<()> {
    if let Some(which) = &args.daemon {
        return daemon_metrics::run(which, args);
    }
    let (kind, host) = (args.device.kind(), args.device.name());
    if kind != "soft" {
        return Err(bad_input(format_args!(
            "top watches soft devices only, not {kind:?} (known: soft, soft:HOST)"
        )));
    }
    if let Some((option, _)) = args.device.options().next() {
        return Err(bad_input(format_args!(
            "top takes no device options such as {option:?}: name soft or soft:HOST"
        )));
    }
    let mut before: Option<(Instant, RegistrySnapshot)> = None;
    watch(args, |width, _| {
        let now = Instant::now();
        let snapshot = inspect::snapshot(host)?;
        let rates = before
            .as_ref()
            .map(|(then, earlier)| Rates::between(earlier, &snapshot, now - *then));
        let text = if args.json {
            format!("{}\n", json::line(&snapshot, rates.as_ref()))
        } else {
            let seen = text::FabricView {
                snapshot: &snapshot,
                rates: rates.as_ref(),
                device: &args.device,
                width,
                queue_pairs: args.qps,
            };
            seen.drawn()
        };
        before = Some((now, snapshot));
        Ok(text)
    })
}

/// Prints the text of `look` as often as the arguments say. `look` gets the number of characters of a line, and the
/// interrupt that ends its waits.
fn watch(
    args: &Top,
    mut look: impl FnMut(usize, &Interrupt) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching signals")?;
    let redraws = std::io::stdout().is_terminal() && !args.json && args.count.is_none();
    let most = if redraws {
        u64::MAX
    } else {
        args.count.unwrap_or(1)
    };
    let interval = Duration::from_secs_f64(args.interval);
    for index in 0..most {
        if index > 0 && sleep_unless_interrupted(&interrupt, interval)? {
            break;
        }
        let size = terminal_size();
        let width = if redraws { size.0 } else { usize::MAX };
        let text = match look(width, &interrupt) {
            // Whatever failed, failed because of the interrupt.
            Err(_) if interrupt.is_raised() => break,
            text => text?,
        };
        let text = match (redraws, index) {
            (true, _) => redrawn(&text, size.1),
            (false, 1..) if !args.json => format!("\n{text}"),
            (false, _) => text,
        };
        if !crate::exit_status::print_unless_closed(&text)? {
            return Ok(());
        }
        if interrupt.is_raised() {
            break;
        }
    }
    if redraws {
        // The prompt appears below the last screen.
        print("\n")?;
    }
    if interrupt.is_raised() {
        return Err(interrupted());
    }
    Ok(())
}

/// Returns the text that replaces the last screen: cursor home, each line and the rest below cleared.
fn redrawn(text: &str, height: usize) -> String {
    let mut all: Vec<_> = text.lines().collect();
    let room = height.saturating_sub(1).max(1);
    let more;
    if all.len() > room {
        more = format!("... and {} more lines", all.len() - room + 1);
        all.truncate(room - 1);
        all.push(&more);
    }
    let lines: String = all.iter().map(|line| format!("{line}\x1b[K\r\n")).collect();
    format!("\x1b[H{lines}\x1b[J")
}

/// Returns the columns and rows of the terminal.
fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}
