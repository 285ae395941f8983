//! What every driver must do for streams: one suite over all drivers, through the public interface.
//!
//! A process has one engine with one set of drivers, so every case runs in a process of its own: this test binary, started again as the *case
//! process*. A case is two functions, one for each end. Both run in the case process, on two threads; where the driver reaches other
//! processes, the case runs again with the far end in a third process (fork and exec of this binary).
//!
//! A new driver is one line in `suites!`.

mod cases;
mod ends;

use cases::CASES;
use ends::FarEnd;
use motet_engine::driver::Driver;

/// A driver under test, together with TCP, which every stream needs.
struct Suite {
    name: &'static str,
    drivers: &'static [&'static dyn Driver],
    /// Whether the driver reaches ends in other processes.
    between_processes: bool,
}

macro_rules! suites {
    ($($name:ident: $drivers:expr, between processes $between:literal;)*) => {
        static SUITES: &[Suite] =
            &[$(Suite { name: stringify!($name), drivers: $drivers, between_processes: $between }),*];
        $(
            mod $name {
                #[test]
                fn ends_in_one_process_conform() {
                    super::run_all(stringify!($name), super::FarEnd::SameProcess);
                }
                #[test]
                fn ends_in_two_processes_conform() {
                    super::run_all(stringify!($name), super::FarEnd::OtherProcess);
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

/// Runs every case of a driver, then fails with a list of the failed ones.
fn run_all(driver: &str, far_end: FarEnd) {
    if far_end == FarEnd::OtherProcess && !suite(driver).between_processes {
        return; // the driver does not offer it
    }
    let failed: Vec<String> = CASES
        .iter()
        .filter(|case| far_end == FarEnd::OtherProcess || !case.two_processes_only)
        .filter_map(|case| ends::start(driver, case.name, far_end).err())
        .collect();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), CASES.len(), failed.join("\n"));
}

/// The entry of the processes of a case; no test of its own.
#[test]
fn role() {
    ends::role(suite);
}

/// A driver that the user forbids is not used, and the stream reports the reason.
#[test]
fn forbidden_driver_leaves_streams_on_tcp() {
    ends::start("shm", ends::FORBIDDEN, FarEnd::SameProcess).unwrap();
}
