//! Networks of devices, and a checker of responses.

use std::sync::Arc;

use headworks_baselines::WordMemory;
use headworks_ibverbs::IbvProvider;
use headworks_patterns::message::first_wrong_byte;
use headworks_patterns::verb::Verb;
use headworks_patterns::{PatternConfig, PatternError, RequestLoad};
use headworks_runtime::testing;
use headworks_shm::Registry;
use headworks_simnic::SimProvider;
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, Duration, Provider};

/// Hosts of a network.
pub(crate) struct Network {
    /// Whether every device promises what every design relies on. Elsewhere designs may be refused.
    promises_all: bool,
    /// Whether sides are checked now and then.
    #[allow(dead_code, reason = "one of the test programs uses it")]
    pub(crate) checks: bool,
    pub(crate) open: Box<dyn Fn(usize) -> Arc<dyn Device>>,
    /// Lets virtual time pass.
    #[allow(dead_code, reason = "one of the test programs uses it")]
    pub(crate) advance: Box<dyn Fn()>,
    _folder: Option<tempfile::TempDir>,
}

impl Network {
    pub(crate) fn soft(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let provider = SoftProvider::on(Registry::open_at(folder.path().join("fabric")).unwrap());
        let options = options.to_owned();
        let open = move |host| {
            let name = format!("soft:h{host}{options}");
            provider.open(&name.parse().unwrap()).unwrap()
        };
        Self {
            promises_all: true,
            checks: true,
            open: Box::new(open),
            advance: Box::new(|| {}),
            _folder: Some(folder),
        }
    }

    #[allow(dead_code, reason = "one of the test programs uses it")]
    pub(crate) fn simulated() -> Self {
        let provider = Arc::new(SimProvider::new());
        let network = provider.clone();
        let open = move |host| {
            let name = format!("sim:cx5-100g,host=h{host}");
            provider.open(&name.parse().unwrap()).unwrap()
        };
        Self {
            promises_all: true,
            checks: true,
            open: Box::new(open),
            advance: Box::new(move || {
                network.advance(Duration::from_nanos(200));
            }),
            _folder: None,
        }
    }

    /// Two RDMA devices of this machine, which the hosts use in turn. `None` if there is none: the reason is printed.
    pub(crate) fn rdma() -> Option<Self> {
        let provider = IbvProvider::new();
        let names = testing::devices_or(|| {
            let listed = provider.devices().map_err(|error| error.to_string())?;
            Ok(listed.iter().map(|info| info.name.to_string()).collect())
        })?;
        let open = move |host: usize| {
            let name = &names[host % names.len()];
            let opened = provider.open(&name.parse().unwrap());
            opened.unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        Some(Self {
            promises_all: false,
            checks: true,
            open: Box::new(open),
            advance: Box::new(|| {}),
            _folder: None,
        })
    }

    /// Whether a design may be refused, and says so, because the devices do not promise what it relies on.
    pub(crate) fn refuses<Request: Verb, Response: Verb>(&self, config: &PatternConfig) -> bool {
        let info = (self.open)(0).info().clone();
        match config.check::<Request, Response>(&info) {
            Err(error @ PatternError::Promise { .. }) if !self.promises_all => {
                println!("refused: {error}");
                true
            }
            _ => false,
        }
    }
}

/// Checks each response, and that it answers the request of its slot.
pub(crate) struct Checker {
    response: usize,
    outstanding: Vec<bool>,
    /// Requests that are still to begin.
    left: u64,
}

impl Checker {
    /// Makes the checker of `count` requests.
    pub(crate) fn new(config: &PatternConfig, count: u64) -> Self {
        Self {
            left: count,
            response: config.response,
            outstanding: vec![false; config.outstanding as usize],
        }
    }
}

impl RequestLoad for Checker {
    fn begin(&mut self) -> bool {
        let begins = self.left > 0;
        self.left -= u64::from(begins);
        begins
    }

    fn sent(&mut self, slot: usize) {
        assert!(!std::mem::replace(&mut self.outstanding[slot], true));
    }

    fn received(
        &mut self,
        slot: usize,
        item: u64,
        memory: &WordMemory,
        at: usize,
    ) -> Result<(), PatternError> {
        assert!(
            std::mem::replace(&mut self.outstanding[slot], false),
            "no request in slot {slot}"
        );
        let wrong = first_wrong_byte(memory, at, item, self.response);
        assert_eq!(wrong, None, "item {item}: byte {wrong:?} is wrong");
        Ok(())
    }
}
