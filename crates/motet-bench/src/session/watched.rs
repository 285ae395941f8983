//! Messages of a circuit while `motet top` watches, and while nothing does.

use super::scene::{Children, Scene};
use crate::bench::{Bench, Measurement};
use crate::cleanup;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Part `watched`. The watched run and the other one take turns, each twice in a repetition, so that which one is first makes no difference.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let ms = if bench.quick { "1000" } else { "3000" };
    let timed = |is_watched: bool| -> Result<f64> {
        let _top = if is_watched { Some(Top::start(&scene)?) } else { None };
        Ok(scene.members(2, &["pingpong", ms])?[0])
    };
    let mut measurements: [Measurement<'_>; 4] =
        [Box::new(|_| timed(true)), Box::new(|_| timed(false)), Box::new(|_| timed(false)), Box::new(|_| timed(true))];
    let series = bench.compare(bench.of_programs, false, &mut measurements)?;
    let both = |a: usize, b: usize| -> Vec<f64> {
        series[a].values.iter().zip(&series[b].values).map(|(a, b)| (a + b) / 2.0).collect()
    };
    let (watched, unwatched) = (both(0, 3), both(1, 2));
    let ratios: Vec<f64> = watched.iter().zip(&unwatched).map(|(watched, not)| watched / not).collect();
    let mut line = Line::new("watched", "circuit, 8 B one way")
        .figure(Quantity::of("motet top watches", &watched, Unit::Ns))
        .against(Quantity::of("not watched", &unwatched, Unit::Ns), &ratios)
        .nearly(Bound::AtMost(1.02));
    if bench.cpus.count() <= 2 {
        line = line.note("motet top has no CPU of its own here: its own time counts");
    }
    Ok(vec![line])
}

/// `motet top` on a terminal of its own, which is quit when this is dropped.
struct Top(Children);

impl Top {
    fn start(scene: &Scene) -> Result<Self> {
        let motet = scene.motet(&["top"]);
        let words = format!("'{}' top", motet.get_program().to_string_lossy());
        let mut command = Command::new("script");
        command.args(["--quiet", "--command", &words, "/dev/null"]);
        command.envs(motet.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = cleanup::start(&mut command).context("the command script (bsdutils)")?;
        std::thread::sleep(Duration::from_millis(200)); // its first table
        Ok(Self(Children(vec![child])))
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        for child in &mut self.0.0 {
            let quits = child.stdin.take().is_some_and(|mut keys| keys.write_all(b"q").is_ok());
            if quits {
                let _ = child.wait();
            }
        }
    }
}
