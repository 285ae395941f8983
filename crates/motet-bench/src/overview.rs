//! The overview picture: round trip and bandwidth of five kinds of programs, without and with Motet.
//!
//! A line of the report says with [`Bar`] which bars it gives. The picture is drawn only when all bars were measured in one run.

use crate::bar::{Bar, Panel, ProgramKind};
use crate::format::{number, short_number};
use crate::plot::{COLOURS, FONT, register_fonts};
use crate::report::{Line, Quantity, Report, Unit, WithMotet};
use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::FontStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fs;
use std::path::Path;

/// The name of the picture, without its extension.
pub const NAME: &str = "overview";

/// Without and with Motet.
type Pair = [f64; 2];

/// By panel, then by program.
type Bars = [[Pair; ProgramKind::ALL.len()]; Panel::ALL.len()];

/// The bars of a report; an error names what is missing.
fn bars(lines: &[Line]) -> Result<Bars, String> {
    let mut missing = Vec::new();
    let bars = Panel::ALL.map(|panel| {
        ProgramKind::ALL.map(|program| {
            let is_it = |line: &&Line| line.bar.is_some_and(|bar| (bar.program, bar.panel) == (program, panel));
            lines.iter().filter(is_it).find_map(pair).unwrap_or_else(|| {
                missing.push(format!("{} ({panel:?})", program.words()[0]));
                [f64::NAN; 2]
            })
        })
    });
    if missing.is_empty() { Ok(bars) } else { Err(missing.join(", ")) }
}

fn pair(line: &Line) -> Option<Pair> {
    let (bar, figure, reference) = (line.bar?, line.figure.as_ref()?, line.reference.as_ref()?);
    let both = match line.with_motet {
        WithMotet::Figure => [reference, figure],
        WithMotet::Reference => [figure, reference],
        WithMotet::Neither => return None,
    };
    let [without, with] = both.map(|quantity| value(bar, quantity));
    Some([without?, with?]).filter(|pair| pair.iter().all(|value| value.is_finite() && *value > 0.0))
}

/// The height of a bar, in µs or GB/s; `None` for a unit that the panel does not show.
fn value(bar: Bar, quantity: &Quantity) -> Option<f64> {
    let median = quantity.spread.median;
    match (bar.panel, quantity.unit) {
        (Panel::RoundTrip, Unit::Ns) => Some(median * bar.times / 1e3),
        (Panel::RoundTrip, Unit::PerSecond) => Some(1e6 / median),
        (Panel::Bandwidth, Unit::GBs) => Some(median),
        _ => None,
    }
}

/// Draws `overview.svg` into `figures` and `overview.png` into `plots`. Returns their names; of a run that did not measure all bars, none.
pub fn draw(figures: &Path, plots: &Path, report: &Report) -> Result<Vec<String>> {
    if report.lines.iter().all(|line| line.bar.is_none()) {
        return Ok(Vec::new());
    }
    let bars = match bars(&report.lines) {
        Ok(bars) => bars,
        Err(missing) => {
            eprintln!("{NAME}.svg is not drawn: there are no figures of {missing}");
            return Ok(Vec::new());
        }
    };
    register_fonts();
    let [svg, png] = [(figures, "svg"), (plots, "png")].map(|(folder, kind)| folder.join(format!("{NAME}.{kind}")));
    fs::create_dir_all(plots).with_context(|| format!("cannot make {}", plots.display()))?;
    let machine = &report.machine.processor;
    let drawn = picture(&SVGBackend::new(&svg, SIZE).into_drawing_area(), &bars, machine).map_err(|e| e.to_string());
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", svg.display()))?;
    let drawn = picture(&BitMapBackend::new(&png, SIZE).into_drawing_area(), &bars, machine).map_err(|e| e.to_string());
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", png.display()))?;
    Ok([svg, png].map(|path| path.display().to_string()).into())
}

/// Pixels. A reader sees the picture at this width, so that no text is scaled down.
const SIZE: (u32, u32) = (800, 425);
/// Text of `n` pixels is asked for as `n` times this: the drawing library divides by it.
const FONT_SCALE: f64 = 1.24;
/// The first row of bars, the height of a row, and of a bar.
const TOP: i32 = 112;
const ROW: i32 = 58;
const BAR_HEIGHT: i32 = 20;
/// Where bars begin, and the length of the longest, by panel.
const PANEL_LEFT: [i32; 2] = [178, 506];
const MAX_BAR_LENGTH: f64 = 230.0;
/// Without and with Motet: colours that differ also in brightness.
const BAR_COLOURS: [RGBColor; 2] = [RGBColor(160, 160, 160), COLOURS[1]];
const WORDS: [&str; 2] = ["without Motet", "with Motet"];

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// The background is a white card with a border, which reads the same on a white and on a dark page.
fn picture<B: DrawingBackend>(area: &DrawingArea<B, Shift>, bars: &Bars, machine: &str) -> Drawn<B> {
    let (width, height) = (SIZE.0 as i32, SIZE.1 as i32);
    area.fill(&WHITE)?;
    area.draw(&Rectangle::new([(0, 0), (width - 1, height - 1)], BLACK.mix(0.35)))?;
    write(area, "Unmodified programs on one host", (18, 26), (18.0, FontStyle::Bold), HPos::Left, BLACK)?;
    let remark = format!("{machine}. Medians. Left: shorter is better; right: longer is better.");
    write(area, &remark, (18, 51), (12.5, FontStyle::Normal), HPos::Left, TEXT_COLOUR)?;
    for (at, (shade, words)) in BAR_COLOURS.iter().zip(WORDS).enumerate() {
        let x = 532 + at as i32 * 138;
        area.draw(&Rectangle::new([(x, 19), (x + 14, 33)], shade.filled()))?;
        write(area, words, (x + 21, 26), (14.0, FontStyle::Normal), HPos::Left, BLACK)?;
    }
    for (at, program) in ProgramKind::ALL.iter().enumerate() {
        let (y, [name, what]) = (TOP + at as i32 * ROW + BAR_HEIGHT, program.words());
        write(area, name, (168, y - 9), (15.0, FontStyle::Bold), HPos::Right, BLACK)?;
        write(area, what, (168, y + 9), (12.0, FontStyle::Normal), HPos::Right, TEXT_COLOUR)?;
    }
    for ((panel, left), pairs) in Panel::ALL.into_iter().zip(PANEL_LEFT).zip(bars) {
        draw_panel(area, panel, left, pairs)?;
    }
    area.present()
}

const TEXT_COLOUR: RGBColor = RGBColor(85, 85, 85);

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: Panel, left: i32, pairs: &[Pair]) -> Drawn<B> {
    let scale = Scale::of(panel, pairs);
    let x = |value: f64| left + (scale.part(value) * MAX_BAR_LENGTH).round() as i32;
    let bottom = TOP + ROW * pairs.len() as i32 - (ROW - 2 * BAR_HEIGHT) / 2;
    write(area, panel.words(), (left, TOP - 26), (15.0, FontStyle::Bold), HPos::Left, BLACK)?;
    for &mark in &scale.marks {
        let line = [(x(mark), TOP - 9), (x(mark), bottom)];
        area.draw(&PathElement::new(line, BLACK.mix(0.15)))?;
        write(area, &short_number(mark), (x(mark), bottom + 13), (12.0, FontStyle::Normal), HPos::Center, TEXT_COLOUR)?;
    }
    for (row, pair) in pairs.iter().enumerate() {
        for (at, (&value, shade)) in pair.iter().zip(BAR_COLOURS).enumerate() {
            let top = TOP + row as i32 * ROW + at as i32 * BAR_HEIGHT;
            area.draw(&Rectangle::new([(left, top), (x(value).max(left + 1), top + BAR_HEIGHT - 2)], shade.filled()))?;
            let style = if at == 1 { FontStyle::Bold } else { FontStyle::Normal };
            write(area, &number(value), (x(value) + 6, top + BAR_HEIGHT / 2 - 1), (13.5, style), HPos::Left, BLACK)?;
        }
    }
    Ok(())
}

fn write<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    at: (i32, i32),
    (size, style): (f64, FontStyle),
    anchor: HPos,
    colour: RGBColor,
) -> Drawn<B> {
    let style = (FONT, size * FONT_SCALE).into_font().style(style).color(&colour).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))
}

/// How values become lengths.
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
    marks: Vec<f64>,
}

impl Scale {
    fn of(panel: Panel, pairs: &[Pair]) -> Self {
        let low = pairs.iter().flatten().copied().fold(f64::MAX, f64::min);
        let high = pairs.iter().flatten().copied().fold(0.0, f64::max);
        match panel {
            Panel::RoundTrip => {
                // Half a decade below the shortest, so that every bar has a length.
                let low = low / 10f64.sqrt();
                let powers = low.log10().ceil() as i32..=high.log10().floor() as i32;
                Scale { low, high, is_log: true, marks: powers.map(|power| 10f64.powi(power)).collect() }
            }
            Panel::Bandwidth => {
                let power = 10f64.powf(high.log10().floor());
                let step = [0.2, 0.5, 1.0, 2.0].map(|step| step * power).into_iter().find(|step| high / step <= 5.0);
                let step = step.unwrap_or(power * 2.0);
                let marks = (0..=(high / step) as i32).map(|at| f64::from(at) * step).collect();
                Scale { low: 0.0, high, is_log: false, marks }
            }
        }
    }

    /// 0 at the left end, 1 at the largest value.
    fn part(&self, value: f64) -> f64 {
        if self.is_log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Machine;

    fn line(bar: Bar, unit: Unit, without: f64, with: f64) -> Line {
        let of = |value| Quantity::of("", &[value], unit);
        Line::new("", "").figure(of(with)).against(of(without), &[1.0]).bar(bar)
    }

    /// A line for every bar.
    fn all() -> Vec<Line> {
        let of = |program| {
            let (trip, bandwidth) = (Bar::one_way(program), Bar::bandwidth(program));
            [line(trip, Unit::Ns, 6500.0, 150.0), line(bandwidth, Unit::GBs, 3.1, 31.0)]
        };
        ProgramKind::ALL.into_iter().flat_map(of).collect()
    }

    #[test]
    fn bars_are_round_trips_in_us_and_bandwidths_in_gb_a_second() {
        let of = |line: &Line| pair(line).unwrap();
        assert_eq!(of(&line(Bar::one_way(ProgramKind::Java), Unit::Ns, 6500.0, 150.0)), [13.0, 0.3]);
        assert_eq!(of(&line(Bar::round_trip(ProgramKind::Redis), Unit::PerSecond, 40e3, 100e3)), [25.0, 10.0]);
        let reversed = line(Bar::bandwidth(ProgramKind::Java), Unit::GBs, 3.0, 30.0).with_motet(WithMotet::Reference);
        assert_eq!(of(&reversed), [30.0, 3.0]);
        assert_eq!(pair(&line(Bar::bandwidth(ProgramKind::Java), Unit::Ns, 3.0, 30.0)), None);
    }

    #[test]
    fn picture_needs_every_bar() {
        let mut lines = all();
        assert!(bars(&lines).is_ok());
        lines.pop();
        assert_eq!(bars(&lines).unwrap_err(), "Open MPI (Bandwidth)");
    }

    #[test]
    fn partial_run_leaves_the_picture_alone() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine {
            processor: "CPU".into(),
            kernel: "6".into(),
            cpus: 2,
            floor: None,
            floor_by_distance: [None; 2],
            exchange: None,
            floor_fast: 0.0,
            copy: None,
            repetitions: (5, 40),
        };
        let mut report = Report { machine, lines: all(), curves: Vec::new() };
        let path = folder.path();
        assert_eq!(draw(path, &path.join("report"), &report).unwrap().len(), 2);
        let drawn = fs::read_to_string(path.join("overview.svg")).unwrap();
        assert!(drawn.contains("omniORB") && path.join("report/overview.png").exists());
        report.lines.truncate(3);
        assert!(draw(path, &path.join("report"), &report).unwrap().is_empty());
        assert_eq!(fs::read_to_string(path.join("overview.svg")).unwrap(), drawn);
    }

    #[test]
    fn scales_span_all_values() {
        let log = Scale::of(Panel::RoundTrip, &[[20.0, 0.3]]);
        assert_eq!(log.marks, [0.1, 1.0, 10.0]);
        assert!((log.part(20.0) - 1.0).abs() < 1e-9 && log.part(0.3) > 0.0);
        let linear = Scale::of(Panel::Bandwidth, &[[3.1, 31.0]]);
        assert_eq!(linear.marks, [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(linear.part(31.0), 1.0);
        assert_eq!([0.1, 1.0, 10.0, 0.6].map(short_number), ["0.1", "1", "10", "0.6"]);
    }
}
