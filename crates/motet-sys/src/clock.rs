//! Time in ticks of the processor's counter, and the number of the current CPU: both without a system call.

use std::sync::atomic::{AtomicU64, Ordering};

static TICKS_PER_1024NS: AtomicU64 = AtomicU64::new(0);

/// The processor's counter (TSC, CNTVCT), ticks.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC exists on every x86-64.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: the virtual counter is readable from user space on Linux.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        return ticks;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return nanoseconds();
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn nanoseconds() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CLOCK_REALTIME: seconds since 1970 and nanoseconds of the second.
pub fn wall() -> (u64, u32) {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (t.tv_sec.max(0) as u64, t.tv_nsec as u32)
}

/// Ticks in 1024 ns. Measured on the first call of a process, over at least 20 us.
#[inline(always)]
pub fn ticks_per_1024ns() -> u64 {
    let known = TICKS_PER_1024NS.load(Ordering::Relaxed);
    if known != 0 { known } else { calibrate() }
}

/// Nanoseconds as ticks.
#[inline(always)]
pub fn ticks_of(ns: u64) -> u64 {
    (ns * ticks_per_1024ns()) >> 10
}

#[cold]
fn calibrate() -> u64 {
    let (t0, n0) = read_both();
    let (t1, n1) = loop {
        let (t, n) = read_both();
        if n - n0 >= 20_000 {
            break (t, n);
        }
        std::hint::spin_loop();
    };
    let rate = ((t1.wrapping_sub(t0)) * 1024 / (n1 - n0)).max(1);
    TICKS_PER_1024NS.store(rate, Ordering::Relaxed);
    rate
}

/// Ticks and nanoseconds of the same moment: the shortest of four readings. The first reading of a process includes page faults of the
/// clock's code and data; any reading may be interrupted.
fn read_both() -> (u64, u64) {
    let reading = || {
        let before = ticks();
        let now = nanoseconds();
        let took = ticks().wrapping_sub(before);
        (took, before.wrapping_add(took / 2), now)
    };
    let (_, ticks, now) = std::array::from_fn::<_, 4, _>(|_| reading()).into_iter().min().unwrap_or_else(reading);
    (ticks, now)
}

/// The number of the CPU that this thread runs on.
#[inline(always)]
pub fn cpu() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut aux = 0;
        // SAFETY: RDTSCP exists on every x86-64 that Linux still runs on; the kernel keeps the CPU number in TSC_AUX.
        unsafe { core::arch::x86_64::__rdtscp(&mut aux) };
        aux & 0xfff
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        rustix::thread::sched_getcpu() as u32
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ticks_advance_at_the_calibrated_rate() {
        let rate = super::calibrate();
        let (t0, n0) = super::read_both();
        while super::nanoseconds() - n0 < 2_000_000 {}
        let (t1, n1) = super::read_both();
        let ns = (t1 - t0) * 1024 / rate;
        assert!(ns.abs_diff(n1 - n0) < (n1 - n0) / 8, "{ns} ns measured for {} ns", n1 - n0);
    }
}
