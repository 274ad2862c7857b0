//! Rates: their codes, as multiples of 2.5 Gbit/s, and in Mbit/s.

use std::ffi::c_int;

/// The code of "as fast as the port is".
const RATE_MAX: c_int = 0;

/// For each code its multiple of 2.5 Gbit/s, or -1 if it is none, and its Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25_781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

fn find(known: impl Fn(&(c_int, c_int, c_int)) -> bool) -> Option<(c_int, c_int, c_int)> {
    RATES.iter().copied().find(|rate| known(rate))
}

pub(crate) extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    find(|known| known.0 == rate).map_or(-1, |known| known.1)
}

pub(crate) extern "C" fn mult_to_rate(multiple: c_int) -> c_int {
    find(|known| known.1 == multiple && multiple > 0).map_or(RATE_MAX, |known| known.0)
}

pub(crate) extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    find(|known| known.2 == mbps).map_or(RATE_MAX, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_converted_back_unchanged() {
        for (code, multiple, mbps) in RATES {
            assert_eq!(rate_to_mbps(code), mbps);
            assert_eq!(mbps_to_rate(mbps), code);
            assert_eq!(rate_to_mult(code), multiple);
            if multiple > 0 {
                assert_eq!(mult_to_rate(multiple), code);
            }
        }
        for unknown in [-1, 0, 1, 25] {
            assert_eq!(rate_to_mult(unknown), -1);
            assert_eq!(rate_to_mbps(unknown), -1);
        }
        assert_eq!(mult_to_rate(-1), RATE_MAX);
        assert_eq!(mbps_to_rate(1), RATE_MAX);
    }
}
