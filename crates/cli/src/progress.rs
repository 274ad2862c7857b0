//! Progress display on standard error: bytes and rate.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes between two updates of the bar. An update reads the clock, which is too expensive for every piece.
const STRIDE: u64 = 8 << 20;

/// Byte counter that is displayed only on request.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    next: u64,
}

impl Progress {
    /// Creates a counter, displayed if `shown`. `total` is the expected number of bytes, if known.
    pub(crate) fn new(shown: bool, total: Option<u64>, what: &str) -> Self {
        let bar = shown.then(|| {
            let (bar, template) = match total {
                Some(total) => (
                    ProgressBar::new(total),
                    "{msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
                ),
                None => (
                    ProgressBar::no_length(),
                    "{msg} {bytes}, {bytes_per_sec}, {elapsed}",
                ),
            };
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, next: 0 }
    }

    /// Sets the number of bytes so far.
    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar
            && bytes >= self.next
        {
            bar.set_position(bytes);
            self.next = bytes + STRIDE;
        }
    }

    /// Removes the bar from the terminal.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Sets the final number of bytes and leaves the bar; without a terminal, prints one line instead.
    pub(crate) fn finish(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            bar.finish();
            if bar.is_hidden() {
                let took = bar.elapsed().as_secs_f64().max(1e-9);
                let rate = bytes as f64 / took / 1e6;
                crate::exit_status::write_line(format_args!(
                    "{} {bytes} bytes, {rate:.0} MB/s",
                    bar.message()
                ));
            }
        }
    }
}
