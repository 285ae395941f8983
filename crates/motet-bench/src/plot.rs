//! The curves as pictures, SVG and PNG.
//!
//! The font is part of the program, so text does not depend on what a machine has installed.

use crate::format::bytes;
use crate::report::{Curve, Report, Unit};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;

/// The font of all pictures, after [`register_fonts`].
pub const FONT: &str = "sans-serif";
const SIZE: (u32, u32) = (1200, 800);
/// Colours for all kinds of colour vision (Okabe and Ito 2008): floor, engine, sockets, TCP, unix transport, omniORB adapter, MPI, others.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(90, 90, 90),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// A picture: the name of its curves and files, and its texts. Curves without a picture are in the JSON output only.
struct Plot {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// Whether the x axis counts things, and not bytes.
    counts: bool,
}

const fn plot(name: &'static str, title: &'static str, x: &'static str, y: &'static str) -> Plot {
    Plot { name, title, x, y, counts: false }
}

const PLOTS: [Plot; 16] = [
    plot("latency", "One way of a message: time over its size", "size of a message", "one way"),
    plot("bandwidth", "Stream: bandwidth over the size of a message", "size of a message", "bandwidth"),
    plot(
        "adapters-bandwidth",
        "The adapters of Motet: bandwidth there and back over the size",
        "size",
        "one way / half a round trip",
    ),
    plot("messages-latency", "Messages: half a round trip over the size", "size of a message", "half a round trip"),
    plot("messages-bandwidth", "Messages one way: bandwidth over the size", "size of a message", "bandwidth"),
    plot(
        "corba-time-octet-inout",
        "CORBA call with octets there and back: time over their size",
        "octets each way",
        "round trip",
    ),
    plot("corba-rate-octet-inout", "CORBA, sequence of octet there and back: D = 2S / (T - RTT)", "S", "D"),
    plot("corba-rate-octet-out", "CORBA, sequence of octet back into fresh memory: D = S / (T - RTT)", "S", "D"),
    plot("corba-rate-octet-refill", "CORBA, sequence of octet back into warm memory: D = S / (T - RTT)", "S", "D"),
    plot("corba-rate-struct-inout", "CORBA, sequence of struct there and back: D = 2S / (T - RTT)", "S", "D"),
    plot("corba-strings", "CORBA request with a string: time over its length", "length", "round trip"),
    plot("files-read", "Remote files, reads by messages: user-level, mounted, block", "size of a read", "bandwidth"),
    plot("files-write", "Remote files, writes by messages: user-level, mounted, block", "size of a write", "bandwidth"),
    plot(
        "files-cached-read",
        "Remote files, reads in order: the kernel's cache, and past it",
        "size of a read",
        "bandwidth",
    ),
    plot(
        "files-cached-write",
        "Remote files, writes in order: the kernel's cache, and past it",
        "size of a write",
        "bandwidth",
    ),
    Plot {
        name: "files-clients",
        title: "Remote files: many clients that write 64 KiB at a time",
        x: "clients",
        y: "total bandwidth",
        counts: true,
    },
];

/// Makes the font of the pictures known to the drawing library.
pub fn register_fonts() {
    let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    let _ = register_font(FONT, FontStyle::Bold, dejavu::sans::bold());
}

/// Draws every plot that has curves, in both formats. Returns the files.
pub fn all(folder: &Path, report: &Report) -> Result<Vec<String>> {
    register_fonts();
    let mut files = Vec::new();
    for plot in &PLOTS {
        let curves: Vec<&Curve> = report.curves.iter().filter(|curve| curve.plot == plot.name).collect();
        if curves.is_empty() {
            continue;
        }
        let caption = format!("{}; medians, bars from smallest to largest", report.machine.processor);
        for kind in ["svg", "png"] {
            let path = folder.join(format!("{}.{kind}", plot.name));
            let drawn = if kind == "svg" {
                let area = SVGBackend::new(&path, SIZE).into_drawing_area();
                draw(&area, plot, &curves, &caption).map_err(|e| e.to_string())
            } else {
                let area = BitMapBackend::new(&path, SIZE).into_drawing_area();
                draw(&area, plot, &curves, &caption).map_err(|e| e.to_string())
            };
            drawn.map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))?;
            files.push(path.display().to_string());
        }
    }
    Ok(files)
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    plot: &Plot,
    curves: &[&Curve],
    caption: &str,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let times = curves.iter().all(|curve| curve.unit == Unit::Ns);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let sizes = points().map(|(size, _)| *size as f64);
    let (left, right) = (sizes.clone().fold(f64::MAX, f64::min), sizes.fold(1.0, f64::max));
    let low = points().map(|(_, s)| s.min).fold(f64::MAX, f64::min);
    let high = points().map(|(_, s)| s.max).fold(0.0, f64::max);
    area.fill(&WHITE)?;
    let area = area.margin(14, 0, 0, 0).titled(plot.title, (FONT, 30).into_font().style(FontStyle::Bold))?;
    let area = area.titled(caption, (FONT, 17).into_font().color(&BLACK.mix(0.7)))?;
    // The legend: above the latencies, where room is made for it; below the bandwidths, at the right.
    let top = if times { decade(high).1 * 20.0 } else { decade(high).1 };
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .margin_right(40)
        .x_label_area_size(58)
        .y_label_area_size(96)
        .build_cartesian_2d((left..right).log_scale().base(2.0), (decade(low).0..top).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .x_label_formatter(&|size| if plot.counts { format!("{}", size.round()) } else { bytes(size.round() as usize) })
        .y_label_formatter(&|value| if times { time(*value) } else { rate(*value) })
        .x_labels(14)
        .y_labels(12)
        .label_style((FONT, 17))
        .axis_desc_style((FONT, 20))
        .light_line_style(BLACK.mix(0.05))
        .bold_line_style(BLACK.mix(0.18))
        .draw()?;
    for curve in curves {
        let shade = colour(&curve.name);
        // Coinciding lines stay visible by the size of their points. The transport below a line has its colour, but paler.
        let strength =
            if curve.name.starts_with("transport alone") || curve.name.ends_with("pml ucx") { 0.4 } else { 1.0 };
        let (colour, radius) = (COLOURS[shade].mix(strength), [5, 8, 4, 5, 6, 7, 4, 4][shade]);
        let line: Vec<(f64, f64)> = curve.points.iter().map(|(size, s)| (*size as f64, s.median)).collect();
        let bars = curve.points.iter().map(|(size, s)| {
            PathElement::new(vec![(*size as f64, s.min), (*size as f64, s.max)], colour.mix(0.45).stroke_width(3))
        });
        chart.draw_series(bars)?;
        chart
            .draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(3)))?
            .label(curve.name.clone())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 26, y)], colour.stroke_width(4)));
        chart.draw_series(line.iter().map(|&at| Circle::new(at, radius, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(if times { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::LowerRight })
        .margin(14)
        .legend_area_size(34)
        .label_font((FONT, 18))
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.4))
        .draw()?;
    area.present()
}

/// The colour of a line, by its name, so that a missing line does not change the others.
fn colour(name: &str) -> usize {
    match name {
        name if name.contains("block, cached") => 4,
        name if name.contains("block") => 5,
        name if name.contains("mounted, cached") => 2,
        name if name.contains("mounted") => 3,
        name if name.contains("user-level") || name.contains("by messages") => 1,
        name if name.contains("engine") => 1,
        name if name.contains("under Motet") || name.contains("sockets adapter") => 2,
        name if name.contains("without Motet") || name.contains("kernel TCP") => 3,
        name if name.contains("unix transport") => 4,
        name if name.contains("omniORB adapter") => 5,
        name if name.contains("FIFOs") => 1,
        "Motet" => 2,
        "UCX" => 3,
        name if name.contains("libfabric") => 4,
        "MPICH" => 5,
        name if name.ends_with("pml ob1") => 7,
        name if name.contains("MPI") => 6,
        name if name.contains("CORBA") => 2,
        name if name.contains("Java") => 3,
        name if name.contains("sockets") => 5,
        _ => 0,
    }
}

/// The round values (1, 2 or 5 times a power of ten) below and above.
fn decade(value: f64) -> (f64, f64) {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0].map(|step| step * power);
    let below = steps.into_iter().rev().find(|&s| s <= value * 0.95).unwrap_or(power / 2.0);
    let above = steps.into_iter().find(|&s| s >= value * 1.05).unwrap_or(power * 20.0);
    (below, above)
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e6 => format!("{} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{} µs", ns / 1e3),
        ns => format!("{ns} ns"),
    }
}

fn rate(gb: f64) -> String {
    if gb < 0.9995 { format!("{} MB/s", (gb * 1e3 * 10.0).round() / 10.0) } else { format!("{gb} GB/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_values() {
        assert_eq!(decade(52.0), (20.0, 100.0));
        assert_eq!(decade(1000.0), (500.0, 2000.0));
        assert_eq!([time(200.0), time(5000.0), rate(0.02), rate(5.0)], ["200 ns", "5 µs", "20 MB/s", "5 GB/s"]);
    }
}
