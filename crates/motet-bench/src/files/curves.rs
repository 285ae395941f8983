//! Reads and writes over their size, for plots as figures 12 to 15 of Goglin, Gluck and Vicat-Blanc Primet (2008): a client in the program beside a mounted file
//! system, the kernel's cache beside `O_DIRECT`, blocks beside files. All by messages, in one thread.

use super::scene::{FILE, FILE_BYTES, Scene, Server, Way, ask};
use crate::bench::{Bench, Measurement};
use crate::pair::Process;
use crate::report::{Curve, Unit};
use crate::stats::Spread;
use anyhow::Result;
use std::cell::RefCell;
use std::os::unix::fs::symlink;

const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// A line of the plots: its name, its worker, and whether it uses the kernel's cache.
type Measured = (&'static str, RefCell<Process>, bool);

/// Measures the curves. What is not possible here, a block device for example, has none; the reason goes to standard error.
pub fn measure(bench: &Bench, scene: &Scene) -> Result<Vec<Curve>> {
    let _files = scene.serve(bench, Way::Messages, None)?;
    let bytes = FILE_BYTES.to_string();
    let start = |way: &str, name: &str| -> Result<RefCell<Process>> {
        Ok(RefCell::new(scene.worker(bench, &["client", way, name, &bytes], None)?))
    };
    let mut ways: Vec<Measured> = vec![("user-level", start("messages", Way::Messages.export())?, false)];
    let mount = scene.mount(bench, Way::Messages);
    match &mount {
        Ok(mount) => {
            let folder = mount.folder.display().to_string();
            ways.push(("mounted, O_DIRECT", start("uncached", &folder)?, false));
            ways.push(("mounted, cached", start("local", &folder)?, true));
        }
        Err(error) => eprintln!("no curves of a mounted file system: {error:#}"),
    }
    let device = device(bench, scene);
    match &device {
        Ok((_, folder)) => {
            ways.push(("block, O_DIRECT", start("uncached", folder)?, false));
            ways.push(("block, cached", start("local", folder)?, true));
        }
        Err(error) => eprintln!("no curves of a block device: {error:#}"),
    }
    let mut curves = Vec::new();
    for operation in ["read", "write"] {
        let mut points: Vec<Vec<(usize, Spread)>> = ways.iter().map(|_| Vec::new()).collect();
        for size in SIZES {
            let question = format!("{operation} {size} {}", bench.ms);
            let mut measurements: Vec<Measurement<'_>> = ways
                .iter()
                .map(|(_, worker, _)| -> Measurement<'_> {
                    // The mean: the kernel writes its cache back now and then.
                    Box::new(|_| Ok(size as f64 / ask(&mut worker.borrow_mut(), &question)?[1]))
                })
                .collect();
            let series = bench.compare(bench.of_programs, false, &mut measurements)?;
            for (points, series) in points.iter_mut().zip(&series) {
                points.extend(Spread::of(&series.values).map(|spread| (size, spread)));
            }
        }
        for ((name, _, is_cached), points) in ways.iter().zip(points) {
            let curve = |plot: String, name: String| Curve { plot, name, unit: Unit::GBs, points: points.clone() };
            if !is_cached {
                curves.push(curve(format!("files-{operation}"), (*name).to_owned()));
            }
            if *name != "user-level" {
                curves.push(curve(format!("files-cached-{operation}"), (*name).to_owned()));
            }
        }
    }
    drop(ways); // they keep the mount and the device busy
    Ok(curves)
}

/// A block device whose disk has [`FILE_BYTES`], and a folder in which it has the name of the file that workers read.
fn device(bench: &Bench, scene: &Scene) -> Result<(Server, String)> {
    let disk = scene.path("disk");
    std::fs::copy(scene.data().join(FILE), &disk)?;
    let (server, device) = scene.block(bench, &[], &disk, &["--connect"])?;
    let folder = scene.path("device");
    std::fs::create_dir(&folder)?;
    symlink(device, folder.join(FILE))?;
    Ok((server, folder.display().to_string()))
}
