//! A `multi` module on 16 nodes, over the same on one node.

use super::scene::{Children, Scene};
use crate::bench::{Bench, Measurement};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Result, ensure};
use motet_session::api::View;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The groups of nodes, with their sizes.
const GROUPS: [(&str, usize); 2] = [("sixteen", 16), ("one", 1)];
/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// What the `multi` modules consist of: a Python module that does nothing, or a program that sleeps.
const PARTS: [(&str, &str); 2] = [
    ("python", "name = \"python\"\ndriver = \"python\"\nunits = [\"part.py\"]\n"),
    ("exec", "name = \"exec\"\ndriver = \"exec\"\nunits = [\"sleep\"]\n[attributes]\narguments = [\"1000\"]\n"),
];

/// Part `modules`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let folder = scene.folder();
    std::fs::write(folder.join("part.py"), "def start():\n    pass\n")?;
    for (part, text) in PARTS {
        std::fs::write(folder.join(format!("{part}.toml")), text)?;
        for (group, _) in GROUPS {
            let multi = format!("{part}-{group}");
            let text =
                format!("name = {multi:?}\ndriver = \"multi\"\nunits = [{part:?}]\n[attributes]\ngroup = {group:?}\n");
            std::fs::write(folder.join(format!("{multi}.toml")), text)?;
        }
    }
    let mut nodes = Children::default();
    for (group, size) in GROUPS {
        let own = scene.motet(&[]).get_program().to_string_lossy().into_owned();
        let mut command = scene.motet(&["run", "--group", group, "-n", &size.to_string(), "--", &own, "node"]);
        nodes.0.push(crate::cleanup::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?);
        let began = Instant::now();
        let members =
            || -> Result<usize> { Ok(scene.client()?.get::<View>(&format!("/v1/groups/{group}"))?.members.len()) };
        while members().unwrap_or(0) != size {
            ensure!(began.elapsed() < LIMIT, "the nodes do not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let mut lines = Vec::new();
    for (part, _) in PARTS {
        let timed = |group: &'static str| -> Measurement<'_> {
            let (scene, name) = (&scene, format!("{part}-{group}"));
            let file = folder.join(format!("{name}.toml")).display().to_string();
            Box::new(move |_| {
                let began = Instant::now();
                scene.run(&["load", "--start", &file])?;
                let taken = began.elapsed().as_secs_f64() * 1e3;
                scene.run(&["unload", &name])?;
                Ok(taken)
            })
        };
        let mut measurements = GROUPS.map(|(group, _)| timed(group));
        let series = bench.compare(bench.repetitions, false, &mut measurements)?;
        let what = match part {
            "exec" => "a program",
            _ => "a Python module",
        };
        let mut line =
            Line::new("modules", format!("motet load --start of a multi module: {what} on all nodes of a group"))
                .figure(Quantity::of("16 nodes", &series[0].values, Unit::Ms))
                .against(Quantity::of("one node", &series[1].values, Unit::Ms), &series[0].over(&series[1]))
                .bound(Bound::AtMost(10.0));
        if bench.cpus.count() < GROUPS[0].1 {
            line = line.note(format!("{} nodes on {} CPUs", GROUPS[0].1, bench.cpus.count()));
        }
        lines.push(line);
    }
    Ok(lines)
}
