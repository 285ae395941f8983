//! One suite over every driver, through the public interface.
//!
//! A process has one engine with one set of drivers, so every case runs in a process of its own: this test binary, started
//! again as *host*. A case is two functions, one for each end. Both run in the host, on two threads; where the driver
//! reaches other processes, the case runs again with the far end in a third process (fork and exec of this binary).
//!
//! A new driver is one line in `suites!`.

mod cases;
mod ends;

use cases::CASES;
use ends::Place;
use motet_engine::driver::Driver;

/// A driver under test, with the TCP that every stream stands on.
struct Suite {
    name: &'static str,
    drivers: &'static [&'static dyn Driver],
    /// Whether an end in another process is in its reach.
    between_processes: bool,
}

macro_rules! suites {
    ($($name:ident: $drivers:expr, between processes $between:literal;)*) => {
        static SUITES: &[Suite] =
            &[$(Suite { name: stringify!($name), drivers: $drivers, between_processes: $between }),*];
        $(
            mod $name {
                #[test]
                fn both_ends_in_one_process() {
                    super::run_all(stringify!($name), super::Place::Same);
                }
                #[test]
                fn ends_in_two_processes() {
                    super::run_all(stringify!($name), super::Place::Other);
                }
            }
        )*
    };
}

suites! {
    loopback: &[&motet_driver_loopback::Loopback, &motet_driver_tcp::Tcp], between processes false;
    shm: &[&motet_driver_shm::Shm, &motet_driver_tcp::Tcp], between processes true;
    tcp: &[&motet_driver_tcp::Tcp], between processes true;
}

fn suite(name: &str) -> &'static Suite {
    SUITES.iter().find(|suite| suite.name == name).expect("a driver of the table")
}

/// Every case of a driver; all of them run, then the failed ones are named.
fn run_all(driver: &str, place: Place) {
    if place == Place::Other && !suite(driver).between_processes {
        return; // the driver does not offer it
    }
    let failed: Vec<String> = CASES
        .iter()
        .filter(|case| place == Place::Other || !case.two_processes_only)
        .filter_map(|case| ends::start(driver, case.name, place).err())
        .collect();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), CASES.len(), failed.join("\n"));
}

/// Not a test of its own: what the processes of a case run.
#[test]
fn role() {
    ends::role(suite);
}

/// A driver that the user forbids is not used, and the reason is kept.
#[test]
fn a_forbidden_driver_leaves_the_path_to_tcp() {
    ends::start("shm", ends::FORBIDDEN, Place::Same).unwrap();
}
