//! Pictures: the temperature field of both domains, convergence, comparison. PNG and SVG.
//!
//! The font is part of the program, so that text does not depend on what a machine has installed.

use std::path::Path;
use std::sync::Once;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::compare::Comparison;
use crate::field::Field;
use crate::validate::{SlabErrors, TimeError};

const FONT: &str = "sans-serif";
const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(230, 120, 20);
const GREY: RGBColor = RGBColor(120, 120, 120);

fn font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            let _ = register_font(FONT, style, dejavu::sans::regular());
        }
    });
}

fn failed<E: std::fmt::Display>(error: E) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Draws on a PNG or, if the path ends in .svg, on an SVG.
fn draw(path: &Path, size: (u32, u32), picture: impl Painter) -> Result<()> {
    font();
    if path.extension().is_some_and(|end| end == "svg") {
        picture.paint(SVGBackend::new(path, size).into_drawing_area())
    } else {
        picture.paint(BitMapBackend::new(path, size).into_drawing_area())
    }
}

/// Something that can be drawn on any backend.
trait Painter {
    fn paint<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<()>;
}

/// The temperature of gas and wall in one picture. The y axis is stretched, as its labels show.
pub fn temperature(path: &Path, title: &str, gas: &Field, wall: &Field) -> Result<()> {
    draw(path, (1400, 640), Temperature { title, gas, wall })
}

struct Temperature<'a> {
    title: &'a str,
    gas: &'a Field,
    wall: &'a Field,
}

impl Painter for Temperature<'_> {
    fn paint<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<()> {
        area.fill(&WHITE).map_err(failed)?;
        let both = || self.gas.values.iter().chain(&self.wall.values).copied();
        let low = (both().fold(f64::MAX, f64::min) / 10.0).floor() * 10.0;
        let high = (both().fold(f64::MIN, f64::max) / 10.0).ceil() * 10.0;
        let colour = |kelvin: f64| {
            let c = colorous::INFERNO.eval_continuous(((kelvin - low) / (high - low)).clamp(0.0, 1.0));
            RGBColor(c.r, c.g, c.b)
        };
        let length = self.gas.columns as f64 * self.gas.spacing[0];
        let top = self.gas.rows as f64 * self.gas.spacing[1];
        let bottom = self.wall.origin[1];

        let (left, right) = area.split_horizontally(1230);
        let mut chart = ChartBuilder::on(&left)
            .caption(self.title, (FONT, 26))
            .margin(15)
            .x_label_area_size(55)
            .y_label_area_size(90)
            .build_cartesian_2d(0.0..length, bottom..top)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc("x (m), along the flow")
            .y_desc("y (m): wall below 0, gas above")
            .x_label_formatter(&|x| format!("{x:.2}"))
            .y_label_formatter(&|y| format!("{y:.3}"))
            .label_style((FONT, 18))
            .axis_desc_style((FONT, 20))
            .draw()
            .map_err(failed)?;
        for field in [self.wall, self.gas] {
            let cells = (0..field.rows).flat_map(|row| (0..field.columns).map(move |column| (column, row)));
            let [dx, dy] = field.spacing;
            chart
                .draw_series(cells.map(|(column, row)| {
                    let (x, y) = (column as f64 * dx, field.origin[1] + row as f64 * dy);
                    Rectangle::new([(x, y), (x + dx, y + dy)], colour(field.at(column, row)).filled())
                }))
                .map_err(failed)?;
        }
        let line = [(0.0, 0.0), (length, 0.0)];
        chart.draw_series(LineSeries::new(line, WHITE.mix(0.8).stroke_width(2))).map_err(failed)?;

        let mut bar = ChartBuilder::on(&right)
            .caption("T (K)", (FONT, 22))
            .margin(15)
            .margin_bottom(70)
            .right_y_label_area_size(70)
            .build_cartesian_2d(0.0..1.0, low..high)
            .map_err(failed)?;
        // No axis on the left, labels on the right.
        let steps = 256;
        let at = |i: i32| low + (high - low) * f64::from(i) / f64::from(steps);
        bar.draw_series((0..steps).map(|i| Rectangle::new([(0.0, at(i)), (0.45, at(i + 1))], colour(at(i)).filled())))
            .map_err(failed)?;
        let spacing = [20.0, 25.0, 50.0, 100.0, 200.0].into_iter().find(|s| (high - low) / s <= 8.0).unwrap_or(500.0);
        let mut mark = (low / spacing).ceil() * spacing;
        while mark <= high {
            bar.draw_series(LineSeries::new([(0.45, mark), (0.53, mark)], &BLACK)).map_err(failed)?;
            let position = plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Left,
                plotters::style::text_anchor::VPos::Center,
            );
            let style = (FONT, 18).into_font().color(&BLACK).pos(position);
            bar.draw_series([Text::new(format!("{mark:.0}"), (0.58, mark), style)]).map_err(failed)?;
            mark += spacing;
        }
        area.present().map_err(failed)
    }
}

/// Grid and time convergence, side by side, on logarithmic axes.
pub fn convergence(path: &Path, grid: &[SlabErrors], time: &[TimeError]) -> Result<()> {
    draw(path, (1300, 560), Convergence { grid, time })
}

struct Convergence<'a> {
    grid: &'a [SlabErrors],
    time: &'a [TimeError],
}

impl Painter for Convergence<'_> {
    fn paint<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<()> {
        area.fill(&WHITE).map_err(failed)?;
        let (left, right) = area.split_horizontally(650);
        let grid: Vec<_> = self.grid.iter().map(|e| (1.0 / f64::from(e.rows), e.mean)).collect();
        let time: Vec<_> = self.time.iter().map(|e| (e.step, e.error)).collect();
        log_plot(
            &left,
            "Grid: against Kirchhoff's exact solution",
            "cell height / wall thickness",
            "error / temperature difference",
            &grid,
            2,
        )?;
        log_plot(&right, "Time step of the coupled codes", "time step (s)", "error (K)", &time, 1)?;
        area.present().map_err(failed)
    }
}

fn log_plot<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    x_name: &str,
    y_name: &str,
    points: &[(f64, f64)],
    order: i32,
) -> Result<()> {
    // Logarithms on plain axes: the tick labels then neither crowd nor vanish on a range of less than a decade.
    let points: Vec<_> = points.iter().map(|(x, y)| (x.log10(), y.log10())).collect();
    let Some(&(x0, y0)) = points.first() else {
        return Ok(());
    };
    let range = |of: fn(&(f64, f64)) -> f64| {
        let low = points.iter().map(of).fold(f64::MAX, f64::min);
        let high = points.iter().map(of).fold(f64::MIN, f64::max);
        (low - 0.15)..(high + 0.15)
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 22))
        .margin(15)
        .x_label_area_size(55)
        .y_label_area_size(95)
        .build_cartesian_2d(range(|p| p.0), range(|p| p.1))
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc(x_name)
        .y_desc(y_name)
        .x_labels(6)
        .y_labels(8)
        .x_label_formatter(&|x| format!("{:.2e}", 10f64.powf(*x)))
        .y_label_formatter(&|y| format!("{:.1e}", 10f64.powf(*y)))
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 16))
        .axis_desc_style((FONT, 18))
        .draw()
        .map_err(failed)?;
    let slope = points.iter().map(|(x, _)| (*x, y0 + f64::from(order) * (x - x0)));
    let dashed = DashedLineSeries::new(slope, 8, 6, GREY.stroke_width(2));
    let name = ["constant", "first order", "second order"][order.unsigned_abs().min(2) as usize];
    chart
        .draw_series(dashed)
        .map_err(failed)?
        .label(name)
        .legend(|(x, y)| PathElement::new([(x, y), (x + 24, y)], GREY.stroke_width(2)));
    chart
        .draw_series(LineSeries::new(points.iter().copied(), BLUE.stroke_width(3)))
        .map_err(failed)?
        .label("measured")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 24, y)], BLUE.stroke_width(3)));
    chart.draw_series(points.iter().map(|p| Circle::new(*p, 6, BLUE.filled()))).map_err(failed)?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(GREY)
        .label_font((FONT, 17))
        .draw()
        .map_err(failed)?;
    Ok(())
}

/// Time in coupling calls and total time per case, without Motet and with Motet, as bars of the time per exchange.
pub fn comparison(path: &Path, cases: &[Comparison]) -> Result<()> {
    draw(path, (1300, 540), Bars { cases })
}

struct Bars<'a> {
    cases: &'a [Comparison],
}

impl Painter for Bars<'_> {
    fn paint<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<()> {
        area.fill(&WHITE).map_err(failed)?;
        let count = self.cases.len().max(1);
        for (panel, case) in area.split_evenly((1, count)).iter().zip(self.cases) {
            let longest = case.plain.stepping.max(case.motet.map_or(0.0, |m| m.stepping)) / case.exchanges as f64;
            let (unit, parts) = if longest < 0.01 { ("µs", 1e6) } else { ("ms", 1e3) };
            let per_exchange = |seconds: f64| seconds / case.exchanges as f64 * parts;
            let quantities = [
                ("in calls", [case.plain.coupling, case.motet.map_or(0.0, |m| m.coupling)]),
                ("whole step", [case.plain.stepping, case.motet.map_or(0.0, |m| m.stepping)]),
            ];
            let highest = quantities.iter().flat_map(|(_, v)| *v).map(per_exchange).fold(0.0, f64::max) * 1.3;
            let mut chart = ChartBuilder::on(panel)
                .caption(format!("{}: {unit} per exchange", case.case), (FONT, 20))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(75)
                .build_cartesian_2d(0.0..2.0, 0.0..highest)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .x_labels(0)
                .label_style((FONT, 15))
                .y_label_formatter(&|y| format!("{y:.0}"))
                .draw()
                .map_err(failed)?;
            for (place, (name, values)) in quantities.iter().enumerate() {
                for (which, (value, colour)) in values.iter().zip([GREY, ORANGE]).enumerate() {
                    if which == 1 && case.motet.is_none() {
                        continue;
                    }
                    let x = place as f64 + 0.14 + 0.36 * which as f64;
                    let y = per_exchange(*value);
                    chart.draw_series([Rectangle::new([(x, 0.0), (x + 0.32, y)], colour.filled())]).map_err(failed)?;
                    let label = (FONT, 15).into_font().color(&BLACK);
                    chart.draw_series([Text::new(figure(y), (x + 0.01, y + highest * 0.05), label)]).map_err(failed)?;
                }
                let (x, y) = chart.backend_coord(&(place as f64 + 0.14, 0.0));
                let (left, top) = panel.get_base_pixel();
                panel.draw(&Text::new(*name, (x - left, y - top + 10), (FONT, 17).into_font())).map_err(failed)?;
            }
            for (i, (name, colour)) in [("without Motet", GREY), ("with Motet", ORANGE)].iter().enumerate() {
                if i == 1 && case.motet.is_none() {
                    continue;
                }
                let x = 98 + 120 * i as i32;
                panel.draw(&Rectangle::new([(x, 46), (x + 13, 59)], colour.filled())).map_err(failed)?;
                panel.draw(&Text::new(*name, (x + 19, 46), (FONT, 15).into_font())).map_err(failed)?;
            }
        }
        area.present().map_err(failed)
    }
}

fn figure(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
