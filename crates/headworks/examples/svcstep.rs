use headworks::daemon::{Config, Daemon};
use headworks::stage::{Cx, CxBackend, Mail, MailError};
use headworks::verbs::Instant;
struct N;
impl CxBackend for N {
    fn role(&self) -> &str {
        "x"
    }
    fn now(&mut self) -> Instant {
        Instant::ZERO
    }
    fn send(&mut self, _: &str, _: &[u8]) -> Result<(), MailError> {
        Ok(())
    }
    fn receive(&mut self) -> Option<Mail> {
        None
    }
    fn report(&mut self, _: &[u8]) -> Result<(), MailError> {
        Ok(())
    }
    fn interrupted(&self) -> bool {
        false
    }
}
fn main() {
    let device = headworks::open(&"soft:h9".parse().unwrap()).unwrap();
    let mut d = Daemon::new("127.0.0.1".parse().unwrap(), 1, device, Config::default());
    let s = d.session_up(1);
    let mut app = headworks_client::Session::new("x");
    while let Some(p) = app.output() {
        d.session_packet(s, &p);
    }
    while d.output().is_some() {}
    for _ in 0..3 {
        let t = std::time::Instant::now();
        let n = 1_000_000;
        for _ in 0..n {
            d.step(&mut Cx::new(&mut N)).unwrap();
            assert!(d.is_idle());
        }
        println!("{} ns a step", t.elapsed().as_nanos() / n);
    }
}
