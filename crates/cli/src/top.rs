//! `headworks top`: a look at a live fabric from outside.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use headworks::census::{self, Census};
use headworks::stage::Interrupt;

use crate::args::Top;
use crate::fail::{Exit, bad_input, print};
use crate::pause::sleeps_through;

mod json;
mod rates;
mod text;

use rates::Rates;

/// Shows what is on the fabric, once or again and again.
pub(crate) fn run(args: &Top) -> anyhow::Result<()> {
    let (kind, host) = (args.device.kind(), args.device.name());
    if kind != "soft" {
        return Err(bad_input(format_args!(
            "top looks at soft devices only, not at {kind:?} (known: soft, soft:HOST)"
        )));
    }
    if let Some((option, _)) = args.device.options().next() {
        return Err(bad_input(format_args!(
            "device option {option:?} means nothing to top: soft or soft:HOST"
        )));
    }
    let interrupt = Interrupt::install().context("catching signals")?;
    let redraws = std::io::stdout().is_terminal() && !args.json && args.count.is_none();
    let most = if redraws {
        u64::MAX
    } else {
        args.count.unwrap_or(1)
    };
    let interval = Duration::from_secs_f64(args.interval);
    let mut before: Option<(Instant, Census)> = None;
    for index in 0..most {
        if index > 0 && sleeps_through(&interrupt, interval)? {
            break;
        }
        let now = Instant::now();
        let census = census::look(host)?;
        let rates = before
            .as_ref()
            .map(|(then, earlier)| Rates::between(earlier, &census, now - *then));
        let text = if args.json {
            format!("{}\n", json::line(&census, rates.as_ref()))
        } else {
            let size = terminal_size();
            let seen = text::Seen {
                census: &census,
                rates: rates.as_ref(),
                device: &args.device,
                width: if redraws { size.0 } else { usize::MAX },
                queue_pairs: args.qps,
            };
            let text = seen.drawn();
            match (redraws, index) {
                (true, _) => redrawn(&text, size.1),
                (false, 0) => text,
                (false, _) => format!("\n{text}"),
            }
        };
        if !crate::fail::print_unless_closed(&text)? {
            return Ok(());
        }
        before = Some((now, census));
        if interrupt.is_raised() {
            break;
        }
    }
    if redraws {
        // The prompt comes below the last picture.
        print("\n")?;
    }
    if interrupt.is_raised() {
        let line = "interrupted".to_owned();
        let code = headworks::stage::signals::EXIT_INTERRUPTED;
        return Err(Exit { code, line }.into());
    }
    Ok(())
}

/// The picture in place of the one before: home, each line cleared to its end, the rest below too.
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

/// Columns and rows of the terminal.
fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}
